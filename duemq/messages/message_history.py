"""History of a message, derived from its records in the log. Pure decisions.

    half message --commit--> message or scheduled --due--> delivered | quarantined
                             |                \\-- cancelled
                             \\-- moved, put again (a copy with the elder as its origin)

Records of one message are joined by origins (a delivery names the record it was made from), by the
half message that a commit names, and by what a client gave it: unique key and time of birth. A
message that was sent back by a consumer keeps both, so its retries are part of its history.

The last record gives the state, except for two facts that no record has: whether a scheduled
message is still pending (the plugins know), and whether a half message was rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from delivery.pending import Verdict
from delivery.quarantine import QUARANTINE_TOPIC
from duemq.registry.internal_topics import DECISION_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from duemq.transactions.half_messages import GIVEN_UP_TOPIC, HALF_TOPIC
from message_store.layout import SYS_TRANSACTION_MASK
from message_store.log.record import Record
from message_store.text import encode_offset_id

COMMIT: Final = 8  # of SYS_TRANSACTION_MASK: MessageSysFlag.TRANSACTION_COMMIT_TYPE
HELD_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
OWN_TOPICS: Final = (*HELD_TOPICS, HALF_TOPIC, DECISION_TOPIC, QUARANTINE_TOPIC, GIVEN_UP_TOPIC)
HIDDEN_TOPICS: Final = (HALF_TOPIC, GIVEN_UP_TOPIC)  # never shown: not committed


class Event(StrEnum):
    """Kind of a message's record."""

    STORED = "stored"
    HALF = "half message"
    COMMITTED = "committed"
    GIVEN_UP = "given up"
    SCHEDULED = "scheduled"
    PUT_AGAIN = "put again"  # a copy with the same due time: rolled, or compacted
    MOVED = "moved"
    CANCEL_ASKED = "cancel requested"
    CANCELLED = "cancelled"
    FIRED = "fired"
    DELIVERED = "delivered"
    QUARANTINED = "quarantined"


class State(StrEnum):
    """Current state of a message."""

    STORED = "stored"
    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    HALF = "half message"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Seen:
    """A record of a message.

    Attributes:
        record: Record with its body cut to the shown part.
        body_bytes: all of the body.
        due_ms: what a held record was promised; None: it holds nothing, or promises no time.
        verdict: of a held record: DONE while it is pending, else what became of it.
        half_finished: a half message was committed, rolled back or given up.
    """

    record: Record
    body_bytes: int
    due_ms: int | None = None
    verdict: Verdict = Verdict.UNKNOWN
    half_finished: bool = False

    @property
    def at(self) -> int:
        """Its log offset."""
        return self.record.phys_offset

    @property
    def origin(self) -> int | None:
        """Log offset of the record that it was made from."""
        record = self.record
        if record.prepared_offset < 0:
            return -record.prepared_offset - 1
        is_commit = record.sys_flag & SYS_TRANSACTION_MASK == COMMIT
        return record.prepared_offset if is_commit else None

    @property
    def settles(self) -> bool:
        """Whether it names a held record as its origin."""
        return self.record.prepared_offset < 0


class Step(msgspec.Struct, kw_only=True):
    """One record of a history, as it is answered."""

    event: str
    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    size: int
    due_ms: int | None = None
    detail: str = ""


class History(msgspec.Struct, kw_only=True):
    """One message, as it is answered.

    Attributes:
        topic, queue_id: where consumers find it, or will.
        level: it came by level; None: it did not.
        due_ms: when it was promised last, to the millisecond; None: at once, or not known.
        delivered_ms: store time of its delivery.
        reason: of its state, for people.
    """

    state: str
    reason: str = ""
    topic: str
    queue_id: int | None = None
    level: int | None = None
    due_ms: int | None = None
    delivered_ms: int | None = None
    born_ms: int
    stored_ms: int
    offset_message_id: str
    unique_key: str | None = None
    keys: str | None = None
    tags: str | None = None
    properties: dict[str, str] = {}
    body: bytes = b""
    body_bytes: int = 0
    records: list[Step]


