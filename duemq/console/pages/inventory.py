"""Topics, consumer groups with their lag, and recurring schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.groups import ConsumerMember, GroupProgress, GroupState, combined_group
from duemq.client.admin.topics import TopicSettings
from duemq.client.message import milliseconds
from duemq.console.blocks import Cell, Form, Key, Notice, PageContent, Table, Tile, Tiles
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.message import state_cell
from duemq.http.broker_states import BrokerState, of_masters, page_of_brokers
from duemq.http.endpoints import JsonObject, JsonValue
from duemq.http.problems import Problem
from duemq.http.registry import states_of_group
from duemq.http.schedules import SchedulesQuery
from duemq.net.view_names import SCHEDULES_LIST_VIEW

PAGE_SIZE: Final = 100
MEMBERS: Final = ("client", "address", "language", "version")
QUEUES: Final = (
    "topic",
    "broker",
    "queue",
    "offset",
    "max_offset",
    "group_lag",
    "last_consumed",
)


async def topics(call: PageCall) -> PageContent:
    """Return a page of the topics."""
    admin, kinds = call.session.admin, dict[str, str]()
    settings: dict[str, dict[str, TopicSettings]] = {}
    states = await of_masters(call.session, lambda one: admin.topics(brokers=[one.name]))
    for topic in _parts(states):
        kinds[topic.name] = topic.kind
        settings.setdefault(topic.name, {}).update(topic.settings)
    names, following = _names(call, settings)
    rows = []
    for name in names:
        each = settings[name].values()
        rows.append(
            [
                Cell(name),
                Cell(kinds[name]),
                Cell(sum(one.read_queues for one in each), "number"),
                Cell(sum(one.write_queues for one in each), "number"),
                Cell(", ".join(settings[name])),
            ]
        )
    columns = ("topic", "kind", "read_queues", "write_queues", "brokers")
    return _page("topics", columns, rows, following, unknown_parts(states))


async def groups(call: PageCall) -> PageContent:
    """Return a page of the consumer groups."""
    admin, brokers = call.session.admin, dict[str, list[str]]()
    states = await of_masters(call.session, lambda one: admin.groups(brokers=[one.name]))
    for group in _parts(states):
        brokers.setdefault(group.name, []).extend(group.settings)
    names, following = _names(call, brokers)
    rows = [
        [Cell(name, link=f"/groups/{quote(name, safe='')}"), Cell(", ".join(brokers[name]))]
        for name in names
    ]
    return _page("groups", ("group", "brokers"), rows, following, unknown_parts(states))


async def group(call: PageCall) -> PageContent:
    """Return a group with members and lag by queue; figures with an unknown part are unknown."""
    name = call.path["name"]
    states = await states_of_group(call.session, name)
    parts: list[GroupState] = _parts(states)
    unknown = unknown_parts(states)
    if not parts and not unknown:
        raise Problem(404, "no-group", "There is no such consumer group", name)
    state = combined_group(name, parts)
    figures = {"group_lag": state.lag, "members": len(state.members), "rate": state.rate}
    tiles = [
        Tile(Key(f"column.{label}"), Cell(None if unknown else figure, "number"))
        for label, figure in figures.items()
    ]
    empty = Key("value.unknown" if unknown else "table.empty")
    tables = [
        _part_of_group(call, "members", MEMBERS, list(map(_member_row, state.members)), empty),
        _part_of_group(call, "queues", QUEUES, list(map(_queue_row, state.queues)), empty),
    ]
    return PageContent(Key("column.group"), [*unknown, Tiles(tiles), *tables], name)


def _part_of_group(
    call: PageCall, part: str, columns: Sequence[str], rows: Sequence[list[Cell]], empty: Key
) -> Table:
    """Return one page of the members or queues of a group."""
    first = call.number(part, 0)
    page, following = rows[first : first + PAGE_SIZE], ""
    if first + PAGE_SIZE < len(rows):
        path = f"/groups/{quote(call.path['name'], safe='')}"
        following = f"{path}?{urlencode({part: first + PAGE_SIZE})}"
    return Table(Key(f"group.{part}"), columns, page, empty, following)


async def schedules(call: PageCall) -> PageContent:
    """Return a page of the recurring schedules."""
    columns = ("schedule", "topic", "times", "zone", "state", "planned", "next_planned", "broker")
    cursor = call.query.get("cursor", "")
    query: SchedulesQuery = call.handler_call(SchedulesQuery, cursor=cursor).query

    async def part(member: BrokerMember, after: str) -> tuple[list[list[Cell]], str | None]:
        position = int(after or 0) - 1
        fields: dict[str, object] = {"after": position, "count": PAGE_SIZE, "topic": query.topic}
        view: JsonObject = await call.session.admin.view(
            member.address, SCHEDULES_LIST_VIEW, **fields
        )
        rows = [_schedule_row(schedule, member.name) for schedule in view["schedules"]]
        return rows, None if view["after"] < 0 else f"{view['after'] + 1}"

    page = await page_of_brokers(call.session, query.cursor, part)
    rows: list[list[Cell]] = page.state.value or []
    unknown = unknown_parts(page.unknown)
    content = _page("schedules", columns, rows, {"cursor": page.cursor}, unknown)
    if call.login.role >= LoginRole.OPERATOR:
        new = Form(Key("schedule.new"), "/new-schedule", [])
        return PageContent(content.title, [*content.blocks, new])
    return content


def _parts(states: Iterable[BrokerState]) -> list[JsonValue]:
    """Return what all brokers respond, in one list."""
    return [part for state in states for part in state.value or ()]


def _names(call: PageCall, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the names of a page in order, and the parameters of the next page."""
    after = call.query.get("after", "")
    rest = sorted(name for name in names if name > after)
    page = rest[:PAGE_SIZE]
    return page, {"after": page[-1]} if len(page) < len(rest) else {}


def _page(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    following: Mapping[str, str],
    unknown: Sequence[Notice],
) -> PageContent:
    """Return a page with one table; `following` are parameters of the next page, or empty texts."""
    title = Key(f"nav.{name}")
    link = f"/{name}?{urlencode(following)}" if any(following.values()) else ""
    empty = Key("value.unknown" if unknown else "table.empty")
    table = Table(title, columns, rows, empty, link)
    return PageContent(title, [*unknown, table])


def _member_row(one: ConsumerMember) -> list[Cell]:
    version = Cell(one.version, "text")
    return [Cell(one.client_id), Cell(one.address, "code"), Cell(one.language), version]


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


def _schedule_row(schedule: JsonObject, broker: str) -> list[Cell]:
    definition: JsonObject = schedule["definition"]
    every_ms = definition.get("every_ms")
    return [
        Cell(definition["name"], link=f"/schedules/{quote(definition['name'], safe='')}"),
        Cell(definition["topic"]),
        Cell(every_ms, "ms") if every_ms else Cell(definition.get("cron"), "code"),
        Cell(definition.get("zone", "UTC")),  # the default is left out
        state_cell(schedule["state"]),
        Cell(schedule["planned_ms"], "time"),
        Cell(schedule["next_ms"], "time"),
        Cell(broker),
    ]
