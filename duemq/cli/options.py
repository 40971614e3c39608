"""Options shared by commands: one declaration each, in sets by subject."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from message_store.config import Properties, read_properties
from message_store.errors import UsageError

if TYPE_CHECKING:
    from duemq.cli.client import Cluster

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
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
        help="Time of the audit: messages due by then are expected; default: the newest record.",
    ),
]
TrustClock = Annotated[
    bool,
    typer.Option(
        "--trust-clock", help="Accept what a clock that was set back explains, without a finding."
    ),
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
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Only due before this time.")]


@dataclass(frozen=True, slots=True)
class Target:
    """The brokers that a command asks, and the form of its output."""

    namesrv: Annotated[
        str,
        typer.Option(
            "--namesrv", "-n", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help="Name servers."
        ),
    ] = "127.0.0.1:9876"
    broker: Annotated[
        str,
        typer.Option(
            "--broker", "-b", metavar="HOST:PORT", help="One broker instead of a name server."
        ),
    ] = ""
    as_json: AsJson = False

    def cluster(self) -> Cluster:
        """Return a client of these brokers."""
        from duemq.cli.client import Cluster

        return Cluster(self.namesrv, self.broker)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a process: a file and single keys."""

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


@dataclass(frozen=True, slots=True)
class Selection:
    """The pending messages that a command applies to."""

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
class SparkOptions:
    """The Spark that does the work."""

    cores: Annotated[int, typer.Option(help="Parallel tasks; 0: one per core.", min=0)] = 0
    memory: Annotated[str, typer.Option(help="Memory of the Java process.")] = "2g"
    connect: Annotated[
        str, typer.Option(metavar="URL", help="Spark Connect server (sc://HOST:PORT) to use.")
    ] = ""
    spark_log: SparkLog = ""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The Spark of a command that runs until it is stopped."""

    cores: Annotated[int, typer.Option(help="Parallel tasks; 0: one per core.", min=0)] = 1
    memory: Annotated[str, typer.Option(help="Memory of the Java process.")] = "1g"
    connect: ClassVar[str] = ""
    spark_log: SparkLog = ""


def collect_properties(
    file: Path | None, overrides: Iterable[str] | None, namesrv: str = ""
) -> Properties:
    """Return the properties of a file, the environment and the command line; later ones win.

    Raises:
        ConfigError: The file cannot be read or parsed.
        UsageError: An override is not `KEY=VALUE`.
    """
    properties = read_properties(file) if file else Properties()
    from_environment = os.environ.get("NAMESRV_ADDR", "")
    if from_environment and "namesrvAddr" not in properties:
        properties = properties.merged({"namesrvAddr": from_environment}, "NAMESRV_ADDR")
    for text in overrides or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text}: must be KEY=VALUE")
        properties = properties.merged({key.strip(): value.strip()}, "command line")
    if namesrv and namesrv != from_environment:
        properties = properties.merged({"namesrvAddr": namesrv}, "command line")
    return properties
