"""Pending timers: a search by id, key, topic and due time, in pages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.http.broker_states import page_of_brokers
from duemq.http.endpoints import JsonObject
from duemq.http.pending import LIST_VIEWS, PendingQuery, described
from duemq.net.decisions import ACTIONS, TIME_MS_MAX
from duemq_common.charts import MS_MAX

PAGE_SIZE: Final = 100
SEARCH_S: Final = 0.3  # time of one page for a search with few hits
COLUMNS: Final = ("due", "topic", "id", "keys", "tag", "body", "broker")

Part = tuple[list[list[Cell]], list[str]]
"""Rows of timers, and unreadable parts of the store."""


async def timers(call: PageCall) -> PageContent:
    """Return the search form and one page of its results."""
    query = _query(call)
    view, name, _ = LIST_VIEWS["timers"]
    fields: dict[str, object] = {
        "topic": query.topic,
        "key": query.key,
        "from_ms": query.from_ms,
        "to_ms": query.until_ms,
        "limit": query.limit,
    }

    async def part(member: BrokerMember, cursor: str | None) -> tuple[Part | None, str | None]:
        """Return the next hits; the broker examines a bounded number of timers at a time."""
        admin, clock = call.session.admin, asyncio.get_running_loop().time
        end_s, damage = clock() + SEARCH_S, list[str]()
        while True:
            result: JsonObject = await admin.view(member.address, view, **fields, cursor=cursor)
            damage += result["damage"]
            rows = [_row(described(timer), member.name) for timer in result[name]]
            cursor = result["cursor"]
            if rows or cursor is None or clock() >= end_s:
                return (rows, damage) if rows or damage else None, cursor

    page = await page_of_brokers(call.session, query.cursor, part)
    rows, damage = page.state.value or ([], [])
    blocks: list[object] = [_form(query), *unknown_parts(page.unknown)]
    blocks += [Notice(Key("timers.damage"), text, "bad") for text in damage]
    following, empty = "", Key("value.unknown" if page.unknown else "table.empty")
    if page.cursor:
        following = f"/timers?{urlencode(_parameters(query) | {'cursor': page.cursor})}"
        empty = Key("timers.continued")
    blocks.append(Table(Key("timers.results"), COLUMNS, rows, empty, following))
    if query.key:
        blocks.append(Form(Key("timers.any_state"), message_link(query.key), []))
    if call.login.role >= LoginRole.OPERATOR:  # also without timers: hits may be of levels
        blocks.append(_bulk_form(query))
    return PageContent(Key("nav.timers"), blocks)


def message_link(name: str) -> str:
    """Return the link to the page of a message; empty without a name."""
    return f"/messages/{quote(name, safe='')}" if name else ""


def time_field(ms: int) -> str:
    """Return the value of a form's field for a time; empty: no bound."""
    if not 0 < ms <= MS_MAX:
        return ""
    seconds, rest_ms = divmod(ms, 1_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest_ms:03d}" if rest_ms else text


def _query(call: PageCall) -> PendingQuery:
    fields = {name: call.query.get(name, "").strip() for name in ("topic", "key", "cursor")}
    query: PendingQuery = call.handler_call(
        PendingQuery,
        from_ms=call.time_ms("from", 0),
        until_ms=call.time_ms("until", TIME_MS_MAX),
        limit=PAGE_SIZE,
        **fields,
    ).query
    return query


def _parameters(query: PendingQuery) -> dict[str, str]:
    texts = {
        "key": query.key,
        "topic": query.topic,
        "from": time_field(query.from_ms),
        "until": time_field(query.until_ms),
    }
    return {name: text for name, text in texts.items() if text}


def _form(query: PendingQuery) -> Form:
    values = _parameters(query)
    fields = [
        Field("key", Key("timers.key"), values.get("key", "")),
        Field("topic", Key("column.topic"), values.get("topic", "")),
        Field("from", Key("timers.from"), values.get("from", ""), "datetime-local"),
        Field("until", Key("timers.until"), values.get("until", ""), "datetime-local"),
    ]
    return Form(Key("timers.search"), "/timers", fields)


def _bulk_form(query: PendingQuery) -> Form:
    """Return the form that prepares a decision about all hits of the search."""
    options = [(action, Key(f"bulk.{action}")) for action in ACTIONS.values()]
    fields = [
        Field("action", Key("column.action"), "cancel", options=options),
        Field("to", Key("bulk.to"), "", "datetime-local"),
    ]
    hidden = list(_parameters(query).items())
    return Form(Key("bulk.list"), "/bulk", fields, "post", hidden, Key("bulk.all_hits"))


def _row(timer: JsonObject, broker: str) -> list[Cell]:
    unique_key = timer.get("unique_key", "")
    identity = Cell(unique_key, "text", message_link(unique_key))
    if "unreadable" in timer:
        identity = Cell(timer["unreadable"], state="bad")
    return [
        Cell(timer["due_ms"], "time"),
        Cell(timer["topic"]),
        identity,
        Cell(timer.get("keys")),
        Cell(timer.get("tag")),
        Cell(timer.get("body_bytes"), "bytes"),
        Cell(broker),
    ]
