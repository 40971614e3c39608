"""`duemq schedule`: requests and output.

A schedule is on one broker, among those with queues of its topic: the one that the name selects.
"""

from __future__ import annotations

import asyncio
import zlib
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from duemq.cli.client import Cluster, brokers_of, not_a_broker
from duemq.cli.messages import table_time
from duemq.cli.options import Target
from duemq.cli.output import console, plural, print_json, print_table, printable
from duemq.cli.schedule_options import Spec
from duemq.cli.times import duration_text, parse_time
from duemq.client.routes import WRITE, bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import SystemClock
from duemq_common.errors import RequestError, UsageError
from recurring_schedules.definition import CATCH_UP_MS, Definition, InvalidDefinition, check

LIST_VIEW: Final = "recurring_schedules.list"
SHOW_VIEW: Final = "recurring_schedules.show"
PAGE_COUNT: Final = 1_000
COLUMNS: Final = ("broker", "name", "topic", "times", "zone", "state", "next (UTC)", "note")


class ChangedSchedule(msgspec.Struct, omit_defaults=True):
    """Response to a change."""

    state: str = ""
    planned_ms: int = 0
    next_ms: int = 0
    revision: int = 0
    created: bool = False
    appended: int = -1


class ScheduleView(msgspec.Struct, kw_only=True):
    """Schedule as views return it."""

    definition: Definition
    state: str
    note: str
    revision: int
    planned_ms: int
    next_ms: int
    now_ms: int
    runs: tuple[int, ...] = ()
    broker: str = ""

    @property
    def shown_state(self) -> str:
        """State, and whether the schedule has ended."""
        if self.state == "active" and not self.next_ms and self.planned_ms < self.now_ms:
            return "ended"
        return self.state

    @property
    def next_text(self) -> str:
        """Planned time of the pending occurrence."""
        if self.shown_state != "active":
            return ""
        return table_time(self.planned_ms if self.planned_ms > self.now_ms else self.next_ms)

    @property
    def times_text(self) -> str:
        """Interval or expression."""
        every_ms = self.definition.every_ms
        return f"every {duration_text(every_ms)}" if every_ms else self.definition.cron


class SchedulePage(msgspec.Struct):
    """Page of the list."""

    schedules: list[ScheduleView]
    after: int


def create_schedule(name: str, spec: Spec, target: Target) -> None:
    """Create a schedule and print its first occurrence."""
    definition = _definition(name, spec)
    try:
        check(definition)
    except InvalidDefinition as error:
        raise UsageError(str(error)) from None
    result = asyncio.run(_create(definition, target))
    if target.as_json:
        print_json(msgspec.to_builtins(result))
        return
    verb = "created" if result.created else "exists with this definition"
    pending = table_time(result.planned_ms)
    console().print(f"schedule {printable(name)} {verb}; next: {pending} UTC", soft_wrap=True)


async def _create(definition: Definition, target: Target) -> ChangedSchedule:
    async with target.cluster() as cluster:
        for _, address in await brokers_of(cluster):
            other = await _find(cluster, address, definition.name)
            if other is not None and other.definition.topic != definition.topic:
                text = f"schedule {definition.name} exists with another definition"
                raise RequestError(ResponseCode.INVALID_PARAMETER, text)
        queues = await cluster.queues(definition.topic, permission=WRITE)
        addresses = sorted({queue.address for queue in queues})
        address = addresses[zlib.crc32(definition.name.encode()) % len(addresses)]
        fields: dict[str, object] = {"action": "create", "topic": definition.topic}
        return await _change(cluster, address, fields, msgspec.json.encode(definition))


async def _change(
    cluster: Cluster, address: str, fields: dict[str, object], body: bytes = b""
) -> ChangedSchedule:
    response = await cluster.call(
        address, RequestCode.CHANGE_SCHEDULE, fields, body, unsupported=not_a_broker(address)
    )
    return msgspec.json.decode(bytes_of(response), type=ChangedSchedule)


async def _find(cluster: Cluster, address: str, name: str, runs: int = 1) -> ScheduleView | None:
    try:
        view = await cluster.view(address, SHOW_VIEW, schedule=name, runs=runs)
    except RequestError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise
    return msgspec.convert(view, ScheduleView)


