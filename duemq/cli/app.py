"""Command line application; each command imports its modules when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duemq.cli.cache_home import use_writable_cache
from duemq.cli.command import command
from duemq.cli.exits import MEANINGS, errors_become_exits
from duemq.cli.groups import Group, LazyGroup, group
from duemq.cli.options import (
    AsJson,
    Configuration,
    ConsumeOptions,
    EventsAsJson,
    LoggingFile,
    Outgoing,
    Target,
)
from duemq.cli.output import notice
from duemq_common.config import Properties
from duemq_common.errors import UsageError

_EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {text}" for code, text in MEANINGS.items())

GROUPS = {
    "context": "Save the addresses and accounts of clusters under names.",
    "topic": "Show, create and delete topics.",
    "group": "Show, create and delete consumer groups; reset their offsets.",
    "dlq": "Show dead letters; send them again.",
    "timers": "Show pending timers by topic and minute, the next due time, and lateness.",
    "reconcile": "Audit the outcome of every scheduled message.",
    "migrate": "Convert level messages to timers while the broker runs, and back.",
    "accounts": "Show and change the users of a stopped broker or name server.",
    "schedule": "Create and control recurring schedules.",
    "quarantine": "Show messages that could not be delivered; send them again.",
}


class Commands(Group):
    """Top-level command group; converts errors of commands into exit codes."""

    def invoke(self, ctx: Any) -> object:
        """Run the selected command."""
        with errors_become_exits():
            if text := use_writable_cache():
                notice(text)
            return super().invoke(ctx)


app = group(
    "RocketMQ-compatible broker for delayed messages.",
    name="duemq",
    cls=Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    add_completion=True,
)
message_app = group("Show single messages.")
store_app = group("Check and copy store directories.")
config_app = group("Show the configuration.")
kernels_app = group("Compile kernels.")
for _name, _help in GROUPS.items():
    app.add_typer(group(), name=_name, cls=LazyGroup, help=_help)
app.add_typer(message_app, name="message")
app.add_typer(store_app, name="store")
app.add_typer(config_app, name="config")
app.add_typer(kernels_app, name="kernels")


def run() -> None:
    """Run the command line of this process."""
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(version_of("duemq"))
        raise typer.Exit


@command(app, example="broker -c broker.conf")
def broker(
    *,
    configuration: Configuration,
    namesrv: Annotated[
        str, typer.Option("--namesrv", "-n", metavar="HOST:PORT", help="Name servers.")
    ] = "",
    logging: LoggingFile = None,
    as_json: EventsAsJson = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C; SIGHUP reads the configuration file again."""
    from duemq.cli.serve import serve_broker

    def properties() -> Properties:
        return configuration.of_broker(namesrv)

    serve_broker(configuration.config, properties, logging, as_json=as_json)


@command(app, example="drain broker-a --timeout 5m")
def drain(
    broker_name: Annotated[
        str, typer.Argument(metavar="BROKER", help="Name of the broker; default: the only one.")
    ] = "",
    *,
    soon: Annotated[
        str, typer.Option(metavar="SPAN", help="Wait for messages that are due within it.")
    ] = "10s",
    timeout: Annotated[str, typer.Option(metavar="SPAN", help="Maximum span of the wait.")] = "5m",
    undo: Annotated[bool, typer.Option("--undo", help="Accept sends again.")] = False,
    target: Target,
) -> None:
    """Turn off the sends to a broker before maintenance; wait for deliveries and consumers."""
    from duemq.cli.drain import drain as drain_broker

    drain_broker(target, broker_name, soon=soon, timeout=timeout, undo=undo)


@command(app, example="init broker.conf")
def init(
    file: Annotated[Path, typer.Argument(help="Configuration file to write.")] = Path(
        "broker.conf"
    ),
    every_key: Annotated[
        bool, typer.Option("--all", help="Add every other key, as a comment with its default.")
    ] = False,
) -> None:
    """Write the configuration of a broker, with comments, into a new file."""
    from duemq.cli.init import write_configuration

    write_configuration(file, every_key=every_key)


@command(app, example="namesrv --set listenPort=9876")
def namesrv(
    *,
    configuration: Configuration,
    logging: LoggingFile = None,
    as_json: EventsAsJson = False,
) -> None:
    """Run a name server until SIGTERM or Ctrl-C."""
    from duemq.cli.serve import serve_namesrv

    properties = configuration.properties()
    serve_namesrv(configuration.config, properties, logging, as_json=as_json)


@command(app, "console", example="console --namesrv 127.0.0.1:9876 --port 8088")
def http_console(
    *,
    target: Target,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port; 0: any.")] = 8_088,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    accounts: Annotated[
        bool,
        typer.Option(
            "--accounts", help="Callers sign in with their accounts, which every broker checks."
        ),
    ] = False,
    cert: Annotated[
        str,
        typer.Option("--cert", metavar="FILE", help="Certificate and key of HTTPS (PEM)."),
    ] = "",
    proxies: Annotated[
        str,
        typer.Option(
            "--proxies", metavar="NETWORKS", help="Proxies whose X-Forwarded headers are used."
        ),
    ] = "",
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Each login of the console may only view."),
    ] = False,
    logging: LoggingFile = None,
) -> None:
    """Serve the console and the HTTP API of a cluster until SIGTERM or Ctrl-C."""
    from duemq.cli.console import serve_console
    from duemq.http.standalone import ConsoleOptions

    options = ConsoleOptions(
        host=host,
        port=port,
        has_accounts=accounts,
        certificate=cert,
        proxies=proxies,
        is_read_only=read_only,
    )
    serve_console(target, options, logging)


