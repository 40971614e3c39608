"""Decision on one pending message: what it will do, and after the confirmation, its result."""

from __future__ import annotations

from typing import Final

from duemq.client.decisions import MessageSelection
from duemq.console.blocks import Cell, Form, Key, Notice, PageContent, Table
from duemq.console.brokers import notices_of
from duemq.console.call import PageCall
from duemq.console.pages.timers import message_link
from duemq.http.broker_states import unasked
from duemq.http.endpoints import invalid
from duemq.net.decisions import TIME_MS_MAX, DecisionResult
from duemq_common.clock import SystemClock

ACTIONS: Final = ("cancel", "move", "fire")
NO_TIME: Final = -1


async def confirmation(call: PageCall) -> PageContent:
    """Return what a decision will do, with the form that confirms it."""
    result = await _decide(call, 0, TIME_MS_MAX, dry_run=True)
    action = call.query["action"]
    is_move = action == "move"
    due_ms = result.former_due_ms if is_move else result.due_ms
    blocks: list[object] = [_result_table(call, result)]
    if result.verdict == "done":
        names = ("action", "name", "topic", "to")
        hidden = [(name, call.query.get(name, "")) for name in names]
        hidden.append(("due", str(due_ms)))
        confirm = Key(f"decision.{action}")
        blocks.append(Form(confirm, "/decisions", [], "post", hidden, Key("decision.confirm")))
        if is_move and call.time_ms("to", NO_TIME) <= SystemClock().now_ms():
            blocks.insert(0, Notice(Key("decision.past"), state="bad"))
    else:
        blocks.insert(0, Notice(Key("decision.impossible"), result.remark, "bad"))
        blocks[1:1] = await _unknown(call, result)
    return PageContent(Key(f"decision.{action}"), blocks, call.query["name"])


async def decide(call: PageCall) -> PageContent:
    """Decide on the message, unless its due time has changed since the confirmation."""
    due_ms = call.number("due", NO_TIME)
    if due_ms == NO_TIME:
        raise invalid("the form does not name the due time")
    result = await _decide(call, due_ms, due_ms + 1, dry_run=False)
    is_done = result.verdict == "done"
    text = Key("decision.done" if is_done else "decision.impossible")
    blocks = [Notice(text, result.remark, "good" if is_done else "bad")]
    blocks += await _unknown(call, result)
    table = _result_table(call, result)
    return PageContent(Key(f"decision.{call.query['action']}"), [*blocks, table], result.name)


async def _unknown(call: PageCall, result: DecisionResult) -> list[Notice]:
    """Return a notice for each broker that may have a message that the others do not have."""
    return notices_of(await unasked(call.session)) if result.verdict == "unknown" else []


async def _decide(call: PageCall, from_ms: int, until_ms: int, *, dry_run: bool) -> DecisionResult:
    action, name, topic = (call.query.get(key, "") for key in ("action", "name", "topic"))
    if action not in ACTIONS or not name or not topic:
        raise invalid("action, name and topic of a pending message are needed")
    deliver_ms: int | None = None
    if action == "move":
        deliver_ms = call.time_ms("to", NO_TIME)
        if deliver_ms == NO_TIME:
            raise invalid("the new due time is missing")
    selection = MessageSelection(ids=[name], topic=topic, from_ms=from_ms, until_ms=until_ms)
    [result] = await call.session.decisions.decide(
        action, selection, deliver_ms=deliver_ms, dry_run=dry_run
    )
    return result


def _result_table(call: PageCall, result: DecisionResult) -> Table:
    is_move = call.query["action"] == "move"
    due_ms = result.former_due_ms if is_move else result.due_ms
    rows = [
        [Cell("column.id", "key"), Cell(result.name, link=message_link(result.name))],
        [Cell("column.topic", "key"), Cell(call.query["topic"])],
        [Cell("column.due", "key"), Cell(None if due_ms < 0 else due_ms, "time")],
    ]
    if is_move:
        to_ms = call.time_ms("to", NO_TIME)
        rows.append([Cell("decision.to", "key"), Cell(to_ms, "time")])
    rows += [
        [Cell("column.messages", "key"), Cell(result.messages, "number")],
        [Cell("column.verdict", "key"), Cell(f"verdict.{result.verdict.replace(' ', '_')}", "key")],
    ]
    return Table(Key("decision.message"), ("name", "value"), rows)
