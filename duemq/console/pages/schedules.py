"""Recurring schedules: one of them with its next runs, the preview of a new one, and changes.

/new-schedule --form--> preview of the runs --confirmed--> created
/schedules/NAME --form--> /schedule-changes: what will happen --confirmed--> result
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from duemq.client.admin.schedules import (
    ScheduleView,
    backfill_count,
    definition_from,
    next_runs,
)
from duemq.client.message import time_of
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.message import state_cell
from duemq.http.endpoints import invalid
from duemq.http.problems import Problem
from duemq.http.schedules import existing_schedule
from duemq_common.charts import MS_MAX
from duemq_common.clock import SystemClock

RUNS: Final = 5
NO_TIME: Final = -1
CHANGES: Final = ("pause", "resume", "trigger", "backfill", "delete")
FIELDS: Final = (
    ("name", "text", "column.name"),
    ("topic", "text", "column.topic"),
    ("cron", "text", "schedule.cron"),
    ("zone", "text", "column.zone"),
    ("every_s", "number", "schedule.every_s"),
    ("start", "datetime-local", "schedule.start"),
    ("end", "datetime-local", "schedule.end"),
    ("body", "text", "column.body"),
    ("tags", "text", "column.tag"),
    ("keys", "text", "column.keys"),
)


async def schedule(call: PageCall) -> PageContent:
    """Return the page of a schedule: its definition, next runs, and forms to change it."""
    one = await existing_schedule(call.session, call.path["name"], RUNS)
    blocks: list[object] = [_facts(one), _runs(one.definition.zone, one.runs)]
    if call.login.role >= LoginRole.OPERATOR:
        blocks[1:1] = _change_forms(one)
    return PageContent(Key("column.schedule"), blocks, one.definition.name)


async def new(call: PageCall) -> PageContent:
    """Return the form of a new schedule, and if it is filled in, its next runs to confirm."""
    values = {name: call.query.get(name, "") for name, _, _ in FIELDS}
    values["zone"] = values["zone"] or "UTC"
    fields = [Field(name, Key(key), values[name], kind) for name, kind, key in FIELDS]
    title = Key("schedule.new")
    blocks: list[object] = [Form(Key("schedule.preview"), "/new-schedule", fields, title=title)]
    if values["name"]:
        try:
            definition = definition_from(_definition_fields(call))
            now_ms = SystemClock().now_ms()
            runs = await asyncio.to_thread(next_runs, definition, now_ms, RUNS)
        except ValueError as error:
            blocks.insert(0, Notice(Key("schedule.invalid"), str(error), "bad"))
        else:
            hidden = [(name, call.query.get(name, "")) for name, _, _ in FIELDS]
            label, confirm = Key("schedule.create"), Key("decision.confirm")
            blocks += [
                _runs(definition.zone, runs),
                Form(label, "/new-schedule", [], "post", hidden, confirm),
            ]
    return PageContent(title, blocks)


async def create(call: PageCall) -> PageContent:
    """Create a schedule, and go to its page."""
    try:
        definition = definition_from(_definition_fields(call))
        await call.session.admin.create_schedule(definition)
    except ValueError as error:
        raise invalid(str(error)) from None
    return PageContent(Key("schedule.new"), location=schedule_link(definition.name))


async def confirmation(call: PageCall) -> PageContent:
    """Return what a change will do, with the form that confirms it."""
    change = _change(call)
    one = await existing_schedule(call.session, call.query.get("name", ""), RUNS)
    title = Key(f"schedule.{change}")
    blocks: list[object] = [Notice(Key(f"schedule.{change}_text")), _facts(one)]
    hidden = [("change", change), ("name", one.definition.name), ("revision", str(one.revision))]
    if change == "pause":
        hidden.append(("note", call.query.get("note", "")))
        rows = [[Cell("schedule.note", "key"), Cell(call.query.get("note", ""), "words")]]
        blocks.append(Table(title, ("name", "value"), rows))
    elif change == "backfill":
        from_ms, until_ms = _range(call)
        if until_ms > one.now_ms:
            raise invalid("the end of a backfill is in the future")
        try:
            count = await asyncio.to_thread(backfill_count, one.definition, from_ms, until_ms)
        except ValueError as error:
            raise invalid(str(error)) from None
        hidden += [("from", str(from_ms)), ("until", str(until_ms)), ("count", str(count))]
        rows = [
            [Cell("schedule.from", "key"), Cell(from_ms, "time")],
            [Cell("schedule.until", "key"), Cell(until_ms, "time")],
            [Cell("column.messages", "key"), Cell(count, "number")],
        ]
        blocks.append(Table(title, ("name", "value"), rows))
    confirm = Key("decision.confirm")
    blocks.append(Form(title, "/schedule-changes", [], "post", hidden, confirm))
    return PageContent(title, blocks, one.definition.name)


async def act(call: PageCall) -> PageContent:
    """Change a schedule, unless it has changed since the confirmation."""
    change, name, admin = _change(call), call.query.get("name", ""), call.session.admin
    one = await existing_schedule(call.session, name, 1)
    if one.revision != call.number("revision", NO_TIME):
        title, detail = "The schedule has changed", "open its page again, and confirm again"
        raise Problem(409, "changed", title, detail)
    match change:
        case "pause":
            result = await admin.pause_schedule(name, call.query.get("note", ""))
        case "resume":
            result = await admin.resume_schedule(name)
        case "trigger":
            result = await admin.trigger_schedule(name)
        case "backfill":
            from_ms, until_ms = _range(call)
            result = await admin.backfill_schedule(name, time_of(from_ms), time_of(until_ms))
        case _:
            await admin.delete_schedule(name)
            return PageContent(Key("nav.schedules"), location="/schedules")
    if result.appended < 0:
        return PageContent(Key("nav.schedules"), location=schedule_link(name))
    notice = Notice(Key("schedule.sent"), f"{result.appended:,}", "good")
    rows = [[Cell(name, link=schedule_link(name)), Cell(one.definition.topic)]]
    table = Table(Key("column.schedule"), ("schedule", "topic"), rows)
    return PageContent(Key(f"schedule.{change}"), [notice, table], name)


def schedule_link(name: str) -> str:
    """Return the link to the page of a schedule."""
    return f"/schedules/{quote(name, safe='')}"


def _change(call: PageCall) -> str:
    change = call.query.get("change", "")
    if change not in CHANGES:
        raise invalid("the change is one of: " + ", ".join(CHANGES))
    return change


def _range(call: PageCall) -> tuple[int, int]:
    from_ms, until_ms = call.time_ms("from", NO_TIME), call.time_ms("until", NO_TIME)
    if not 0 <= from_ms < until_ms <= MS_MAX:
        raise invalid("a backfill needs its first time and a later end")
    return from_ms, until_ms


def _definition_fields(call: PageCall) -> dict[str, object]:
    """Return the attributes of a definition in a form."""
    fields: dict[str, object] = {
        name: call.query.get(name, "").strip() for name in ("name", "topic", "cron", "tags", "keys")
    }
    fields["zone"] = call.query.get("zone", "").strip() or "UTC"
    fields["every_ms"] = call.number("every_s", 0) * 1_000
    fields["start_ms"], fields["end_ms"] = call.time_ms("start", 0), call.time_ms("end", 0)
    return fields | {"body": call.query.get("body", "").encode()}


def _facts(one: ScheduleView) -> Table:
    definition = one.definition
    facts: Iterable[tuple[str, Cell, bool]] = (
        ("column.state", state_cell(one.state), True),
        ("schedule.note", Cell(one.note, "words"), bool(one.note)),
        ("column.topic", Cell(definition.topic), True),
        ("schedule.cron", Cell(definition.cron, "code"), bool(definition.cron)),
        ("column.zone", Cell(definition.zone), True),
        ("schedule.every", Cell(definition.every_ms, "ms"), bool(definition.every_ms)),
        ("schedule.every_days", Cell(definition.every_days, "number"), bool(definition.every_days)),
        ("schedule.exclude", Cell("; ".join(definition.exclude)), bool(definition.exclude)),
        ("schedule.start", Cell(definition.start_ms, "time"), bool(definition.start_ms)),
        ("schedule.end", Cell(definition.end_ms, "time"), bool(definition.end_ms)),
        ("schedule.jitter", Cell(definition.jitter_ms, "ms"), bool(definition.jitter_ms)),
        ("schedule.overlap", Cell(definition.overlap, "code"), True),
        ("column.planned", Cell(one.planned_ms, "time"), True),
        ("column.next_planned", Cell(one.next_ms, "time"), True),
        ("column.tag", Cell(definition.tags), bool(definition.tags)),
        ("column.keys", Cell(definition.keys), bool(definition.keys)),
        ("column.body", Cell(len(definition.body), "bytes"), True),
        ("column.broker", Cell(one.broker), True),
    )
    rows = [[Cell(key, "key"), cell] for key, cell, is_shown in facts if is_shown]
    return Table(Key("message.facts"), ("name", "value"), rows)


def _runs(zone_name: str, runs: Sequence[int]) -> Table:
    """Return the next runs in the zone of the schedule and in UTC."""
    zone = ZoneInfo(zone_name)
    rows = [[Cell(_local(ms, zone)), Cell(ms, "time")] for ms in runs]
    return Table(Key("schedule.runs"), ("in_zone", "in_utc"), rows, Key("schedule.no_runs"))


def _local(ms: int, zone: ZoneInfo) -> str:
    if not 0 <= ms <= MS_MAX:
        return f"{ms} ms"
    return f"{datetime.fromtimestamp(ms // 1_000, UTC).astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


def _change_forms(one: ScheduleView) -> list[Form]:
    """Return the forms that lead to the confirmation of a change."""
    name = ("name", one.definition.name)

    def form(change: str, fields: Sequence[Field] = ()) -> Form:
        hidden = [name, ("change", change)]
        return Form(Key(f"schedule.{change}"), "/schedule-changes", fields, hidden=hidden)

    note = Field("note", Key("schedule.note"))
    times = [
        Field("from", Key("schedule.from"), type="datetime-local", required=True),
        Field("until", Key("schedule.until"), type="datetime-local", required=True),
    ]
    first = form("resume") if one.state == "paused" else form("pause", [note])
    return [first, form("trigger"), form("backfill", times), form("delete")]
