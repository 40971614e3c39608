"""Audit log of operators: who did what at which broker, when, and with which result."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.console.blocks import Cell, Key, PageContent, Table
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.http.broker_states import page_of_brokers
from duemq.http.brokers.operators import entries_of
from duemq.http.endpoints import JsonObject
from duemq_common.codes import RequestCode, ResponseCode

PAGE_SIZE: Final = 100
COLUMNS: Final = ("at", "user", "from", "request", "on", "action", "result", "reason", "broker")
REQUESTS: Final = {int(code): code.name.lower().replace("_", " ") for code in RequestCode}
"""Names of requests by code."""


async def operators(call: PageCall) -> PageContent:
    """Return a page of the entries that brokers have in memory, newest first."""

    async def part(member: BrokerMember, before: str) -> tuple[list[list[Cell]], str | None]:
        entries, following = await entries_of(call.session, member, before, PAGE_SIZE)
        return [_row(entry, member.name) for entry in entries], following

    page = await page_of_brokers(call.session, call.query.get("cursor", ""), part)
    rows: list[list[Cell]] = page.state.value or []
    following = f"/operators?{urlencode({'cursor': page.cursor})}" if page.cursor else ""
    empty = Key("value.unknown" if page.unknown else "table.empty")
    title = Key("nav.operators")
    table = Table(title, COLUMNS, rows, empty, following)
    return PageContent(title, [*unknown_parts(page.unknown), table])


def _row(entry: JsonObject, broker: str) -> list[Cell]:
    result, code = entry["result"], entry["code"]
    is_done = result == ResponseCode.SUCCESS
    shown = "operators.done" if is_done else "operators.refused"
    return [
        Cell(entry["time_ms"], "time"),
        Cell(entry["user"]),
        Cell(entry["from"], "code"),
        Cell(f"{REQUESTS.get(code, '')} ({code})".strip()),
        Cell(entry["account"] or entry["resource"]),
        Cell(entry["action"]),
        Cell(None if result is None else shown, "key", state="good" if is_done else "bad"),
        Cell(entry["reason"] or ("" if is_done or result is None else f"({result})"), "words"),
        Cell(broker),
    ]
