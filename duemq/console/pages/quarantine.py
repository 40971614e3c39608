"""Messages in quarantine: the reason, the message, and sending it again after a confirmation."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.quarantine import Quarantined
from duemq.client.admin.resends import ResendOptions, ResendStatus, Resent, UndeliveredSearch
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table, TextBlock
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
from duemq.console.pages.message import BODY_CHARS_MAX
from duemq.console.pages.timers import message_link
from duemq.console.pages.undelivered import (
    resend_forms,
    search_form,
    search_parameters,
    undelivered_items,
    undelivered_search,
)
from duemq.http.broker_states import page_of_brokers
from duemq.http.endpoints import invalid
from duemq.http.problems import Problem

PAGE_SIZE: Final = 100
COLUMNS: Final = ("offset", "stored", "topic", "reason", "detail", "id", "broker")
FACTS: Final = ("offset", "stored", "topic", "reason", "detail", "group", "id", "broker")
RESULTS: Final = {
    ResendStatus.SENT: "done",
    ResendStatus.SENT_BEFORE: "sent_before",
    ResendStatus.NO_TOPIC: "no_topic",
    ResendStatus.UNREADABLE: "unreadable",
}


async def quarantine(call: PageCall) -> PageContent:
    """Return a page of the messages in quarantine."""

    async def part(member: BrokerMember, cursor: str) -> tuple[list[Quarantined], str | None]:
        return await undelivered_items(call, search, member.name, cursor, PAGE_SIZE, Quarantined)

    search = undelivered_search(call)
    page = await page_of_brokers(call.session, call.query.get("cursor", ""), part)
    rows = [_row(item) for item in page.state.value or ()]
    parameters = search_parameters(search) | {"cursor": page.cursor}
    following = f"/quarantine?{urlencode(parameters)}" if page.cursor else ""
    empty = Key("value.unknown" if page.unknown else "table.empty")
    title = Key("nav.quarantine")
    table = Table(title, COLUMNS, rows, empty, following)
    forms = resend_forms(call, search, has_hits=bool(rows or following))
    form = search_form(search, "/quarantine")
    return PageContent(title, [form, *unknown_parts(page.unknown), table, *forms])


async def quarantined_message(call: PageCall) -> PageContent:
    """Return one message in quarantine, with the form that leads to sending it again."""
    item = await _named(call, call.path["name"])
    blocks = _details(item)
    if call.login.role >= LoginRole.OPERATOR and item.original is not None:
        topic = Field("topic", Key("resend.topic"), item.topic)
        hidden = [("name", item.name)]
        blocks.insert(1, Form(Key("resend.title"), "/quarantine-resend", [topic], hidden=hidden))
    return PageContent(Key("quarantine.message"), blocks, item.name)


async def resend_confirmation(call: PageCall) -> PageContent:
    """Return what sending a message again will do, with the form that confirms it."""
    item = await _named(call, call.query.get("name", ""))
    topic = call.query.get("topic", "").strip()
    result = await _resent(call, item, topic, dry_run=True)
    blocks = [_target(item, topic), *_details(item)]
    if result.status == ResendStatus.WOULD_SEND:
        hidden = [("name", item.name), ("topic", topic)]
        title = Key("decision.confirm")
        form = Form(Key("resend.title"), "/quarantine-resend", [], "post", hidden, title)
        blocks.insert(1, form)
    else:
        blocks.insert(0, _notice(result))
    return PageContent(Key("resend.title"), blocks, item.name)


async def resend(call: PageCall) -> PageContent:
    """Send a message in quarantine again, once."""
    item = await _named(call, call.query.get("name", ""))
    topic = call.query.get("topic", "").strip()
    result = await _resent(call, item, topic)
    return PageContent(Key("resend.title"), [_notice(result), _target(item, topic)], item.name)


async def _resent(
    call: PageCall, item: Quarantined, topic: str, *, dry_run: bool = False
) -> Resent:
    options = ResendOptions(topic=topic)
    [result] = await call.session.admin.resend([item], options, dry_run=dry_run)
    return result


def _notice(result: Resent) -> Notice:
    text = Key(f"resend.{RESULTS.get(result.status, 'not_possible')}")
    state = "good" if result.status == ResendStatus.SENT else "bad"
    return Notice(text, result.remark or result.status, state)


async def _named(call: PageCall, name: str) -> Quarantined:
    """Return the message with a name `BROKER/OFFSET`.

    Raises:
        Problem: There is none.
    """
    broker, slash, offset = name.rpartition("/")
    if not slash or not (offset.isascii() and offset.isdigit()):
        raise invalid("a message in quarantine is named BROKER/OFFSET")
    items, _ = await undelivered_items(
        call, UndeliveredSearch(), broker, f"0_{offset}", 1, Quarantined
    )
    if not items or items[0].name != name:
        raise Problem(404, "no-message", "The broker does not have the message", name)
    return items[0]


def _row(item: Quarantined) -> list[Cell]:
    link = f"/quarantine/{quote(item.name, safe='')}"
    return [
        Cell(item.record.queue_offset, "number", link),
        Cell(item.record.store_ms, "time"),
        Cell(item.topic or None),
        Cell(item.reason, "code"),
        Cell(item.detail, "words"),
        Cell(item.unique_id, link=message_link(item.unique_id)),
        Cell(item.broker),
    ]


def _details(item: Quarantined) -> list[object]:
    values: dict[str, Cell] = {
        "offset": Cell(item.record.queue_offset, "number"),
        "stored": Cell(item.record.store_ms, "time"),
        "topic": Cell(item.topic or None),
        "reason": Cell(item.reason, "code"),
        "detail": Cell(item.detail, "words"),
        "group": Cell(item.record.properties.get("DUEMQ_GROUP", "")),
        "id": Cell(item.unique_id, link=message_link(item.unique_id)),
        "broker": Cell(item.broker),
    }
    names = ("name", "value")
    facts = [[Cell(f"column.{name}", "key"), values[name]] for name in FACTS]
    blocks: list[object] = [Table(Key("message.facts"), names, facts)]
    if item.original is None:
        return [*blocks, Notice(Key("resend.unreadable"), "", "bad")]
    properties = [
        [Cell(name), Cell(text, "code")] for name, text in item.original.properties.items()
    ]
    body = item.original.body.decode("utf-8", "backslashreplace")
    blocks.append(Table(Key("message.properties"), names, properties))
    blocks.append(TextBlock(Key("message.body"), body[:BODY_CHARS_MAX]))
    if len(body) > BODY_CHARS_MAX:
        blocks.append(Notice(Key("message.shortened")))
    return blocks


def _target(item: Quarantined, topic: str) -> Table:
    rows = [
        [Cell("resend.topic", "key"), Cell(topic or item.topic or None)],
        [Cell("column.id", "key"), Cell(item.unique_id, link=message_link(item.unique_id))],
    ]
    return Table(Key("resend.effect"), ("name", "value"), rows)
