"""Topics, consumer groups with their lag, and recurring schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.groups import GroupProgress
from duemq.client.errors import ClientError
from duemq.client.message import milliseconds
from duemq.console.blocks import Cell, Form, Key, Notice, PageContent, Table, Tile, Tiles
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.message import state_cell
from duemq.http.endpoints import Call, JsonObject
from duemq.http.registry import NamesQuery, list_groups, list_topics, show_group
from duemq.http.schedules import SchedulesQuery, list_schedules
from duemq_common.errors import RequestError

PAGE_SIZE: Final = 100


async def topics(call: PageCall) -> PageContent:
    """Return a page of the topics."""
    page = await list_topics(_names_call(call))
    rows = []
    for topic in page.topics:
        each = topic.settings.values()
        rows.append(
            [
                Cell(topic.name),
                Cell(topic.kind),
                Cell(sum(one.read_queues for one in each), "number"),
                Cell(sum(one.write_queues for one in each), "number"),
                Cell(", ".join(topic.settings)),
            ]
        )
    columns = ("topic", "kind", "read_queues", "write_queues", "brokers")
    last = page.topics[-1].name if page.more else ""
    return _page("topics", columns, rows, {"after": last})


async def groups(call: PageCall) -> PageContent:
    """Return a page of the consumer groups."""
    page = await list_groups(_names_call(call))
    rows = [
        [
            Cell(one.name, link=f"/groups/{quote(one.name, safe='')}"),
            Cell(", ".join(one.settings)),
        ]
        for one in page.groups
    ]
    last = page.groups[-1].name if page.more else ""
    return _page("groups", ("group", "brokers"), rows, {"after": last})


async def group(call: PageCall) -> PageContent:
    """Return a consumer group with its lag by queue."""
    details = await show_group(call.handler_call(NamesQuery))
    state = details.group
    figures = {"group_lag": details.lag, "members": len(state.members), "rate": state.rate}
    tiles = [Tile(Key(f"column.{name}"), Cell(n, "number")) for name, n in figures.items()]
    names = ("topic", "broker", "queue", "offset", "max_offset", "group_lag", "last_consumed")
    columns = [Key(f"column.{name}") for name in names]
    table = Table(Key("group.queues"), columns, list(map(_queue_row, state.queues)))
    return PageContent(Key("column.group"), [Tiles(tiles), table], state.info.name)


async def schedules(call: PageCall) -> PageContent:
    """Return a page of the recurring schedules."""
    columns = ("schedule", "topic", "times", "zone", "state", "planned", "next_planned", "broker")
    cursor = call.query.get("cursor", "")
    request = call.handler_call(SchedulesQuery, limit=PAGE_SIZE, cursor=cursor)
    try:
        page = await list_schedules(request)
    except (ClientError, RequestError) as error:
        unknown = _page("schedules", columns, [], {}, "value.unknown")
        notice = Notice(Key("value.unknown"), str(error), "bad")
        return PageContent(unknown.title, [notice, *unknown.blocks])
    rows = list(map(_schedule_row, page.schedules))
    content = _page("schedules", columns, rows, {"cursor": page.cursor or ""})
    if call.login.role >= LoginRole.OPERATOR:
        new = Form(Key("schedule.new"), "/new-schedule", [])
        return PageContent(content.title, [*content.blocks, new])
    return content


def _names_call(call: PageCall) -> Call:
    return call.handler_call(NamesQuery, limit=PAGE_SIZE, after=call.query.get("after", ""))


def _page(
    name: str,
    columns: Iterable[str],
    rows: Sequence[Sequence[Cell]],
    following: Mapping[str, str],
    empty: str = "table.empty",
) -> PageContent:
    """Return a page with one table; `following` are parameters of the next page, or empty texts."""
    title = Key(f"nav.{name}")
    link = f"/{name}?{urlencode(following)}" if any(following.values()) else ""
    table = Table(title, [Key(f"column.{column}") for column in columns], rows, Key(empty), link)
    return PageContent(title, [table])


def _queue_row(one: GroupProgress) -> list[Cell]:
    consumed_ms = milliseconds(one.last_consumed_at) if one.last_consumed_at else 0
    return [
        Cell(one.queue.topic),
        Cell(one.queue.broker_name),
        Cell(one.queue.queue_id, "number"),
        Cell(one.offset, "number"),
        Cell(one.max_offset, "number"),
        Cell(one.lag, "number"),
        Cell(consumed_ms, "time"),
    ]


def _schedule_row(schedule: JsonObject) -> list[Cell]:
    definition: JsonObject = schedule["definition"]
    every_ms = definition.get("every_ms")
    return [
        Cell(definition["name"], link=f"/schedules/{quote(definition['name'], safe='')}"),
        Cell(definition["topic"]),
        Cell(every_ms, "ms") if every_ms else Cell(definition.get("cron"), "code"),
        Cell(definition.get("zone")),
        state_cell(schedule["state"]),
        Cell(schedule["planned_ms"], "time"),
        Cell(schedule["next_ms"], "time"),
        Cell(schedule["broker"]),
    ]