@command(app, example="send orders hello --at +90s")
def send(
    *,
    outgoing: Outgoing,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Output of `reconcile repair`; without --yes: only show the effect.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --from: send the missing messages.")
    ] = False,
    target: Target,
) -> None:
    """Send a message, optionally with a level or a delivery time, and print where it is stored."""
    from duemq.cli.messages import send_messages
    from duemq.cli.send_file import send_file

    if from_file is not None:
        if outgoing.topic or outgoing.body is not None:
            raise UsageError(
                f"{from_file} contains topics and bodies: omit TOPIC and BODY to resend its "
                "messages, "
                "or omit --from to send a new message"
            )
        own = {
            "--level": outgoing.level,
            "--at": outgoing.due_text,
            "--tag": outgoing.tag,
            "--key": outgoing.key,
            "--count": outgoing.count > 1,
            "--queue": outgoing.queue_id >= 0,
        }
        if named := [name for name, value in own.items() if value]:
            raise UsageError(
                f"{from_file} contains the properties of its messages: omit {', '.join(named)}"
            )
        send_file(from_file, target, really=yes)
        return
    if not outgoing.topic or outgoing.body is None:
        raise UsageError("no message given: give a topic and a body, or --from FILE")
    send_messages(outgoing, target)


@command(app, example="consume orders --count 10")
def consume(*, options: ConsumeOptions, target: Target) -> None:
    """Read a topic and print each message as it arrives."""
    from duemq.cli.consume import consume_messages

    consume_messages(options, target)


@command(app, example="levels --watch")
def levels(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    *,
    target: Target,
) -> None:
    """Show each level: pending messages, the next due time, lateness of deliveries."""
    from duemq.cli.levels import show_levels

    show_levels(target, is_repeated=watch)


@command(app, example="replicas")
def replicas(*, target: Target) -> None:
    """Show masters and replicas: role, state, lag, last error."""
    from duemq.cli.replicas import show_replicas

    show_replicas(target)


@command(app, example="cluster")
def cluster(*, target: Target) -> None:
    """Show the brokers of all clusters: version, rates, disk."""
    from duemq.cli.cluster import show_cluster

    show_cluster(target)


@command(app, example="top --once")
def top(
    once: Annotated[bool, typer.Option("--once", help="Show one state and end.")] = False,
    *,
    target: Target,
) -> None:
    """Show rates, pending messages, lateness, lag of groups and replicas until Ctrl-C."""
    from duemq.cli.top import show_top

    show_top(target, once=once)


@command(message_app, "show", example="message show 7F00000100002A9F0000000000000000")
def message_show(
    message_id: Annotated[str, typer.Argument(help="Message id, one of its keys, or offset id.")],
    topic: Annotated[str, typer.Option(help="Only messages for this topic.")] = "",
    *,
    target: Target,
) -> None:
    """Show a message in any state: its due time, its delivery and its history."""
    from duemq.cli.message_show import show_message

    show_message(message_id, topic, target)


@command(store_app, "verify", example="store verify /data/store")
def store_verify(
    directory: Annotated[Path, typer.Argument(help="Store directory, of DueMQ or Apache.")],
    *,
    configuration: Configuration,
    as_json: AsJson = False,
) -> None:
    """Check a stopped store and report each fault with file and position."""
    from duemq.cli.verify import verify

    verify(directory, configuration.properties(), as_json=as_json)


@command(store_app, "copy", example="store copy /data/store /backup/store")
def store_copy(
    directory: Annotated[Path, typer.Argument(help="Store directory; a broker may run on it.")],
    target: Annotated[Path, typer.Argument(help="New directory.")],
    links: Annotated[
        bool,
        typer.Option(
            "--links",
            help="Hard links of the log's sealed files: fast, on the same file system only. Move "
            "the copy to other storage; no broker starts on it.",
        ),
    ] = False,
    *,
    configuration: Configuration,
    as_json: AsJson = False,
) -> None:
    """Copy a store consistently, also while its broker runs."""
    from duemq.cli.store_copy import copy

    copy(directory, target, configuration.properties(), links=links, as_json=as_json)


@command(config_app, "show", example="config show -c broker.conf --changed")
def config_show(
    *,
    configuration: Configuration,
    namesrv: Annotated[
        bool, typer.Option("--namesrv", help="Show the keys of the name server.")
    ] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only keys that are set.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show every key with its value, default and source; list unknown keys."""
    from duemq.cli.config_show import show

    show(configuration.properties(), namesrv=namesrv, changed=changed, as_json=as_json)


@command(kernels_app, "warm", example="kernels warm")
def kernels_warm(
    force: Annotated[
        bool, typer.Option("--force", help="Compile again, even if the cache is complete.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile every kernel into the cache, for fast starts."""
    from duemq.cli.kernels import warm

    warm(force=force, as_json=as_json)
