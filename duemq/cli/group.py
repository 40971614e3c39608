"""`duemq group` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.admin_options import GroupOptions, Update
from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import Brokers, DryRun, Target, Yes

group_app = group()
Name = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.", show_default=False)]


@command(group_app, "list", example="group list")
def list_groups(
    no_lag: Annotated[
        bool, typer.Option("--no-lag", help="Names only: one request to each broker.")
    ] = False,
    *,
    target: Target,
) -> None:
    """Show the consumer groups with members, rate and lag."""
    from duemq.cli.group_show import show_groups

    show_groups(target, with_lag=not no_lag)


@command(group_app, example="group show billing")
def show(name: Name, *, target: Target) -> None:
    """Show a group: members, subscriptions, lag of each queue with the last consumed message."""
    from duemq.cli.group_show import show_group

    show_group(name, target)


@command(group_app, example="group create billing --retries 5")
def create(
    name: Name,
    update: Update = False,
    brokers: Brokers = None,
    dry_run: DryRun = False,
    *,
    options: GroupOptions,
    target: Target,
) -> None:
    """Create a group at all brokers; a group with the same settings stays as it is."""
    from duemq.cli.group_change import group_kind
    from duemq.cli.settings_change import change_settings

    kind = group_kind(options)
    change_settings(kind, name, brokers or [], target, update=update, dry_run=dry_run)


@command(group_app, example="group delete billing --dry-run")
def delete(
    name: Name,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Delete its dead letters, too.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Delete a group with its offsets and its retry topic; its dead letters stay."""
    from duemq.cli.group_change import delete_group

    delete_group(name, target, dead_letters=dead_letters, dry_run=dry_run, yes=yes)


@command(group_app, example="group reset billing orders --to 2026-11-22T10:00 --dry-run")
def reset(
    name: Name,
    topic: Annotated[str, typer.Argument(help="Topic.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TIME",
            help="earliest, latest, or the store time of the first message to consume: "
            "2026-11-22T10:00 (UTC), -2h, or ms.",
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    *,
    target: Target,
) -> None:
    """Set the offsets of a group in a topic, with or without members."""
    from duemq.cli.group_change import reset_group

    reset_group(name, topic, to, target, dry_run=dry_run, yes=yes)
