"""Configuration of each broker: value, default and source of every key; secrets are masked."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.console.blocks import Cell, Field, Form, Key, PageContent, Table
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.http.broker_states import page_of_brokers
from duemq.http.brokers.configuration import keys_of
from duemq.http.endpoints import JsonObject

COLUMNS: Final = ("key", "value", "default", "source", "reloadable", "unit", "broker")
CHANGED, EVERY = "changed", "all"


async def configuration(call: PageCall) -> PageContent:
    """Return the keys of one broker, and a link to those of the next one."""
    shown = EVERY if call.query.get("shown") == EVERY else CHANGED
    prefix = call.query.get("prefix", "").strip().lower()

    async def part(member: BrokerMember, cursor: str) -> tuple[list[list[Cell]], None]:
        rows = [
            _row(key, member.name)
            for key in await keys_of(call.session, member)
            if key["key"].lower().startswith(prefix) and (shown == EVERY or key["source"] != "")
        ]
        return rows, None

    page = await page_of_brokers(call.session, call.query.get("cursor", ""), part)
    rows: list[list[Cell]] = page.state.value or []
    choices = [(CHANGED, Key("configuration.changed")), (EVERY, Key("configuration.all"))]
    form = Form(
        Key("timers.search"),
        "/configuration",
        [
            Field("prefix", Key("configuration.prefix"), prefix),
            Field("shown", Key("configuration.shown"), shown, options=choices),
        ],
    )
    parameters = {"prefix": prefix, "shown": shown, "cursor": page.cursor}
    following = f"/configuration?{urlencode(parameters)}" if page.cursor else ""
    empty = Key("value.unknown" if page.unknown else "table.empty")
    title = Key("nav.configuration")
    table = Table(title, COLUMNS, rows, empty, following)
    return PageContent(title, [form, *unknown_parts(page.unknown), table])


def _row(key: JsonObject, broker: str) -> list[Cell]:
    live = key.get("live")
    source = key["source"]
    reloadable = None if live is None else f"configuration.{'live' if live else 'restart'}"
    return [
        Cell(key["key"], "code"),
        Cell(key["value"], "code"),
        Cell(key.get("default"), "code"),
        Cell("configuration.default", "key") if source == "" else Cell(source, "words"),
        Cell(reloadable, "key"),
        Cell(key.get("unit", "")),
        Cell(broker),
    ]
