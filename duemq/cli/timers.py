"""The commands of `duemq timers`. Each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.options import AsJson, BrokerAddress, Namesrv
from duemq.cli.timers_decide import add_commands
from message_store.errors import UsageError

timers_app = typer.Typer()

Topic = Annotated[str, typer.Option(metavar="TOPIC", help="Only timers of this topic.")]
Key = Annotated[str, typer.Option(metavar="KEY", help="Only with this key, or this unique key.")]
From = Annotated[
    str,
    typer.Option(
        "--from", metavar="TIME", help="Due then or later: 2026-11-22T10:00, +90s, +2h, or ms."
    ),
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="Due before.")]


@timers_app.callback(invoke_without_command=True)
def timers(
    context: typer.Context,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Show pending timers by topic and minute, what is due next, and how late deliveries were."""
    if context.invoked_subcommand is not None:
        if broker or as_json:
            name = context.invoked_subcommand
            raise UsageError(f"options go after the command: duemq timers {name} ...")
        return
    from duemq.cli.timers_show import show_summary

    show_summary(namesrv=namesrv, broker=broker, as_json=as_json)


@timers_app.command()
def follow(
    count: Annotated[int, typer.Option(help="Stop after so many refreshes; 0: go on.", min=0)] = 0,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Show the summary and the next timers, every second until Ctrl-C."""
    from duemq.cli.timers_show import follow_timers

    follow_timers(namesrv=namesrv, broker=broker, count=count, as_json=as_json)


@timers_app.command()
def forecast(
    by: Annotated[str, typer.Option(metavar="UNIT", help="minute, hour or day.")] = "minute",
    count: Annotated[
        int, typer.Option(help="How many of them; 0: an hour, two days or a month.", min=0)
    ] = 0,
    from_time: From = "",
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Draw how many timers are due in each minute, hour or day. Every timer is counted once."""
    from duemq.cli.timers_forecast import show_forecast

    show_forecast(
        by=by, count=count, from_time=from_time, namesrv=namesrv, broker=broker, as_json=as_json
    )


@timers_app.command("list")
def list_pending(
    topic: Topic = "",
    key: Key = "",
    from_time: From = "",
    to_time: To = "",
    limit: Annotated[int, typer.Option(help="Timers a page.", min=1, max=1_000)] = 20,
    page: Annotated[int, typer.Option(help="Which page.", min=1)] = 1,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """List pending timers, the next due first; exit code 1 if there is none with the key."""
    from duemq.cli.timers_list import Wanted, list_timers

    wanted = Wanted(topic, key, from_time, to_time, limit=limit, page=page)
    list_timers(wanted, namesrv=namesrv, broker=broker, as_json=as_json)


add_commands(timers_app)


@timers_app.command()
def compact(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be copied, and freed.")
    ] = False,
    namesrv: Namesrv = "127.0.0.1:9876",
    broker: BrokerAddress = "",
    as_json: AsJson = False,
) -> None:
    """Copy pending timers out of expired commit log files, to free them. Exit code 4: it cannot."""
    from duemq.cli.timers_compact import compact_and_show

    compact_and_show(namesrv=namesrv, broker=broker, dry_run=dry_run, as_json=as_json)
