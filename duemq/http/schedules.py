"""Recurring schedules: create, list, show, pause, resume, trigger, delete.

A schedule is on one broker, among those with queues of its topic: the one that the name selects.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client import Refused
from duemq.client.routes import bytes_of
from duemq.http.endpoints import Call, Endpoint, JsonObject, invalid
from duemq.http.pending import TimeMs
from duemq.http.problems import Problem
from duemq.http.sent import Topic
from duemq.net.codes import RequestCode, ResponseCode

LIST_VIEW: Final = "recurring_schedules.list"
SHOW_VIEW: Final = "recurring_schedules.show"
NAME_MAX: Final = 200
PAGE_MAX: Final = 1_000
RUNS_MAX: Final = 100
YEAR_MS: Final = 365 * 86_400_000

DurationMs = Annotated[int, Meta(ge=0, le=10 * YEAR_MS)]


class NewSchedule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Schedule to create: with `cron`, or with `every_ms`.

    Attributes:
        cron: Cron expression of 5 or 6 fields, or an alias such as `@daily`.
        zone: IANA zone of `cron` and of dates in `exclude`.
        every_ms: Interval.
        phase_ms: Offset of the interval's grid from the epoch.
        exclude: Dates and cron expressions that suppress occurrences.
        start_ms, end_ms: First and last time of an occurrence; 0: the creation, never.
        jitter_ms: Maximum delay of an occurrence after its planned time.
        catch_up_ms: Maximum lateness of an occurrence; later ones are skipped.
        overlap: Whether `all` overdue occurrences are delivered, or only the `latest`.
        body: Body of each message, as Base64.
        tags, keys: Tag and keys of each message, keys separated by blanks.
    """

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    topic: Topic
    cron: str = ""
    zone: str = "UTC"
    every_ms: DurationMs = 0
    phase_ms: DurationMs = 0
    exclude: list[str] = []
    start_ms: TimeMs = 0
    end_ms: TimeMs = 0
    jitter_ms: DurationMs = 0
    catch_up_ms: DurationMs = YEAR_MS
    overlap: str = "all"
    body: bytes = b""
    tags: str = ""
    keys: str = ""
    properties: dict[str, str] = {}


class ScheduleChange(msgspec.Struct, kw_only=True):
    """Result of a change.

    Attributes:
        planned_ms: Planned time of the pending occurrence, in ms since the epoch.
        created: Whether the schedule is new; false: it existed with this definition.
        appended: Number of messages that a trigger sent; -1: no trigger.
    """

    state: str = ""
    planned_ms: int = 0
    next_ms: int = 0
    revision: int = 0
    created: bool = False
    appended: int = -1