async def _find_anywhere(cluster: Cluster, name: str, runs: int = 1) -> tuple[str, ScheduleView]:
    for _, address in await brokers_of(cluster):
        schedule = await _find(cluster, address, name, runs)
        if schedule is not None:
            return address, schedule
    raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"there is no schedule {name!r}")


def change_schedule(name: str, action: str, target: Target, **more: str | int) -> None:
    """Change a schedule and print its state."""
    result = asyncio.run(_find_and_change(name, action, target, more))
    if target.as_json:
        print_json(msgspec.to_builtins(result))
    elif result.appended >= 0:
        count = result.appended
        console().print(f"{count} {plural(count, 'message')} sent")
    else:
        done = f"schedule {printable(name)} is {result.state}"
        if result.state == "active":
            done += f"; next: {table_time(result.planned_ms)} UTC"
        console().print(done, soft_wrap=True)


async def _find_and_change(
    name: str, action: str, target: Target, more: dict[str, str | int]
) -> ChangedSchedule:
    async with target.cluster() as cluster:
        address, schedule = await _find_anywhere(cluster, name)
        topic = schedule.definition.topic
        fields: dict[str, object] = {"action": action, "name": name, "topic": topic, **more}
        return await _change(cluster, address, fields)


def backfill_schedule(name: str, from_time: str, to_time: str, target: Target) -> None:
    """Send the messages of past times."""
    change_schedule(
        name, "backfill", target, from_ms=_time_ms(from_time), until_ms=_time_ms(to_time)
    )


def show_list(topic: str, count: int, target: Target) -> None:
    """Print the schedules of every broker."""
    rows = asyncio.run(_list(topic, count, target))
    if target.as_json:
        print_json(msgspec.to_builtins(rows))
        return
    cells = [
        (
            row.broker,
            row.definition.name,
            row.definition.topic,
            row.times_text,
            row.definition.zone,
            row.shown_state,
            row.next_text,
            row.note,
        )
        for row in rows
    ]
    title = f"{len(rows):,} {plural(len(rows), 'schedule')}"
    print_table(title, COLUMNS, cells, optional=("broker", "zone", "note"))


async def _list(topic: str, count: int, target: Target) -> list[ScheduleView]:
    rows: list[ScheduleView] = []
    async with target.cluster() as cluster:
        for broker, address in await brokers_of(cluster):
            after, is_last = -1, False
            while not is_last and not 0 < count <= len(rows):
                fields = {"after": after, "count": PAGE_COUNT, "topic": topic}
                view = await cluster.view(address, LIST_VIEW, **fields)
                page = msgspec.convert(view, SchedulePage)
                for row in page.schedules:
                    row.broker = broker or address
                rows += page.schedules
                after, is_last = page.after, page.after < 0
    return rows[:count] if count else rows


def show_schedule(name: str, runs: int, target: Target) -> None:
    """Print one schedule and its next times."""
    schedule = asyncio.run(_show(name, runs, target))
    if target.as_json:
        print_json(msgspec.to_builtins(schedule))
        return
    definition, out = schedule.definition, console()
    zone_name = definition.zone
    facts = {
        "schedule": name,
        "broker": schedule.broker,
        "topic": definition.topic,
        "times": f"{schedule.times_text} {zone_name}",
        "state": schedule.shown_state,
        "note": schedule.note,
        "pending": schedule.next_text,
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
    print_table("next times", (zone_name, "UTC"), rows)


async def _show(name: str, runs: int, target: Target) -> ScheduleView:
    async with target.cluster() as cluster:
        address, schedule = await _find_anywhere(cluster, name, runs)
        schedule.broker = address
        return schedule


# -- texts ------------------------------------------------------------------------------------


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
    if not text:
        return 0
    try:
        return parse_time(f"+{text}", 0)
    except UsageError:
        raise UsageError(f"{option} {text}: give a duration such as 90s or 1h30m") from None


def _time_ms(text: str) -> int:
    """Return a time in ms; a date without a zone is refused, because schedules have zones."""
    try:
        if not text.isdigit() and datetime.fromisoformat(text).tzinfo is None:
            raise UsageError(f"the time {text} has no zone: give {text}Z, or {text}+01:00")
    except ValueError:
        pass
    return parse_time(text, SystemClock().now_ms())
