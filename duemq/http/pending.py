"""Pending messages: list, cancel, move, fire; histories of messages."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duemq.client.message import milliseconds
from duemq.client.routes import bytes_of
from duemq.http.endpoints import Call, Endpoint, JsonObject, invalid
from duemq.http.problems import Problem
from duemq.http.sent import DELAY_MS_MAX
from duemq.net.codes import RequestCode
from duemq.net.decisions import TIME_MS_MAX, DecisionResult

LIST_VIEW: Final = "timer_store.list"
PAGE_MAX: Final = 1_000
NAMES_MAX: Final = 10_000
NAME_MAX: Final = 1_024
CALL_TIMEOUT_S: Final = 60.0
CURSOR: Final = r"^([0-9]{1,4}\.((-1|[0-9]{1,18})(_(-1|[0-9]{1,18})){4})?)?$"

TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX - 1)]
UntilMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Names = Annotated[list[Name], Meta(max_length=NAMES_MAX)]


class PendingQuery(msgspec.Struct, kw_only=True):
    """SelectedMessages of pending messages.

    Attributes:
        topic: Topic to which the messages will be delivered; empty: all.
        key: Key or unique id; empty: all.
        from_ms, until_ms: Due times from `from_ms` to before `until_ms`, in ms since the epoch.
        limit: Maximum number of messages of the page.
        cursor: Cursor of the page before; empty: the first page.
    """

    topic: Annotated[str, Meta(max_length=127)] = ""
    key: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    from_ms: TimeMs = 0
    until_ms: UntilMs = TIME_MS_MAX
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100
    cursor: Annotated[str, Meta(pattern=CURSOR)] = ""


class PageOfPending(msgspec.Struct, kw_only=True):
    """Page of pending timers: the brokers one after the other, each in order of the due times.

    Attributes:
        messages: Messages as the broker describes them.
        cursor: Cursor of the next page; null at the end. A page may be empty before the end.
        damage: Unreadable parts of the timer log.
    """

    messages: list[JsonObject]
    cursor: str | None
    damage: list[str]


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
    """Result for each name, in order."""

    results: list[DecisionResult]


class MessageQuery(msgspec.Struct):
    """Topic of a message; empty: any."""

    topic: Annotated[str, Meta(max_length=127)] = ""


class Histories(msgspec.Struct):
    """Messages with a name, each with its state and history, newest last.

    Attributes:
        more: Whether there are older ones.
    """

    messages: list[JsonObject]
    more: bool


async def list_pending(call: Call) -> PageOfPending:
    """Return a page of the pending timers."""
    query: PendingQuery = call.query or PendingQuery()
    masters = await call.session.masters()
    number, _, cursor = query.cursor.partition(".")
    if query.cursor and not (number.isascii() and number.isdigit() and int(number) < len(masters)):
        raise invalid("the cursor is not one of this list")
    index = int(number or 0)
    name, address = masters[index]
    fields: dict[str, object] = {
        "topic": query.topic,
        "key": query.key,
        "from_ms": query.from_ms,
        "to_ms": query.until_ms,
        "limit": query.limit,
        "cursor": cursor,
    }
    page: JsonObject = await call.session.admin.view(address, LIST_VIEW, **fields)
    following: str | None = None
    if page["cursor"] is not None:
        following = f"{index}.{page['cursor']}"
    elif index + 1 < len(masters):
        following = f"{index + 1}."
    messages = [{"broker": name, **timer} for timer in page["timers"]]
    return PageOfPending(messages=messages, cursor=following, damage=page["damage"])


async def cancel(call: Call) -> DecisionResults:
    """Cancel pending messages."""
    return DecisionResults(await call.session.decisions.cancel(**call.body.arguments()))


async def fire(call: Call) -> DecisionResults:
    """Deliver pending messages now."""
    return DecisionResults(await call.session.decisions.fire(**call.body.arguments()))


async def move(call: Call) -> DecisionResults:
    """Change the due time of pending messages."""
    body: Move = call.body
    if (body.deliver_at is None) == (body.delay_ms is None):
        raise invalid("give either deliver_at or delay_ms")
    results = await call.session.decisions.move(
        deliver_ms=None if body.deliver_at is None else milliseconds(body.deliver_at),
        delay_ms=body.delay_ms,
        **body.arguments(),
    )
    return DecisionResults(results)


async def history(call: Call) -> Histories:
    """Return the messages with an id or key, and their histories."""
    name = call.path["name"]
    query: MessageQuery = call.query or MessageQuery()
    body = msgspec.json.encode({"name": name, "topic": query.topic})
    masters = await call.session.masters()
    responses = await asyncio.gather(
        *[
            call.session.client.ask(
                address, RequestCode.FIND_MESSAGE, body=body, timeout_s=CALL_TIMEOUT_S
            )
            for _, address in masters
        ]
    )
    histories = Histories([], False)
    for (broker, _), response in zip(masters, responses, strict=True):
        value = msgspec.json.decode(bytes_of(response))
        histories.more |= value["more"]
        histories.messages += [{"broker": broker, **one} for one in value["messages"]]
    if not histories.messages:
        raise Problem(404, "no-message", "No broker has the message", name)
    return histories


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/pending",
        handler=list_pending,
        summary="List pending timers in order of their due times.",
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
        method="GET",
        path="/messages/{name}",
        handler=history,
        summary="Show the messages with an id or key, and their histories.",
        tag="messages",
        query=MessageQuery,
        result=Histories,
    ),
)
