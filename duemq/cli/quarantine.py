"""`duemq quarantine` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.admin_options import UndeliveredOptions
from duemq.cli.command import command
from duemq.cli.groups import group as command_group
from duemq.cli.options import DryRun, Target, Yes

quarantine_app = command_group()


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
    everything: Annotated[bool, typer.Option("--all", help="All messages.")] = False,
    group: Annotated[
        str, typer.Option(metavar="GROUP", help="Only messages that this group popped.")
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
    options: UndeliveredOptions,
    target: Target,
) -> None:
    """Send messages in quarantine to their topic, without delay, each once: they stay here."""
    from duemq.cli.resend import resend_messages, search_of
    from duemq.client.admin.resends import ResendOptions

    search = search_of(options, group=group, everything=everything)
    how = ResendOptions(topic=topic, without=frozenset(without or ()))
    resend_messages(search, how, target, dry_run=dry_run, yes=yes)
