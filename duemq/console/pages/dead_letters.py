"""Dead letters: groups that have some, their messages, and sending these again."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.dead_letters import DeadLetter, DeadLetterCount
from duemq.client.admin.resends import ResendOptions, ResendStatus, Resent, UndeliveredSearch
from duemq.client.message import milliseconds
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.logins import LoginRole
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
from duemq.http.undelivered import GroupWithDeadLetters, group_of, states_of_letters

PAGE_SIZE: Final = 100
GROUPS: Final = ("group", "dead_letters", "last_dead_letter")
LETTERS: Final = ("offset", "stored", "topic", "retries", "id", "keys", "broker")


async def dead_letters(call: PageCall) -> PageContent:
    """Return the groups that have dead letters; a number with an unknown part is unknown."""
    states = await states_of_letters(call.session)
    unknown = unknown_parts(states)
    parts: dict[str, list[DeadLetterCount]] = {}
    for state in states:
        for count in state.value or ():
            parts.setdefault(count.group, []).append(count)
    names = sorted(name for name in parts if name > call.query.get("after", ""))
    page = names[:PAGE_SIZE]
    rows = [_group_row(group_of(name, parts[name], is_known=not unknown)) for name in page]
    following = f"/dead-letters?{urlencode({'after': page[-1]})}" if len(page) < len(names) else ""
    title, empty = Key("nav.dead_letters"), Key("value.unknown" if unknown else "table.empty")
    table = Table(title, GROUPS, rows, empty, following)
    return PageContent(title, [*unknown, table])


async def letters_of_group(call: PageCall) -> PageContent:
    """Return a page of the dead letters of a group."""
    group = call.path["name"]

    async def part(member: BrokerMember, cursor: str) -> tuple[list[DeadLetter], str | None]:
        return await undelivered_items(call, search, member.name, cursor, PAGE_SIZE, DeadLetter)

    search = undelivered_search(call, group)
    page = await page_of_brokers(call.session, call.query.get("cursor", ""), part)
    letters: list[DeadLetter] = page.state.value or []
    path = f"/dead-letters/{quote(group, safe='')}"
    parameters = search_parameters(search) | {"cursor": page.cursor}
    following = f"{path}?{urlencode(parameters)}" if page.cursor else ""
    empty = Key("value.unknown" if page.unknown else "table.empty")
    is_operator = call.login.role >= LoginRole.OPERATOR
    rows = [_letter_row(letter, is_operator=is_operator) for letter in letters]
    title = Key("nav.dead_letters")
    table = Table(title, LETTERS, rows, empty, following)
    forms = resend_forms(call, search, has_hits=bool(rows or following))
    form = search_form(search, path)
    return PageContent(title, [form, *unknown_parts(page.unknown), table, *forms], group)


async def resend_confirmation(call: PageCall) -> PageContent:
    """Return what sending a dead letter again will do, with the form that confirms it."""
    letter, topic = await _selected(call)
    options = ResendOptions(topic=topic)
    [result] = await call.session.admin.resend([letter], options, dry_run=True)
    blocks: list[object] = [_effect(result)]
    hidden = [("group", letter.group), ("name", letter.name), ("topic", topic)]
    if result.status == ResendStatus.WOULD_SEND:
        title = Key("decision.confirm")
        form = Form(Key("resend.title"), "/dead-letter-resend", [], "post", hidden, title)
        blocks.append(form)
    else:
        blocks.insert(0, Notice(Key("resend.not_possible"), result.remark or result.status, "bad"))
    field = Field("topic", Key("resend.topic"), topic or letter.topic)
    other = Form(Key("resend.other"), "/dead-letter-resend", [field], hidden=hidden[:2])
    return PageContent(Key("resend.title"), [*blocks, other], letter.name)


async def resend(call: PageCall) -> PageContent:
    """Send a dead letter again, once."""
    letter, topic = await _selected(call)
    [result] = await call.session.admin.resend([letter], ResendOptions(topic=topic))
    is_sent = result.status == ResendStatus.SENT
    text = Key("resend.done" if is_sent else "resend.not_possible")
    notice = Notice(text, result.remark or result.status, "good" if is_sent else "bad")
    return PageContent(Key("resend.title"), [notice, _effect(result)], letter.name)


async def _selected(call: PageCall) -> tuple[DeadLetter, str]:
    """Return the dead letter `BROKER/OFFSET` of a group, and the topic of the form.

    Raises:
        Problem: There is none.
    """
    group, name = call.query.get("group", ""), call.query.get("name", "")
    broker, slash, offset = name.rpartition("/")
    if not group or not slash or not (offset.isascii() and offset.isdigit()):
        raise invalid("a dead letter is named by its group and BROKER/OFFSET")
    letters, _ = await undelivered_items(
        call, UndeliveredSearch(letters_of=group), broker, f"0_{offset}", 1, DeadLetter
    )
    if not letters or letters[0].name != name:
        raise Problem(404, "no-message", "The broker does not have the message", name)
    return letters[0], call.query.get("topic", "").strip()


def _group_row(one: GroupWithDeadLetters) -> list[Cell]:
    last_ms = milliseconds(one.last_stored_at) if one.last_stored_at else 0
    return [
        Cell(one.group, link=f"/dead-letters/{quote(one.group, safe='')}"),
        Cell(one.messages, "number"),
        Cell(None if one.messages is None else last_ms, "time"),
    ]


def _letter_row(letter: DeadLetter, *, is_operator: bool) -> list[Cell]:
    message = letter.message
    parameters = urlencode({"group": letter.group, "name": letter.name})
    link = f"/dead-letter-resend?{parameters}" if is_operator else ""
    return [
        Cell(message.queue_offset, "number", link),
        Cell(milliseconds(message.stored_at), "time"),
        Cell(letter.topic or None),
        Cell(message.record.reconsume_times, "number"),
        Cell(message.message_id, link=message_link(message.offset_message_id)),
        Cell(" ".join(message.keys)),
        Cell(message.queue.broker_name),
    ]


def _effect(result: Resent) -> Table:
    item = result.item
    row = [
        Cell(f"{item.broker}/{item.record.queue_offset}", "code"),
        Cell(item.unique_id, link=message_link(item.offset_message_id)),
        Cell(result.topic or None),
        Cell(result.status),
    ]
    return Table(Key("resend.effect"), ("offset", "id", "topic", "verdict"), [row])
