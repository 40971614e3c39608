"""`duemq quarantine` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import DryRun, Target, Yes
from duemq_common.errors import UsageError

quarantine_app = group()


@command(quarantine_app, "list", example="quarantine list --topic orders")
def list_messages(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only messages of this topic.")] = "",
    count: Annotated[int, typer.Option(help="Maximum number of messages; 0: all.", min=0)] = 100,
    *,
    target: Target,
) -> None:
    """Show the messages in quarantine with the reason, oldest first."""
    from duemq.cli.quarantined import list_quarantined

    list_quarantined(topic, count, target)


@command(quarantine_app, example="quarantine show 17")
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Offset as listed, 17 or BROKER/17, or unique id.",
            show_default=False,
        ),
    ],
    *,
    target: Target,
) -> None:
    """Show a message in quarantine completely: reason, properties, body."""
    from duemq.cli.quarantined import show_quarantined

    show_quarantined(name, target)


@command(quarantine_app, example="quarantine resend --all --dry-run")
def resend(
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="NAME",
            help="Offset as listed, 17 or BROKER/17, or unique id. Repeatable.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All messages, or all of --from-topic.")
    ] = False,
    from_topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Only messages of this topic.")
    ] = "",
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Topic to send to; default: that of the message.")
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Property that the message loses. Repeatable."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Send messages in quarantine to their topic, without delay, each once: they stay here."""
    from duemq.cli.quarantined import resend_quarantined

    if bool(names) == everything:
        raise UsageError("give either --id, as `duemq quarantine list` shows it, or --all")
    resend_quarantined(
        names or [], from_topic, topic, without or [], target, dry_run=dry_run, yes=yes
    )
