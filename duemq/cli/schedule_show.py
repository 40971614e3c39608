"""`duemq schedule`: output, and definitions from options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import msgspec

from duemq.cli.confirmation import confirm
from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, plural, print_json, print_table, printable
from duemq.cli.schedule_options import Spec
from duemq.cli.times import duration_text, parse_time, span_ms
from duemq.client.admin.schedules import ChangedSchedule, ScheduleView
from duemq.client.message import time_of
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError
from recurring_schedules.definition import CATCH_UP_MS, Definition, InvalidDefinition, check

if TYPE_CHECKING:
    from duemq.client.admin import Admin

Change = Callable[["Admin"], Awaitable[ChangedSchedule]]
COLUMNS: Final = ("broker", "name", "topic", "times", "zone", "state", "next (UTC)", "note")


def create_schedule(name: str, spec: Spec, target: Target) -> None:
    """Create a schedule and print its first occurrence."""
    definition = _definition(name, spec)
    try:
        check(definition)
    except InvalidDefinition as error:
        raise UsageError(str(error)) from None
    result = target.ask(lambda admin: admin.create_schedule(definition))
    if target.as_json:
        print_json(msgspec.to_builtins(result))
        return
    verb = "created" if result.created else "exists with this definition"
    console().print(f"schedule {printable(name)} {verb}{_next_of(result)}", soft_wrap=True)


def change_schedule(name: str, action: Change, target: Target) -> None:
    """Change a schedule and print its state."""
    result = target.ask(action)
    if target.as_json:
        print_json(msgspec.to_builtins(result))
    elif result.appended >= 0:
        count = result.appended
        console().print(f"{count} {plural(count, 'message')} sent")
    else:
        done = f"schedule {printable(name)} is {result.state}{_next_of(result)}"
        console().print(done, soft_wrap=True)


def delete_schedule(name: str, target: Target, *, dry_run: bool, yes: bool) -> None:
    """Delete a schedule after a confirmation; with `dry_run`, print what would be deleted."""
    if dry_run or not yes:
        schedule = target.ask(lambda admin: admin.schedule(name, runs=1))
        effect = f"{_times_text(schedule.definition)}, topic {schedule.definition.topic}"
        if dry_run:
            _print_dry_run(schedule, effect, target)
            return
        action = f"Delete schedule {name} ({effect})"
        confirm(lambda: action, f"schedule delete {name} deletes {effect}")
    change_schedule(name, lambda admin: admin.delete_schedule(name), target)


def _print_dry_run(schedule: ScheduleView, effect: str, target: Target) -> None:
    if target.as_json:
        print_json({"dry_run": True, "deleted": msgspec.to_builtins(schedule)})
    else:
        text = f"schedule {schedule.definition.name} would be deleted: {effect}"
        console().print(printable(text), soft_wrap=True, markup=False)


def backfill_schedule(name: str, from_time: str, to_time: str, target: Target) -> None:
    """Send the messages of past times."""
    since, until = time_of(_time_ms(from_time)), time_of(_time_ms(to_time))
    change_schedule(name, lambda admin: admin.backfill_schedule(name, since, until), target)


def show_list(topic: str, count: int, target: Target) -> None:
    """Print the schedules of every broker."""
    rows = target.ask(lambda admin: admin.schedules(topic, count=count))
    if target.as_json:
        print_json(msgspec.to_builtins(rows))
        return
    cells = [
        (
            row.broker,
            row.definition.name,
            row.definition.topic,
            _times_text(row.definition),
            row.definition.zone,
            _shown_state(row),
            _next_text(row),
            row.note,
        )
        for row in rows
    ]
    title = f"{len(rows):,} {plural(len(rows), 'schedule')}"
    print_table(title, COLUMNS, cells, optional=("broker", "zone", "note"))


def show_schedule(name: str, runs: int, target: Target) -> None:
    """Print one schedule and its next times."""
    schedule = target.ask(lambda admin: admin.schedule(name, runs=runs))
    if target.as_json:
        print_json(msgspec.to_builtins(schedule))
        return
    definition, out = schedule.definition, console()
    zone_name = definition.zone
    facts = {
        "schedule": name,
        "broker": schedule.broker,
        "topic": definition.topic,
        "times": f"{_times_text(definition)} {zone_name}",
        "state": _shown_state(schedule),
        "note": schedule.note,
        "next": _next_text(schedule),
    }
    width = max(map(len, facts))
    for label, value in facts.items():
        if value:
            out.print(f"{label:{width}}  {printable(value)}", soft_wrap=True, markup=False)
    zone = ZoneInfo(zone_name)
    rows = [
        (
            datetime.fromtimestamp(ms / 1_000, zone).strftime("%a %Y-%m-%d %H:%M:%S%z"),
            table_time(ms),
        )
        for ms in schedule.runs
    ]
    print_table("next times", (zone_name, "UTC"), rows, nothing="no next times")


# -- texts ------------------------------------------------------------------------------------


def _shown_state(schedule: ScheduleView) -> str:
    return "ended" if schedule.has_ended else schedule.state


def _next_of(result: ChangedSchedule) -> str:
    """Return the time of the next occurrence after a change, as the end of a sentence."""
    next_ms = result.planned_ms or result.next_ms
    return f"; next: {table_time(next_ms)} UTC" if result.state == "active" and next_ms else ""


def _next_text(schedule: ScheduleView) -> str:
    """Return the planned time of the pending occurrence."""
    if schedule.state != "active" or schedule.has_ended:
        return ""
    return table_time(schedule.planned_ms or schedule.next_ms)


def _times_text(definition: Definition) -> str:
    """Return the interval or the expression."""
    every_ms = definition.every_ms
    if every_ms:
        return f"every {duration_text(every_ms)}"
    days = f", every {definition.every_days} days" if definition.every_days else ""
    return definition.cron + days


def _definition(name: str, spec: Spec) -> Definition:
    properties = {}
    for text in spec.properties or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--property {text}: must be NAME=VALUE")
        properties[key] = value
    return Definition(
        name=name,
        topic=spec.topic,
        cron=spec.cron,
        zone=spec.zone,
        every_ms=_duration_ms("--every", spec.every),
        every_days=spec.every_days,
        phase_ms=_duration_ms("--phase", spec.phase),
        exclude=tuple(spec.exclude or ()),
        start_ms=_time_ms(spec.start) if spec.start else 0,
        end_ms=_time_ms(spec.end) if spec.end else 0,
        jitter_ms=_duration_ms("--jitter", spec.jitter),
        catch_up_ms=_duration_ms("--catch-up", spec.catch_up) if spec.catch_up else CATCH_UP_MS,
        overlap=spec.overlap,
        body=spec.body.encode(),
        tags=spec.tag,
        keys=spec.key,
        properties=properties,
    )


def _duration_ms(option: str, text: str) -> int:
    if (span := span_ms(text) if text else 0) is None:
        raise UsageError(f"{option} {text}: give a duration such as 90s or 1h30m")
    return span


def _time_ms(text: str) -> int:
    """Return a time in ms; a date without a zone is refused, because schedules have zones."""
    try:
        if not text.isdigit() and datetime.fromisoformat(text).tzinfo is None:
            raise UsageError(f"the time {text} has no zone: give {text}Z, or {text}+01:00")
    except ValueError:
        pass
    return parse_time(text, SystemClock().now_ms())
