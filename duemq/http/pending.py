"""Pending messages: list, cancel, move, fire; histories of messages."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from datetime import datetime
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.messages import MessageHistories
from duemq.client.message import milliseconds
from duemq.http.broker_states import (
    BrokerState,
    UnknownPart,
    check_known,
    of_masters,
    of_members,
    unasked,
    unknown_of,
    values_of,
)
from duemq.http.endpoints import NO_CURSOR, Call, Endpoint, JsonObject, invalid
from duemq.http.problems import Problem
from duemq.http.sent import DELAY_MS_MAX
from duemq.net.decisions import TIME_MS_MAX, DecisionResult
from duemq.net.view_names import LEVELS_LIST_VIEW, TIMERS_LIST_VIEW
from duemq_common.bodies.histories import MessageHistory
from duemq_common.topics import REVIVE_PREFIX

LIST_VIEWS: Final = {
    "levels": (LEVELS_LIST_VIEW, "messages", 3),
    "timers": (TIMERS_LIST_VIEW, "timers", 5),
}
"""View of each kind, name of its messages, numbers of its cursor. A migration moves messages from
levels to timers: one that moves between two pages is listed twice rather than not at all."""
POP_KEY: Final = re.compile(r"([^@]+)@(\d+)@(\d+)@([^@]+)@(\d+)@[^@]*@ck")
VIEWS_MAX: Final = 4  # requests to brokers for one page
PAGE_MAX: Final = 1_000
NAMES_MAX: Final = 10_000
NAME_MAX: Final = 1_024
CURSOR: Final = r"^([0-9]{1,4}\.((-1|[0-9]{1,18})(_(-1|[0-9]{1,18})){1,4})?)?$"

TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX - 1)]
UntilMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Names = Annotated[list[Name], Meta(max_length=NAMES_MAX)]


class PendingQuery(msgspec.Struct, kw_only=True):
    """Selection of pending messages.

    Attributes:
        kind: `levels` or `timers`; empty: both. Open pops are timers.
        topic: Topic to which the messages will be delivered; empty: all.
        key: Key or unique id; empty: all.
        from_ms, until_ms: Due times from `from_ms` to before `until_ms`, in ms since the epoch.
        limit: Maximum number of messages of the page.
        cursor: Cursor of the page before; empty: the first page.
    """

    kind: Literal["levels", "timers", ""] = ""
    topic: Annotated[str, Meta(max_length=127)] = ""
    key: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    from_ms: TimeMs = 0
    until_ms: UntilMs = TIME_MS_MAX
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[str, Meta(pattern=CURSOR)] = ""


class PageOfPending(msgspec.Struct, kw_only=True):
    """Page of pending messages: the brokers one after the other, of each the levels and the timers.

    Timers are in order of their due times.

    Attributes:
        messages: Messages as the broker describes them, with `kind`: `level`, `timer`, or `pop` (a
            message that a group has popped and not acknowledged).
        cursor: Cursor of the next page; null at the end. A page may be empty before the end.
        damage: Unreadable parts of the store.
        unknown: Brokers whose messages are missing.
    """

    messages: list[JsonObject]
    cursor: str | None
    damage: list[str]
    unknown: list[UnknownPart]


class SelectedMessages(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Messages to decide on; `topic` alone selects all pending messages of the topic.

    Attributes:
        ids: Unique ids or offset message ids.
        keys: Keys of messages.
        handles: Recall handles.
        from_ms, until_ms: Only messages due from `from_ms` to before `until_ms`.
        dry_run: Whether to report the results without deciding.
    """

    ids: Names = []
    keys: Names = []
    handles: Names = []
    topic: Annotated[str, Meta(max_length=127)] = ""
    from_ms: TimeMs = 0
    until_ms: UntilMs = TIME_MS_MAX
    dry_run: bool = False

    def arguments(self) -> JsonObject:
        """Return the arguments of the client's decisions.

        Raises:
            Problem: Nothing is selected.
        """
        if not (self.ids or self.keys or self.handles or self.topic):
            raise invalid("no messages selected: give ids, keys, handles or a topic")
        names = ("ids", "keys", "handles", "topic", "from_ms", "until_ms", "dry_run")
        return {name: getattr(self, name) for name in names}


class Move(SelectedMessages, kw_only=True, forbid_unknown_fields=True):
    """Messages to move, and their new due time: one of `deliver_at` and `delay_ms`."""

    deliver_at: Annotated[datetime, Meta(tz=True)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)] | None = None


class DecisionResults(msgspec.Struct):
    """Result for each name, in order.

    Attributes:
        unknown: Brokers that are not registered: they may have messages without a result.
    """

    results: list[DecisionResult]
    unknown: list[UnknownPart]


class MessageQuery(msgspec.Struct):
    """Topic of a message; empty: any."""

    topic: Annotated[str, Meta(max_length=127)] = ""


class Histories(msgspec.Struct):
    """Messages with a name, each with its state and history, newest last.

    Attributes:
        more: Whether there are older ones.
        unknown: Brokers whose messages are missing.
    """

    messages: list[MessageHistory]
    more: bool
    unknown: list[UnknownPart]