def chains(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Return records joined to messages, each in log order, the newest message last."""
    parent: dict[object, object] = {}

    def root(name: object) -> object:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    timers: dict[str, int] = {}  # the newest timer with a unique key
    for one in sorted(seen, key=lambda one: one.at):
        record = one.record
        if one.origin is not None:
            parent[root(one.at)] = root(one.origin)
        if unique := record.properties.get("UNIQ_KEY"):
            if _is_marker(record) and not one.settles and unique in timers:
                parent[root(one.at)] = root(timers[unique])
            elif record.topic == TIMER_TOPIC:
                timers[unique] = one.at
            is_note = record.topic in (DECISION_TOPIC, QUARANTINE_TOPIC) or _is_marker(record)
            if not is_note:  # those have an origin, and their own time of birth
                parent[root(one.at)] = root((unique, record.born_ms))
    joined: dict[object, list[Seen]] = {}
    for one in sorted(seen, key=lambda one: one.at):
        joined.setdefault(root(one.at), []).append(one)
    return sorted(joined.values(), key=lambda chain: chain[-1].at)


def history_of(chain: Sequence[Seen]) -> History:
    """Return what happened to one message, given its records in log order."""
    by_offset = {one.at: one for one in chain}
    events = [event_of(one, by_offset) for one in chain]
    held = [one for one in chain if one.record.topic in HELD_TOPICS and one.due_ms is not None]
    state, reason, settled = _state_of(chain, events)
    shown = _shown(chain, events)
    properties = shown.record.properties
    hidden = shown.record.topic in HIDDEN_TOPICS
    first, due_ms = chain[0].record, held[-1].due_ms if held else None
    if due_ms is None and state is State.DELIVERED:
        due_ms = _number(properties.get("TIMER_DELIVER_MS"))
    return History(
        state=state,
        reason=reason,
        topic=properties.get("REAL_TOPIC") or properties.get("DUEMQ_TOPIC") or shown.record.topic,
        queue_id=_queue_of(shown.record),
        level=_level_of(chain),
        due_ms=due_ms,
        delivered_ms=settled.record.store_ms if settled and state is State.DELIVERED else None,
        born_ms=first.born_ms,
        stored_ms=first.store_ms,
        offset_message_id=encode_offset_id(*first.store_host, first.phys_offset),
        unique_key=properties.get("UNIQ_KEY"),
        keys=None if hidden else properties.get("KEYS"),
        tags=None if hidden else properties.get("TAGS"),
        properties={} if hidden else properties,
        body=b"" if hidden else shown.record.body,
        body_bytes=shown.body_bytes,
        records=[_step(one, event) for one, event in zip(chain, events, strict=True)],
    )


def event_of(one: Seen, chain: Mapping[int, Seen]) -> Event:
    """Return the kind of a message's record.

    Args:
        chain: all records of the message, by log offset.
    """
    record, topic = one.record, one.record.topic
    elder = chain.get(one.origin) if one.origin is not None else None
    if topic == HALF_TOPIC:
        return Event.HALF
    if topic == GIVEN_UP_TOPIC:
        return Event.GIVEN_UP
    if topic == QUARANTINE_TOPIC:
        return Event.QUARANTINED
    if topic == DECISION_TOPIC:
        return (
            Event.FIRED if record.properties.get("DUEMQ_DECISION") == "fired" else (Event.CANCELLED)
        )
    if _is_marker(record):
        return Event.CANCELLED if one.settles else Event.CANCEL_ASKED
    if topic in HELD_TOPICS:
        if one.settles and not (elder is not None and elder.due_ms == one.due_ms):
            return Event.MOVED
        again = one.settles or "TIMER_ROLL_TIMES" in record.properties
        return Event.PUT_AGAIN if again else Event.SCHEDULED
    if one.settles:
        due_ms = elder.due_ms if elder is not None else None
        early = due_ms is not None and record.store_ms < due_ms
        return Event.FIRED if early else Event.DELIVERED
    if any(other.record.topic in HELD_TOPICS and other.at < one.at for other in chain.values()):
        return Event.DELIVERED  # by an Apache broker: its deliveries name no origin
    return Event.COMMITTED if one.origin is not None else Event.STORED


def _state_of(chain: Sequence[Seen], events: Sequence[Event]) -> tuple[State, str, Seen | None]:
    """Return (state, reason, the record that proves it)."""
    for one in reversed(chain):
        if one.record.topic in HELD_TOPICS and one.verdict == Verdict.DONE:
            return State.PENDING, "", one
    last, event = chain[-1], events[-1]
    if event in (Event.DELIVERED, Event.FIRED):
        return State.DELIVERED, "fired before its time" if event is Event.FIRED else "", last
    if event is Event.QUARANTINED:
        had = last.record.properties
        reason = f"{had.get('DUEMQ_REASON', '')}: {had.get('DUEMQ_DETAIL', '')}"
        return State.QUARANTINED, reason, last
    if event is Event.CANCELLED:
        return State.CANCELLED, "", last
    if event is Event.GIVEN_UP:
        return State.GIVEN_UP, "its producer did not say whether to commit", last
    if event is Event.HALF:
        if last.half_finished:
            return State.ROLLED_BACK, "", last
        return State.HALF, "its producer has neither committed nor rolled back", last
    if event in (Event.STORED, Event.COMMITTED):
        return State.STORED, "", last
    return _state_of_ended(chain)


def _state_of_ended(chain: Sequence[Seen]) -> tuple[State, str, Seen | None]:
    """Return the state of a held message that is not pending, and whose end has no record."""
    verdicts = {one.verdict for one in chain if one.record.topic in HELD_TOPICS}
    if Verdict.CANCELLED in verdicts:
        return State.CANCELLED, "cancelled by a marker of a client", None
    if Verdict.DELIVERED in verdicts:
        why = "its delivery was not found: it has no key, or retention removed it"
        return State.DELIVERED, why, None
    return State.UNKNOWN, "neither pending here, nor is its end in the log", None


def _shown(chain: Sequence[Seen], events: Sequence[Event]) -> Seen:
    """Return the record whose body and properties are the message's own."""
    notes = (Event.CANCELLED, Event.CANCEL_ASKED, Event.QUARANTINED)
    own = [
        one
        for one, event in zip(chain, events, strict=True)
        if event not in notes and one.record.topic != DECISION_TOPIC
    ]
    return own[-1] if own else chain[-1]


def _step(one: Seen, event: Event) -> Step:
    record = one.record
    had = record.properties
    detail = ""
    if event is Event.QUARANTINED:
        detail = f"{had.get('DUEMQ_REASON', '')}: {had.get('DUEMQ_DETAIL', '')}"
    elif record.topic == SCHEDULE_TOPIC:
        detail = f"level {record.queue_id + 1}"
    return Step(
        event=event,
        commit_log_offset=one.at,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_ms=record.store_ms,
        size=record.total_size,
        due_ms=one.due_ms,
        detail=detail,
    )


def _is_marker(record: Record) -> bool:
    return record.topic == TIMER_TOPIC and "TIMER_DEL_UNIQKEY" in record.properties


def _level_of(chain: Sequence[Seen]) -> int | None:
    levels = [one.record.queue_id + 1 for one in chain if one.record.topic == SCHEDULE_TOPIC]
    return levels[-1] if levels else None


def _queue_of(record: Record) -> int | None:
    if record.topic in OWN_TOPICS:
        had = record.properties
        return _number(had.get("REAL_QID") or had.get("DUEMQ_QUEUE_ID"))
    return record.queue_id


def _number(text: str | None) -> int | None:
    fits = text is not None and text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if fits and text is not None else None
