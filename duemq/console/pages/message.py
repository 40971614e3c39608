"""One message: its state, history, properties and body, and forms that decide on it.

A key of several messages is shown as a list of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duemq.client.admin.messages import MessageHistories
from duemq.console.blocks import Cell, Field, Form, Key, Notice, PageContent, Table, TextBlock
from duemq.console.brokers import unknown_parts
from duemq.console.call import PageCall
from duemq.console.catalogue import TEXTS
from duemq.console.logins import LoginRole
from duemq.console.pages.timers import message_link, time_field
from duemq.http.broker_states import of_masters
from duemq.http.problems import Problem
from duemq_common.bodies.histories import HistoryStep, MessageHistory, OpenPop

BODY_CHARS_MAX: Final = 10_000
COLUMNS: Final = ("id", "state", "due", "topic", "keys", "stored", "broker")
STEP_COLUMNS: Final = ("event", "at", "due", "log_offset", "position", "remark")
POP_COLUMNS: Final = ("group", "at", "invisible_until", "attempt")


async def message(call: PageCall) -> PageContent:
    """Return the page of a unique id, offset message id or key."""
    name = call.path["name"]
    topic, admin = call.query.get("topic", ""), call.session.admin
    states = await of_masters(
        call.session, lambda one: admin.message_history(name, topic=topic, brokers=[one.name])
    )
    parts: list[MessageHistories] = [one.value for one in states if one.value is not None]
    unknown = unknown_parts(states)
    messages = [message for part in parts for message in part.messages]
    if not messages and unknown:
        return PageContent(Key("message.title"), unknown, name)
    if not messages:
        raise Problem(404, "no-message", "No broker has the message", name)
    exact = [one for one in messages if one.offset_message_id == name]
    messages = exact or messages
    blocks: list[object] = [*unknown]
    if any(part.more for part in parts):
        blocks.append(Notice(Key("message.more")))
    blocks += [_list(messages)] if len(messages) > 1 else _details(messages[0], call.login.role)
    if any(part.pops_omitted for part in parts):
        blocks.append(Notice(Key("message.pops_omitted")))
    return PageContent(Key("message.title"), blocks, name)


def state_cell(state: str) -> Cell:
    """Return a state or event in the language of the page, if the catalogue has it."""
    key = f"state.{state.replace(' ', '_')}"
    return Cell(key, "key") if key in TEXTS else Cell(state)


def _list(messages: Iterable[MessageHistory]) -> Table:
    rows = [
        [
            Cell(one.offset_message_id, link=message_link(one.offset_message_id)),
            state_cell(one.state),
            Cell(one.due_ms, "time"),
            Cell(one.topic),
            Cell(one.keys or ""),
            Cell(one.stored_ms, "time"),
            Cell(one.broker),
        ]
        for one in messages
    ]
    return Table(Key("message.several"), COLUMNS, rows)


def _details(one: MessageHistory, role: LoginRole) -> list[object]:
    body = one.body.decode("utf-8", "backslashreplace")
    shortened = body[:BODY_CHARS_MAX]
    properties = [[Cell(name), Cell(text, "code")] for name, text in one.properties.items()]
    names = ("name", "value")
    blocks: list[object] = [
        Table(Key("message.facts"), names, list(_facts(one))),
        Table(Key("message.history"), STEP_COLUMNS, list(map(_step_row, one.records))),
        Table(Key("message.properties"), names, properties),
        TextBlock(Key("message.body"), shortened),
    ]
    if len(shortened) < len(body) or len(one.body) < one.body_bytes:
        blocks.append(Notice(Key("message.shortened")))
    if one.pops:
        pops = Table(Key("message.pops"), POP_COLUMNS, list(map(_pop_row, one.pops)))
        blocks.insert(2, pops)
    if one.state == "pending" and role >= LoginRole.OPERATOR:
        blocks[1:1] = _forms(one)
    return blocks


def _facts(one: MessageHistory) -> Iterable[list[Cell]]:
    """Yield name and value of each fact; a value of None is not known."""
    yield [Cell("column.state", "key"), state_cell(one.state)]
    facts: list[tuple[str, object, str, bool]] = [
        ("reason", one.reason, "words", bool(one.reason)),
        ("due", one.due_ms, "time", one.due_ms is not None or one.state == "pending"),
        ("delivered", one.delivered_ms, "time", one.state == "delivered"),
        ("topic", one.topic, "text", True),
        ("queue", one.queue_id, "number", True),
        ("level", one.level, "number", one.level is not None),
        ("schedule", one.schedule, "text", one.schedule is not None),
        ("planned", one.planned_ms, "time", one.planned_ms is not None),
        ("next_planned", one.next_ms, "time", one.next_ms is not None),
        ("id", one.unique_key, "code", True),
        ("offset_id", one.offset_message_id, "code", True),
        ("keys", one.keys or "", "text", bool(one.keys)),
        ("tag", one.tags or "", "text", bool(one.tags)),
        ("born", one.born_ms, "time", True),
        ("stored", one.stored_ms, "time", True),
        ("body", one.body_bytes, "bytes", True),
        ("broker", one.broker, "text", True),
    ]
    for name, value, kind, is_shown in facts:
        if is_shown:
            yield [Cell(f"column.{name}", "key"), Cell(value, kind)]


def _step_row(step: HistoryStep) -> list[Cell]:
    return [
        state_cell(step.event),
        Cell(step.store_ms, "time"),
        Cell("" if step.due_ms is None else step.due_ms, "text" if step.due_ms is None else "time"),
        Cell(step.commit_log_offset, "number"),
        Cell(f"{step.topic}/{step.queue_id}/{step.queue_offset}", "code"),
        Cell(step.detail, "words"),
    ]


def _pop_row(pop: OpenPop) -> list[Cell]:
    times = [Cell(pop.popped_ms, "time"), Cell(pop.invisible_until_ms, "time")]
    return [Cell(pop.group), *times, Cell(pop.attempt, "number")]


def _forms(one: MessageHistory) -> list[Form]:
    """Return the forms that lead to the confirmation of a decision."""
    name = one.unique_key or one.offset_message_id
    hidden = [("name", name), ("topic", one.topic)]
    deliver = Field("to", Key("decision.to"), time_field(one.due_ms or 0), "datetime-local")
    return [
        Form(Key("decision.cancel"), "/decisions", [], hidden=[*hidden, ("action", "cancel")]),
        Form(Key("decision.fire"), "/decisions", [], hidden=[*hidden, ("action", "fire")]),
        Form(Key("decision.move"), "/decisions", [deliver], hidden=[*hidden, ("action", "move")]),
    ]
