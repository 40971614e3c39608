"""`duemq timers` commands; each imports its modules when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duemq.cli.command import command, expanded
from duemq.cli.groups import group
from duemq.cli.options import Configuration, DryRun, From, Selection, Target, TimerSelection
from duemq_common.errors import UsageError

timers_app = group(no_args_is_help=False)


def timers(context: typer.Context, target: Target) -> None:
    """Print the summary if no command is given; `duemq.cli.app` has the help."""
    if context.invoked_subcommand is not None:
        if target.broker or target.as_json:
            name = context.invoked_subcommand
            raise UsageError(f"options go after the command: duemq timers {name} ...")
        return
    from duemq.cli.timers_show import show_summary

    show_summary(target)


timers_app.callback(invoke_without_command=True, epilog="Example: duemq timers --json")(
    expanded(timers)
)


@command(timers_app, example="timers follow --count 10")
def follow(
    count: Annotated[
        int, typer.Option(help="Stop after this many refreshes; 0: never.", min=0)
    ] = 0,
    *,
    target: Target,
) -> None:
    """Show the summary and the next timers, every second until Ctrl-C."""
    from duemq.cli.timers_show import follow_timers

    follow_timers(target, count=count)


@command(timers_app, example="timers forecast --by hour")
def forecast(
    by: Annotated[str, typer.Option(metavar="UNIT", help="minute, hour or day.")] = "minute",
    count: Annotated[
        int, typer.Option(help="Number of units; 0: an hour, two days or a month.", min=0)
    ] = 0,
    from_time: From = "",
    *,
    target: Target,
) -> None:
    """Draw a chart of timers by due minute, hour or day. Every timer is counted once."""
    from duemq.cli.timers_forecast import show_forecast

    show_forecast(target, by=by, count=count, from_time=from_time)


@command(timers_app, "list", example="timers list --topic orders --to +1h")
def list_pending(*, selection: TimerSelection, target: Target) -> None:
    """List pending timers, earliest first. Exit code 1: no timer has the key."""
    from duemq.cli.timers_list import list_timers

    list_timers(selection, target)


@command(timers_app, example="timers cancel --key order-17")
def cancel(selection: Selection, target: Target) -> None:
    """Cancel pending messages. Exit code 1: some were not pending; 4: some were refused."""
    from duemq.cli.timers_decide import decide

    decide("cancel", selection, target)


@command(timers_app, example="timers move --id 7F00000100002A9F0000000000000000 --at +2h")
def move(
    *,
    selection: Selection,
    at_time: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="The new time: 2026-11-22T10:00, +2h, or ms."),
    ] = "",
    target: Target,
) -> None:
    """Move pending messages to another time. Exit code 1: some not pending; 4: some refused."""
    from duemq.cli.timers_decide import decide

    if not at_time:
        raise UsageError("no time given: add --at, for example --at +2h")
    decide("move", selection, target, at_time=at_time)


@command(timers_app, example="timers fire --topic orders --to +5m --dry-run")
def fire(selection: Selection, target: Target) -> None:
    """Deliver pending messages now. Exit code 1: some were not pending; 4: some were refused."""
    from duemq.cli.timers_decide import decide

    decide("fire", selection, target)


@command(timers_app, example="timers compact --dry-run")
def compact(
    dry_run: DryRun = False,
    *,
    target: Target,
) -> None:
    """Copy pending timers out of expired commit log files to free them. Exit code 4: refused."""
    from duemq.cli.timers_compact import compact_and_show

    compact_and_show(target, dry_run=dry_run)


@command(timers_app, example="timers export pending.jsonl --broker 127.0.0.1:10911")
def export(
    *,
    file: Annotated[Path, typer.Argument(help="New file; .parquet selects Parquet.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only messages of this topic.")] = "",
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Stopped store, of DueMQ or RocketMQ."),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Directory for a temporary copy of it; default: its parent.",
        ),
    ] = None,
    configuration: Configuration,
    target: Target,
) -> None:
    """Write pending messages of levels and timers to a file, with their due times."""
    from duemq.cli.timers_export import export as export_pending

    properties = configuration.properties()
    export_pending(file, target, topic=topic, store=store, work=work, properties=properties)


@command(timers_app, "import", example="timers import pending.jsonl --broker 127.0.0.1:10911 --yes")
def import_file(
    *,
    file: Annotated[Path, typer.Argument(help="File of `duemq timers export`.")],
    yes: Annotated[bool, typer.Option("--yes", help="Send; else only show the effect.")] = False,
    target: Target,
) -> None:
    """Send the messages of an export, each once. Exit code 4: some were refused."""
    from duemq.cli.send_file import send_file

    send_file(file, target, really=yes)


@command(timers_app, example="timers transfer --broker 10.0.0.1:10911 --to 10.0.0.2:10911 --yes")
def transfer(
    *,
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="Broker to transfer to.")],
    margin_s: Annotated[
        int, typer.Option("--margin", metavar="SECONDS", help="Due sooner: not transferred.", min=1)
    ] = 60,
    yes: Annotated[
        bool, typer.Option("--yes", help="Transfer; else only show the effect.")
    ] = False,
    target: Target,
) -> None:
    """Move the pending messages of one broker to another one. Exit code 4: some were refused."""
    from duemq.cli.timers_transfer import transfer as transfer_pending

    transfer_pending(target, to, margin_ms=margin_s * 1_000, really=yes)
