"""Options shared by commands, as option sets by subject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import typer

from duemq.cli.output import OutputFormat
from duemq.cli.properties import collect_properties, properties_of_broker
from duemq_common.config_text import Properties
from duemq_common.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from ssl import SSLContext

    from duemq.auth.signature import Credentials
    from duemq.client.admin import Admin
    from duemq.client.client import Client

T = TypeVar("T")
CALL_TIMEOUT_S = 10.0
NAMESRV = "127.0.0.1:9876"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON: short for --output json.")]
Output = Annotated[
    OutputFormat | None,
    typer.Option("--output", "-o", metavar="table|json|yaml", help="Format of the output."),
]
EventsAsJson = Annotated[
    bool, typer.Option("--json", help="Print events (ready, stopped) as JSON lines.")
]
LoggingFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Logging configuration (logging.ini).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the effect without any change.")]
From = Annotated[
    str,
    typer.Option(
        "--from", metavar="TIME", help="Earliest due time: 2026-11-22T10:00, +90s, +2h, or ms."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Brokers = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="BROKER", help="Only at this broker name; repeatable."),
]
SparkSetting = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="KEY=VALUE", help="Setting of Spark, such as spark.jars=driver.jar."
    ),
]
SparkLog = Annotated[
    str, typer.Option("--spark-log", metavar="LEVEL", help="Show Spark's log from this level on.")
]
Stores = Annotated[
    list[str], typer.Argument(help="Store directories or URLs, of DueMQ or RocketMQ.")
]
Late = Annotated[int, typer.Option(metavar="MS", help="Maximum lateness without a finding.", min=0)]
AsOf = Annotated[
    str,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Audit time: messages due by then must be delivered; default: now if a broker has the "
        "store open, else the newest record.",
    ),
]
TrustClock = Annotated[
    bool,
    typer.Option("--trust-clock", help="Report no findings caused by a clock that was set back."),
]
LevelDelays = Annotated[
    str,
    typer.Option(
        "--levels",
        metavar="LEVELS",
        help="messageDelayLevel, if the queues of a RocketMQ store are lost.",
    ),
]
LedgerUrl = Annotated[
    str,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="Ledger that records the audit; default: in the store; none: no record.",
    ),
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Latest due time, exclusive.")]


@dataclass(frozen=True, slots=True)
class Target:
    """Brokers that a command uses, and the form of its output."""

    namesrv: Annotated[
        str,
        typer.Option(
            "--namesrv",
            "-n",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers.",
            show_default=NAMESRV,
        ),
    ] = ""
    broker: Annotated[
        str,
        typer.Option(
            "--broker", "-b", metavar="HOST:PORT", help="One broker instead of a name server."
        ),
    ] = ""
    as_json: AsJson = False
    tls: Annotated[
        bool, typer.Option("--tls", envvar="DUEMQ_TLS", help="Connect by TLS.", show_default=False)
    ] = False
    tls_ca: Annotated[
        str,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            envvar="DUEMQ_TLS_CA",
            help="Verify servers by these authorities (PEM); implies --tls.",
        ),
    ] = ""
    tls_cert: Annotated[
        str,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            envvar="DUEMQ_TLS_CERT",
            help="Certificate to present, with its private key in the same file (PEM).",
        ),
    ] = ""

    access_key: Annotated[
        str,
        typer.Option(
            "--access-key",
            metavar="USER",
            envvar="DUEMQ_ACCESS_KEY",
            help="User that signs the requests.",
        ),
    ] = ""
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            envvar="DUEMQ_SECRET_FILE",
            help="File with the secret of the user.",
        ),
    ] = None
    context_name: Annotated[
        str,
        typer.Option(
            "--context",
            metavar="NAME",
            envvar="DUEMQ_CONTEXT",
            help="Options of a context, see `duemq context`.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        from duemq.cli.contexts import options_of

        options = options_of(self.context_name, with_servers=bool(self.namesrv or self.broker))
        for name, value in options.items():
            if not getattr(self, name):
                kept = Path(str(value)) if name == "secret_file" else value
                object.__setattr__(self, name, kept)
        if not self.namesrv:
            object.__setattr__(self, "namesrv", NAMESRV)

    def ask(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Return the result of `work` with an admin of these brokers."""
        import asyncio  # commands that ask no broker start without it

        async def run() -> T:
            async with self.admin() as admin:
                return await work(admin)

        return asyncio.run(run())

    def admin(self) -> Admin:
        """Return an admin of these brokers.

        Raises:
            UsageError: An address or the account is malformed.
        """
        from duemq.client.admin import Admin

        return self._connected(Admin)

    def client(self) -> Client:
        """Return a client of these brokers.

        Raises:
            UsageError: An address or the account is malformed.
        """
        from duemq.client.client import Client

        return self._connected(Client)

    def _connected(self, role: Callable[..., T]) -> T:
        tls, credentials = self.tls_context(), self.credentials()
        namesrv = "" if self.broker else self.namesrv
        try:
            return role(
                namesrv,
                broker=self.broker,
                tls=tls,
                credentials=credentials,
                timeout_s=CALL_TIMEOUT_S,
            )
        except ValueError as error:
            raise UsageError(str(error)) from None

    def credentials(self) -> Credentials | None:
        """Return the credentials that sign requests; None: unsigned.

        Raises:
            UsageError: Only one of user and secret is given, or the file cannot be read.
        """
        if not self.access_key and self.secret_file is None:
            return None
        if not self.access_key or self.secret_file is None:
            raise UsageError("give both --access-key and --secret-file, or neither")
        from duemq.auth.signature import Credentials

        try:
            secret = self.secret_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"--secret-file {self.secret_file}: {error}") from None
        if not secret:
            raise UsageError(f"--secret-file {self.secret_file} is empty")
        return Credentials(self.access_key, secret)

    def tls_context(self) -> SSLContext | None:
        """Return the context of TLS connections; None: plaintext.

        Raises:
            UsageError: A file cannot be used.
        """
        if not (self.tls or self.tls_ca or self.tls_cert):
            return None
        from duemq.net.tls import client_context
        from duemq.net.tls_config import TlsConfig

        config = TlsConfig(
            use_tls=True,
            test_mode=False,
            auth_server=bool(self.tls_ca),
            client_trust_path=self.tls_ca,
            client_cert_path=self.tls_cert,
        )
        try:
            return client_context(config)
        except ConfigError as error:
            option = "--tls-ca" if error.value == self.tls_ca else "--tls-cert"
            raise UsageError(f"{option} {error.value}: {error.reason}") from None