async def list_pending(call: Call) -> PageOfPending:
    """Return a page of the pending messages."""
    query: PendingQuery = call.query or PendingQuery()
    kinds = [query.kind] if query.kind else list(LIST_VIEWS)
    sources = [(member, kind) for member in await call.session.masters() for kind in kinds]
    number, _, cursor = query.cursor.partition(".")
    index = int(number or 0)
    if index >= len(sources) or not _is_cursor_of(sources[index][1], cursor):
        raise invalid(NO_CURSOR)
    page = PageOfPending(messages=[], cursor=None, damage=[], unknown=[])
    states: list[BrokerState] = []
    for member, kind in sources[index:][:VIEWS_MAX]:
        part = partial(_pending_part, call, query, kind, cursor, query.limit - len(page.messages))
        [state] = await of_members([member], part)
        states.append(state)
        following = _add_part(page, state)
        if following is not None:
            page.cursor = f"{index}.{following}"
            break
        index, cursor = index + 1, ""
        page.cursor = f"{index}." if index < len(sources) else None
        if len(page.messages) == query.limit:
            break
    page.unknown = unknown_of(states)
    if not query.cursor and page.cursor is None:
        values_of(states)  # an error of all brokers is that of the list
    return page


async def _pending_part(
    call: Call, query: PendingQuery, kind: str, cursor: str, count: int, member: BrokerMember
) -> tuple[list[JsonObject], list[str], str | None]:
    """Return messages of one kind of one broker, damage, and the cursor of the next ones."""
    view, name, _ = LIST_VIEWS[kind]
    fields: dict[str, object] = {
        "topic": query.topic,
        "key": query.key,
        "from_ms": query.from_ms,
        "to_ms": query.until_ms,
        "limit": count,
        "cursor": cursor,
    }
    result: JsonObject = await call.session.admin.view(member.address, view, **fields)
    messages = [{"broker": member.name, **described(one)} for one in result[name]]
    return messages, result["damage"], result["cursor"]


def _add_part(page: PageOfPending, state: BrokerState) -> str | None:
    """Add what a broker responded to a page; return the cursor of its next messages."""
    if state.error is not None:
        return None
    messages, damage, following = state.value
    page.messages += messages
    page.damage += damage
    return following if isinstance(following, str) else None


def _is_cursor_of(kind: str, cursor: str) -> bool:
    return not cursor or len(cursor.split("_")) == LIST_VIEWS[kind][2]


def described(message: JsonObject) -> JsonObject:
    """Return a pending message with its kind; the checkpoint of a pop as the popped message."""
    if "level" in message:
        return {"kind": "level", **message}
    pop = POP_KEY.fullmatch(message.get("unique_key", ""))
    if pop is None or not str(message["topic"]).startswith(REVIVE_PREFIX):
        return {"kind": "timer", **message}
    topic, queue_id, offset, group, popped_ms = pop.groups()
    of_pop = {"topic": topic, "queue_id": int(queue_id), "queue_offset": int(offset)}
    return {**message, "kind": "pop", **of_pop, "group": group, "popped_ms": int(popped_ms)}


async def cancel(call: Call) -> DecisionResults:
    """Cancel pending messages."""
    return await _decided(call, call.session.decisions.cancel(**call.body.arguments()))


async def fire(call: Call) -> DecisionResults:
    """Deliver pending messages now."""
    return await _decided(call, call.session.decisions.fire(**call.body.arguments()))


async def move(call: Call) -> DecisionResults:
    """Change the due time of pending messages."""
    body: Move = call.body
    if (body.deliver_at is None) == (body.delay_ms is None):
        raise invalid("give either deliver_at or delay_ms")
    moved = call.session.decisions.move(
        deliver_ms=None if body.deliver_at is None else milliseconds(body.deliver_at),
        delay_ms=body.delay_ms,
        **body.arguments(),
    )
    return await _decided(call, moved)


async def _decided(
    call: Call, decision: Coroutine[None, None, list[DecisionResult]]
) -> DecisionResults:
    """Return the results of a decision, and the brokers that did not get it."""
    return DecisionResults(await decision, await unasked(call.session))


async def history(call: Call) -> Histories:
    """Return the messages with an id or key, and their histories."""
    name, admin = call.path["name"], call.session.admin
    query: MessageQuery = call.query or MessageQuery()
    states = await of_masters(
        call.session, lambda one: admin.message_history(name, topic=query.topic, brokers=[one.name])
    )
    parts: list[MessageHistories] = values_of(states)
    messages = [message for part in parts for message in part.messages]
    unknown = unknown_of(states)
    if not messages:
        check_known(unknown, name)
        raise Problem(404, "no-message", "No broker has the message", name)
    return Histories(messages, any(part.more for part in parts), unknown)


ENDPOINTS: Final = (
    Endpoint(
        path="/pending",
        handler=list_pending,
        summary="List pending messages of levels, timers, and open pops.",
        tag="pending",
        query=PendingQuery,
        result=PageOfPending,
    ),
    Endpoint(
        method="POST",
        path="/pending/cancel",
        handler=cancel,
        summary="Cancel pending messages.",
        tag="pending",
        body=SelectedMessages,
        result=DecisionResults,
    ),
    Endpoint(
        method="POST",
        path="/pending/move",
        handler=move,
        summary="Change the due time of pending messages.",
        tag="pending",
        body=Move,
        result=DecisionResults,
    ),
    Endpoint(
        method="POST",
        path="/pending/fire",
        handler=fire,
        summary="Deliver pending messages now.",
        tag="pending",
        body=SelectedMessages,
        result=DecisionResults,
    ),
    Endpoint(
        path="/messages/{name}",
        has_slashes=True,
        handler=history,
        summary="Show the messages with an id or key, and their histories.",
        tag="messages",
        query=MessageQuery,
        result=Histories,
    ),
)
