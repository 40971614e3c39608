"""`duemq schedule` commands; each imports its modules when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from duemq.cli.command import command
from duemq.cli.groups import group
from duemq.cli.options import DryRun, Target, Yes
from duemq.cli.schedule_options import Spec

schedule_app = group()

Name = Annotated[str, typer.Argument(help="Name of the schedule.")]
Note = Annotated[str, typer.Option(metavar="TEXT", help="Note that `list` and `show` print.")]


@command(
    schedule_app,
    example='schedule create report --cron "0 9 * * MON" --zone Europe/Berlin --topic T --body x',
)
def create(name: Name, *, spec: Spec, target: Target) -> None:
    """Create a schedule. The same definition again changes nothing; another one is refused."""
    from duemq.cli.schedule_show import create_schedule

    create_schedule(name, spec, target)


@command(schedule_app, "list", example="schedule list --topic T")
def list_schedules(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Only schedules of it.")] = "",
    count: Annotated[int, typer.Option(help="Maximum number; 0: all.", min=0)] = 100,
    *,
    target: Target,
) -> None:
    """List schedules with their state and next occurrence."""
    from duemq.cli.schedule_show import show_list

    show_list(topic, count, target)


@command(schedule_app, example="schedule show report --runs 10")
def show(
    name: Name,
    runs: Annotated[int, typer.Option(help="Number of next times.", min=1, max=100)] = 5,
    *,
    target: Target,
) -> None:
    """Show a schedule and its next times, in its zone and in UTC."""
    from duemq.cli.schedule_show import show_schedule

    show_schedule(name, runs, target)


@command(schedule_app, example='schedule pause report --note "until the migration is done"')
def pause(name: Name, note: Note = "", *, target: Target) -> None:
    """Stop a schedule; its pending occurrence is cancelled."""
    from duemq.cli.schedule_show import change_schedule

    change_schedule(name, lambda admin: admin.pause_schedule(name, note), target)


@command(schedule_app, example="schedule resume report")
def resume(name: Name, note: Note = "", *, target: Target) -> None:
    """Continue a paused schedule with its next time; times of the pause are skipped."""
    from duemq.cli.schedule_show import change_schedule

    change_schedule(name, lambda admin: admin.resume_schedule(name, note), target)


@command(schedule_app, example="schedule trigger report")
def trigger(name: Name, *, target: Target) -> None:
    """Send a message of the schedule now, also while it is paused."""
    from duemq.cli.schedule_show import change_schedule

    change_schedule(name, lambda admin: admin.trigger_schedule(name), target)


@command(
    schedule_app, example="schedule backfill report --from 2026-11-01T00:00Z --to 2026-11-08T00:00Z"
)
def backfill(
    name: Name,
    from_time: Annotated[str, typer.Option("--from", metavar="TIME", help="First time.")],
    to_time: Annotated[
        str, typer.Option("--to", metavar="TIME", help="End, exclusive; default: now.")
    ] = "now",
    *,
    target: Target,
) -> None:
    """Send the messages of past times now, each time that the command runs."""
    from duemq.cli.schedule_show import backfill_schedule

    backfill_schedule(name, from_time, to_time, target)


@command(schedule_app, example="schedule delete report")
def delete(name: Name, dry_run: DryRun = False, yes: Yes = False, *, target: Target) -> None:
    """Delete a schedule; its pending occurrence is cancelled."""
    from duemq.cli.schedule_show import delete_schedule

    delete_schedule(name, target, dry_run=dry_run, yes=yes)