@dataclass(frozen=True, slots=True)
class Configuration:
    """Configuration of a process: a file and overrides."""

    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Configuration file (broker.conf)."),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one key; repeatable."),
    ] = None

    def properties(self, namesrv: str = "") -> Properties:
        """Return the properties of the file, the environment and the command line.

        Raises:
            ConfigError: The file cannot be read or parsed.
            UsageError: An override is not `KEY=VALUE`.
        """
        return collect_properties(self.config, self.overrides, namesrv)

    def of_broker(self, namesrv: str = "") -> Properties:
        """Return the properties of a broker process.

        Raises:
            ConfigError, UsageError: As `properties`.
        """
        return properties_of_broker(self.config, self.overrides, namesrv)


@dataclass(frozen=True, slots=True)
class Selection:
    """Pending messages that a command applies to."""

    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Message id: unique key or offset id; repeatable."),
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="One of the KEYS; repeatable."),
    ] = None
    handles: Annotated[
        list[str] | None,
        typer.Option("--handle", metavar="HANDLE", help="Recall handle of a send; repeatable."),
    ] = None
    ids_file: Annotated[
        Path | None,
        typer.Option("--ids-from", metavar="FILE", help="File with one message id per line."),
    ] = None
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Only messages of this topic; without ids or keys: all pending messages of it.",
        ),
    ] = ""
    from_time: From = ""
    to_time: To = ""
    dry_run: DryRun = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation for a whole topic.")
    ] = False


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Message of `duemq send`."""

    topic: Annotated[str, typer.Argument(help="Topic to send to.")] = ""
    body: Annotated[
        str | None, typer.Argument(help="Body text; - reads standard input.", show_default=False)
    ] = None
    level: Annotated[int, typer.Option(help="Delay level, 0: none.", min=0)] = 0
    due_text: Annotated[
        str,
        typer.Option(
            "--at", metavar="TIME", help="Delivery time: 2026-11-22T10:00 (UTC), +90s, +2h, or ms."
        ),
    ] = ""
    count: Annotated[int, typer.Option(help="Number of copies.", min=1, max=1_000_000)] = 1
    tag: Annotated[str, typer.Option(help="Tag.")] = ""
    key: Annotated[str, typer.Option(help="Keys, separated by blanks.")] = ""
    queue_id: Annotated[int, typer.Option("--queue", help="Queue id; -1: in turn.", min=-1)] = -1


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """What `duemq consume` reads."""

    topic: Annotated[str, typer.Argument(help="Topic to read.")]
    group: Annotated[str, typer.Option(help="Consumer group whose offsets are used.")] = "duemq_cli"
    count: Annotated[int, typer.Option(help="Stop after this many messages; 0: never.", min=0)] = 0
    wait_s: Annotated[
        float, typer.Option("--wait", help="Stop after this many seconds; 0: never.", min=0)
    ] = 0.0
    tag: Annotated[str, typer.Option(help="Tag filter such as 'a || b'.")] = "*"
    from_first: Annotated[
        bool, typer.Option("--from-first", help="A new group starts at the oldest message.")
    ] = False


@dataclass(frozen=True, slots=True)
class TimerSelection:
    """Page of pending timers; empty texts select all."""

    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only timers of this topic.")] = ""
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Only timers with this key or unique key.")
    ] = ""
    from_time: From = ""
    to_time: To = ""
    limit: Annotated[int, typer.Option(help="Timers per page.", min=1, max=1_000)] = 20
    page: Annotated[int, typer.Option(help="Number of the page.", min=1)] = 1


class EngineName(StrEnum):
    """Engine of an audit."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Engine of a command, and its Spark session."""

    engine: Annotated[
        EngineName,
        typer.Option(
            metavar="auto|local|spark",
            help="local: DuckDB in this process; auto: local unless a large log needs Spark.",
        ),
    ] = EngineName.AUTO
    cores: Annotated[int, typer.Option(help="Parallel tasks; 0: one per core.", min=0)] = 0
    memory: Annotated[str, typer.Option(help="Memory of the Java process.")] = "2g"
    connect: Annotated[
        str, typer.Option(metavar="URL", help="Spark Connect server (sc://HOST:PORT) to use.")
    ] = ""
    spark_log: SparkLog = ""
    conf: SparkSetting = None


