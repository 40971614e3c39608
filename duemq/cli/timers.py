"""`duemq timers` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.command import command, expanded
from duemq.cli.groups import group
from duemq.cli.options import DryRun, From, Target, TimerSelection
from duemq.cli.timers_decide import add_commands
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


add_commands(timers_app)


@command(timers_app, example="timers compact --dry-run")
def compact(
    dry_run: DryRun = False,
    *,
    target: Target,
) -> None:
    """Copy pending timers out of expired commit log files to free them. Exit code 4: refused."""
    from duemq.cli.timers_compact import compact_and_show

    compact_and_show(target, dry_run=dry_run)
