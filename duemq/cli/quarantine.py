"""`duemq quarantine` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import DryRun, Target

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


@command(quarantine_app, example="quarantine send --offset 17 --dry-run")
def send(
    offset: Annotated[
        list[str] | None,
        typer.Option(metavar="OFFSET", help="Offset as listed: 17 or BROKER/17. Repeatable."),
    ] = None,
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Topic to send to; default: that of the message.")
    ] = "",
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Property that the message loses. Repeatable."),
    ] = None,
    dry_run: DryRun = False,
    *,
    target: Target,
) -> None:
    """Send messages in quarantine to their topic, without delay, each time: they stay there."""
    from duemq.cli.quarantined import send_quarantined

    send_quarantined(offset or [], topic, without or [], target, dry_run=dry_run)