@dataclass(frozen=True, slots=True)
class OutsideOptions:
    """Tables of producers and consumers that an audit compares with the store."""

    sent: Annotated[
        str,
        typer.Option(
            metavar="TABLE",
            help="Messages that the producer sent: Parquet, CSV, JSON Lines or jdbc:...#TABLE.",
        ),
    ] = ""
    sent_columns: Annotated[
        str,
        typer.Option(
            metavar="FIELD=COLUMN,...", help="Columns of --sent: id or key, topic, time (promised)."
        ),
    ] = ""
    received: Annotated[
        str, typer.Option(metavar="TABLE", help="Messages that the consumer processed.")
    ] = ""
    received_columns: Annotated[
        str,
        typer.Option(
            metavar="FIELD=COLUMN,...", help="Columns of --received: id or key, topic, time."
        ),
    ] = ""
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of times in tables without an offset.")
    ] = ""
    tolerance: Annotated[
        int,
        typer.Option(metavar="MS", help="Accepted difference from the promised time.", min=0),
    ] = 1_000


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Spark session of a command that runs until it is stopped."""

    cores: Annotated[int, typer.Option(help="Parallel tasks; 0: one per core.", min=0)] = 1
    memory: Annotated[str, typer.Option(help="Memory of the Java process.")] = "1g"
    connect: ClassVar[str] = ""
    spark_log: SparkLog = ""
    conf: SparkSetting = None