class SchedulesQuery(msgspec.Struct, kw_only=True):
    """Selection of schedules.

    Attributes:
        topic: Topic of the schedules; empty: all.
        cursor: Cursor of the page before; empty: the first page.
    """

    topic: Annotated[str, Meta(max_length=127)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[str, Meta(pattern=r"^([0-9]{1,4}\.[0-9]{1,9})?$")] = ""


class PageOfSchedules(msgspec.Struct):
    """Page of schedules, broker by broker.

    Attributes:
        cursor: Cursor of the next page; null at the end.
    """

    schedules: list[JsonObject]
    cursor: str | None


class RunsQuery(msgspec.Struct):
    """Number of next times to show."""

    runs: Annotated[int, Meta(ge=0, le=RUNS_MAX)] = 5


async def list_schedules(call: Call) -> PageOfSchedules:
    """Return a page of the schedules."""
    query: SchedulesQuery = call.query or SchedulesQuery()
    masters = await call.session.masters()
    number, _, after = query.cursor.partition(".")
    index = int(number or 0)
    if index >= len(masters):
        raise invalid("the cursor is not one of this list")
    name, address = masters[index]
    page: JsonObject = await call.session.admin.view(
        address, LIST_VIEW, after=int(after or 0) - 1, count=query.limit, topic=query.topic
    )
    following: str | None = None
    if page["after"] >= 0:
        following = f"{index}.{page['after'] + 1}"
    elif index + 1 < len(masters):
        following = f"{index + 1}.0"
    return PageOfSchedules([{"broker": name, **each} for each in page["schedules"]], following)


async def show_schedule(call: Call) -> JsonObject:
    """Return a schedule with its next times."""
    query: RunsQuery = call.query or RunsQuery()
    _, schedule = await _located(call, call.path["name"], query.runs)
    return schedule


async def create_schedule(call: Call) -> ScheduleChange:
    """Create a schedule; one that exists with the same definition stays as it is."""
    new: NewSchedule = call.body
    if bool(new.cron) == bool(new.every_ms):
        raise invalid("give either cron or every_ms")
    for _, address in await call.session.masters():
        other = await _at_broker(call, address, new.name, 1)
        if other is not None and other["definition"]["topic"] != new.topic:
            title = "The schedule exists with another definition"
            raise Problem(409, "exists", title, new.name)
    route = await call.session.client.route(new.topic)
    addresses = sorted({route.master(queue.broker_name) for queue in route.write_queues})
    if not addresses:
        raise Problem(404, "no-route", "No broker has the topic", new.topic)
    address = addresses[zlib.crc32(new.name.encode()) % len(addresses)]
    return await _change(call, address, "create", new.topic, body=msgspec.json.encode(new))


def change_of(action: str) -> Callable[[Call], Awaitable[ScheduleChange]]:
    """Return the handler of a change of an existing schedule."""

    async def change(call: Call) -> ScheduleChange:
        name = call.path["name"]
        address, schedule = await _located(call, name, 1)
        return await _change(call, address, action, schedule["definition"]["topic"], name=name)

    change.__name__ = f"{action}_schedule"
    return change


async def _change(
    call: Call, address: str, action: str, topic: str, *, name: str = "", body: bytes = b""
) -> ScheduleChange:
    fields = {"action": action, "topic": topic, "name": name or None}
    code = RequestCode.CHANGE_SCHEDULE
    response = await call.session.admin.ask_broker(address, code, fields, body, feature="schedules")
    return msgspec.json.decode(bytes_of(response), type=ScheduleChange)


async def _located(call: Call, name: str, runs: int) -> tuple[str, JsonObject]:
    """Return the address of the broker of a schedule, and the schedule."""
    for broker, address in await call.session.masters():
        schedule = await _at_broker(call, address, name, runs)
        if schedule is not None:
            return address, {"broker": broker, **schedule}
    raise Problem(404, "no-schedule", "There is no such schedule", name)


async def _at_broker(call: Call, address: str, name: str, runs: int) -> JsonObject | None:
    try:
        return await call.session.admin.view(address, SHOW_VIEW, schedule=name, runs=runs)
    except Refused as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise


CHANGES: Final = (
    ("POST", "/schedules/{name}/pause", "pause", "Cancel the next occurrence, and pause."),
    ("POST", "/schedules/{name}/resume", "resume", "Resume a paused schedule."),
    ("POST", "/schedules/{name}/trigger", "trigger", "Send the message once, now."),
    ("DELETE", "/schedules/{name}", "delete", "Delete a schedule and its next occurrence."),
)
ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/schedules",
        handler=list_schedules,
        summary="List recurring schedules.",
        tag="schedules",
        query=SchedulesQuery,
        result=PageOfSchedules,
    ),
    Endpoint(
        method="POST",
        path="/schedules",
        handler=create_schedule,
        summary="Create a recurring schedule; creating it again changes nothing.",
        tag="schedules",
        body=NewSchedule,
        result=ScheduleChange,
        problems=(409,),
    ),
    Endpoint(
        method="GET",
        path="/schedules/{name}",
        handler=show_schedule,
        summary="Show a schedule and its next times.",
        tag="schedules",
        query=RunsQuery,
        result=JsonObject,
    ),
    *[
        Endpoint(
            method=method,
            path=path,
            handler=change_of(action),
            summary=summary,
            tag="schedules",
            result=ScheduleChange,
        )
        for method, path, action, summary in CHANGES
    ],
)
