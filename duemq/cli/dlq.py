"""`duemq dlq` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.admin_options import UndeliveredOptions
from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import DryRun, Target, Yes

dlq_app = group()
Name = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.", show_default=False)]


@command(dlq_app, "list", example="dlq list")
def list_dead_letters(*, target: Target) -> None:
    """Show the groups that have dead letters."""
    from duemq.cli.dead_letters import list_groups

    list_groups(target)


@command(dlq_app, example="dlq show billing --count 20")
def show(
    name: Name,
    count: Annotated[int, typer.Option(help="Maximum number of messages; 0: all.", min=0)] = 100,
    *,
    options: UndeliveredOptions,
    target: Target,
) -> None:
    """Show dead letters of a group, oldest first."""
    from duemq.cli.dead_letters import show_letters

    show_letters(name, options, count, target)


@command(dlq_app, example="dlq resend billing --all --dry-run")
def resend(
    name: Name,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    topic: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Topic to send to; default: that of the first delivery; %RETRY%GROUP: only the "
            "group gets the messages.",
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    options: UndeliveredOptions,
    target: Target,
) -> None:
    """Send dead letters to their topic with their unique ids, each once: they stay here."""
    from duemq.cli.resend import resend_messages, search_of
    from duemq.client.admin.resends import ResendOptions

    search = search_of(options, letters_of=name, everything=everything)
    resend_messages(search, ResendOptions(topic=topic), target, dry_run=dry_run, yes=yes)
