"""Recurring schedules: create, list, show, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Final, cast

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.schedules import (
    ChangedSchedule,
    Definition,
    ScheduleExists,
    ScheduleView,
    backfill_count,
)
from duemq.client.errors import Refused
from duemq.client.message import milliseconds
from duemq.http.broker_states import (
    UnknownPart,
    check_known,
    of_masters,
    page_of_brokers,
    page_values,
    unasked,
    unknown_of,
    values_of,
)
from duemq.http.endpoints import Call, Endpoint, JsonObject, invalid
from duemq.http.problems import Problem
from duemq.http.sessions import AccountSession
from duemq.net.view_names import SCHEDULES_LIST_VIEW
from duemq_common.codes import ResponseCode

PAGE_MAX: Final = 1_000
RUNS_MAX: Final = 100


class SchedulesQuery(msgspec.Struct, kw_only=True):
    """Selection of schedules.

    Attributes:
        topic: Topic of the schedules; empty: all.
        cursor: Cursor of the page before; empty: the first page.
    """

    topic: Annotated[str, Meta(max_length=127)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[str, Meta(pattern=r"^([0-9]{1,4}\.[0-9]{0,9})?$")] = ""


class PageOfSchedules(msgspec.Struct):
    """Page of schedules, broker by broker.

    Attributes:
        cursor: Cursor of the next page; null at the end. A page may be empty before the end.
        unknown: Brokers whose schedules are missing.
    """

    schedules: list[JsonObject]
    cursor: str | None
    unknown: list[UnknownPart]


class RunsQuery(msgspec.Struct):
    """Number of next times to show."""

    runs: Annotated[int, Meta(ge=0, le=RUNS_MAX)] = 5


class Backfill(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Past planned times from `since` to before `until`, whose messages are sent now.

    Attributes:
        dry_run: Whether to return the number of messages as `appended` without sending them.
    """

    since: Annotated[datetime, Meta(tz=True)]
    until: Annotated[datetime, Meta(tz=True)]
    dry_run: bool = False


async def list_schedules(call: Call) -> PageOfSchedules:
    """Return a page of the schedules."""
    query: SchedulesQuery = call.query or SchedulesQuery()

    async def part(member: BrokerMember, after: str) -> tuple[list[JsonObject], str | None]:
        fields: dict[str, object] = {"after": int(after or 0) - 1, "count": query.limit}
        view: JsonObject = await call.session.admin.view(
            member.address, SCHEDULES_LIST_VIEW, topic=query.topic, **fields
        )
        schedules = [{"broker": member.name, **each} for each in view["schedules"]]
        return schedules, None if view["after"] < 0 else f"{view['after'] + 1}"

    page = await page_of_brokers(call.session, query.cursor, part)
    schedules, unknown = page_values(page, query.cursor)
    return PageOfSchedules(schedules, page.cursor or None, unknown)


async def show_schedule(call: Call) -> ScheduleView:
    """Return a schedule with its next times."""
    query: RunsQuery = call.query or RunsQuery()
    return await existing_schedule(call.session, call.path["name"], query.runs)


async def existing_schedule(session: AccountSession, name: str, runs: int) -> ScheduleView:
    """Return a schedule with its next times.

    Raises:
        Problem: There is no such schedule, or a broker that may have it does not respond.
    """

    async def part(member: BrokerMember) -> list[ScheduleView]:
        view = await session.admin.schedule_at(member, name, runs=runs)
        return [] if view is None else [view]

    states = await of_masters(session, part)
    for state in states:
        for view in state.value or ():
            return cast("ScheduleView", view)
    values_of(states)
    check_known(unknown_of(states), name)
    raise Problem(404, "no-schedule", "There is no such schedule", name)


async def create_schedule(call: Call) -> ChangedSchedule:
    """Create a schedule; one that exists with the same definition stays as it is."""
    try:
        return await call.session.admin.create_schedule(call.body)
    except ScheduleExists as error:
        title = "The schedule exists with another definition"
        raise Problem(409, "exists", title, error.remark, code=error.code) from error


async def _changed(call: Call, change: Awaitable[ChangedSchedule]) -> ChangedSchedule:
    """Return the result of a change; a broker that is away may have the schedule."""
    try:
        return await change
    except Refused as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            check_known(await unasked(call.session), call.path["name"])
        raise


async def backfill_schedule(call: Call) -> ChangedSchedule:
    """Send the messages of past times, or return their number."""
    body: Backfill = call.body
    name = call.path["name"]
    if not body.dry_run:
        change = call.session.admin.backfill_schedule(name, body.since, body.until)
        return await _changed(call, change)
    one = await existing_schedule(call.session, name, 0)
    from_ms, until_ms = milliseconds(body.since), milliseconds(body.until)
    if not 0 <= from_ms < until_ms <= one.now_ms:
        raise invalid("a backfill needs a start and a later end, which is in the past")
    count = await asyncio.to_thread(backfill_count, one.definition, from_ms, until_ms)
    return ChangedSchedule(one.state, one.planned_ms, one.next_ms, one.revision, appended=count)


def change_of(action: str) -> Callable[[Call], Awaitable[ChangedSchedule]]:
    """Return the handler of a change of an existing schedule."""

    async def change(call: Call) -> ChangedSchedule:
        admin, name = call.session.admin, call.path["name"]
        actions = {
            "pause": admin.pause_schedule,
            "resume": admin.resume_schedule,
            "trigger": admin.trigger_schedule,
            "delete": admin.delete_schedule,
        }
        return await _changed(call, actions[action](name))

    change.__name__ = f"{action}_schedule"
    return change


CHANGES: Final = (
    ("POST", "/schedules/{name}/pause", "pause", "Cancel the next occurrence, and pause."),
    ("POST", "/schedules/{name}/resume", "resume", "Resume a paused schedule."),
    ("POST", "/schedules/{name}/trigger", "trigger", "Send the message once, now."),
    ("DELETE", "/schedules/{name}", "delete", "Delete a schedule and its next occurrence."),
)
ENDPOINTS: Final = (
    Endpoint(
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
        body=Definition,
        result=ChangedSchedule,
        problems=(409,),
    ),
    Endpoint(
        path="/schedules/{name}",
        has_slashes=True,
        handler=show_schedule,
        summary="Show a schedule and its next times.",
        tag="schedules",
        query=RunsQuery,
        result=ScheduleView,
    ),
    *[
        Endpoint(
            method=method,
            path=path,
            has_slashes=True,
            handler=change_of(action),
            summary=summary,
            tag="schedules",
            result=ChangedSchedule,
        )
        for method, path, action, summary in CHANGES
    ],
    Endpoint(
        method="POST",
        path="/schedules/{name}/backfill",
        has_slashes=True,
        handler=backfill_schedule,
        summary="Send the messages of past times, also of those that were delivered.",
        tag="schedules",
        body=Backfill,
        result=ChangedSchedule,
    ),
)
