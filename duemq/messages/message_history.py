"""History of a message, derived from its records in the log. Does no I/O.

    half message --commit--> message or scheduled --due--> delivered | quarantined
                             |                \\-- cancelled
                             \\-- moved, put again (copy whose origin is the older record)

Two records belong to one message if one names the other as its origin (a delivery names the pending
record), if one is a commit that names the other as its half message, or if both have the same
unique key and born time, which the client sets. A retry has the unique key and born time of its
message, so the retries of a message are part of its history.

The last record determines the state, with two exceptions: the plugins report whether a scheduled
message is pending, and the transaction service reports whether a half message was rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from delayed_delivery.names import NEXT_TIME, PLANNED_TIME, SCHEDULE_NAME
from delayed_delivery.pending import Verdict
from duemq_common.bodies.histories import HistoryStep, MessageHistory, OpenPop
from duemq_common.topics import (
    CHECK_MAX_TIME_TOPIC,
    DECISION_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    QUARANTINE_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from message_store.layout import SYS_TRANSACTION_MASK
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record

COMMIT: Final = 8  # value under SYS_TRANSACTION_MASK (MessageSysFlag.TRANSACTION_COMMIT_TYPE)
SCHEDULED_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)
OWN_TOPICS: Final = (
    *SCHEDULED_TOPICS,
    HALF_TOPIC,
    DECISION_TOPIC,
    QUARANTINE_TOPIC,
    CHECK_MAX_TIME_TOPIC,
)
# Properties of an occurrence of a recurring schedule.
HIDDEN_TOPICS: Final = (HALF_TOPIC, CHECK_MAX_TIME_TOPIC)  # not committed: no content in responses


class HistoryEvent(StrEnum):
    """Kind of a record in a message's history."""

    STORED = "stored"
    HALF = "half message"
    COMMITTED = "committed"
    GIVEN_UP = "given up"
    SCHEDULED = "scheduled"
    PUT_AGAIN = "put again"  # copy with the same due time: rolled or compacted
    MOVED = "moved"
    CANCEL_REQUESTED = "cancel requested"
    CANCELLED = "cancelled"
    FIRED = "fired"
    DELIVERED = "delivered"
    RETRY = "retry"  # delivered again to a group
    DEAD_LETTER = "dead letter"
    QUARANTINED = "quarantined"


class HistoryState(StrEnum):
    """Current state of a message."""

    STORED = "stored"
    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead letter"
    QUARANTINED = "quarantined"
    HALF = "half message"
    ROLLED_BACK = "rolled back"
    GIVEN_UP = "given up"
    UNKNOWN = "unknown"


class HistoryRecord(Struct):
    """Record of a message, and its state.

    Attributes:
        record: Record with a shortened body.
        body_bytes: Size of the complete body in bytes.
        due_ms: Due time of a scheduled record in ms since the epoch; None: not scheduled or
            unknown.
        verdict: Verdict on a scheduled record; DONE: the record is pending.
        half_finished: Whether a half message was committed, rolled back or given up.
        pops: Pops of the record that are not acknowledged.
    """

    record: Record
    body_bytes: int
    due_ms: int | None = None
    verdict: Verdict = Verdict.UNKNOWN
    half_finished: bool = False
    pops: list[OpenPop] = field(default_factory=list)

    @property
    def log_offset(self) -> int:
        """Log offset of the record."""
        return self.record.phys_offset

    @property
    def origin(self) -> int | None:
        """Log offset of the older record that this record names; None: it names none."""
        record = self.record
        if record.prepared_offset < 0:
            return -record.prepared_offset - 1
        is_commit = record.sys_flag & SYS_TRANSACTION_MASK == COMMIT
        return record.prepared_offset if is_commit else None

    @property
    def settles(self) -> bool:
        """Whether the origin is a scheduled record."""
        return self.record.prepared_offset < 0


def chains(records: Sequence[HistoryRecord]) -> list[list[HistoryRecord]]:
    """Return records grouped by message: each group in log order, the newest message last."""
    # Union-find: each record is linked to a name of its message, records with equal roots belong
    # to one message. A name is a log offset, or a unique key with a born time.
    parent: dict[object, object] = {}

    def root(name: object) -> object:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    timers: dict[str, int] = {}  # log offset of the newest timer by unique key
    for one in sorted(records, key=lambda one: one.log_offset):
        record = one.record
        if one.origin is not None:
            parent[root(one.log_offset)] = root(one.origin)
        if unique := record.properties.get("UNIQ_KEY"):
            if _is_marker(record) and not one.settles and unique in timers:
                parent[root(one.log_offset)] = root(timers[unique])
            elif record.topic == TIMER_TOPIC:
                timers[unique] = one.log_offset
            has_own_born_time = record.topic in (DECISION_TOPIC, QUARANTINE_TOPIC) or _is_marker(
                record
            )
            if not has_own_born_time:  # such records are linked by origin
                parent[root(one.log_offset)] = root((unique, record.born_ms))
    groups: dict[object, list[HistoryRecord]] = {}
    for one in sorted(records, key=lambda one: one.log_offset):
        groups.setdefault(root(one.log_offset), []).append(one)
    return sorted(groups.values(), key=lambda chain: chain[-1].log_offset)


def history_of(chain: Sequence[HistoryRecord]) -> MessageHistory:
    """Return the history of one message from its records in log order."""
    by_offset = {one.log_offset: one for one in chain}
    events = [event_of(one, by_offset) for one in chain]
    due_times = [
        one.due_ms
        for one in chain
        if one.record.topic in SCHEDULED_TOPICS and one.due_ms is not None
    ]
    state, reason, settled = _state_of(chain, events)
    content = _content_record(chain, events)
    properties = content.record.properties
    hidden = content.record.topic in HIDDEN_TOPICS
    first, due_ms = chain[0].record, due_times[-1] if due_times else None
    if due_ms is None and state is HistoryState.DELIVERED:
        due_ms = _number(properties.get("TIMER_DELIVER_MS"))
    return MessageHistory(
        state=state,
        reason=reason,
        topic=properties.get("REAL_TOPIC") or properties.get("DUEMQ_TOPIC") or content.record.topic,
        queue_id=_queue_of(content.record),
        level=_level_of(chain),
        due_ms=due_ms,
        schedule=properties.get(SCHEDULE_NAME),
        planned_ms=_number(properties.get(PLANNED_TIME)),
        next_ms=_number(properties.get(NEXT_TIME)),
        delivered_ms=settled.record.store_ms
        if settled and state is HistoryState.DELIVERED
        else None,
        born_ms=first.born_ms,
        stored_ms=first.store_ms,
        offset_message_id=encode_offset_id(*first.store_host, first.phys_offset),
        unique_key=properties.get("UNIQ_KEY"),
        keys=None if hidden else properties.get("KEYS"),
        tags=None if hidden else properties.get("TAGS"),
        properties={} if hidden else properties,
        body=b"" if hidden else content.record.body,
        body_bytes=content.body_bytes,
        records=[_step(one, event, first) for one, event in zip(chain, events, strict=True)],
        pops=[pop for one in chain for pop in one.pops],
    )


def event_of(one: HistoryRecord, chain: Mapping[int, HistoryRecord]) -> HistoryEvent:
    """Return the kind of a message's record.

    Args:
        chain: All records of the message by log offset.
    """
    record, topic = one.record, one.record.topic
    origin_record = chain.get(one.origin) if one.origin is not None else None
    if topic == HALF_TOPIC:
        return HistoryEvent.HALF
    if topic == CHECK_MAX_TIME_TOPIC:
        return HistoryEvent.GIVEN_UP
    if topic == QUARANTINE_TOPIC:
        return HistoryEvent.QUARANTINED
    if topic == DECISION_TOPIC:
        return (
            HistoryEvent.FIRED
            if record.properties.get("DUEMQ_DECISION") == "fired"
            else (HistoryEvent.CANCELLED)
        )
    if _is_marker(record):
        return HistoryEvent.CANCELLED if one.settles else HistoryEvent.CANCEL_REQUESTED
    if topic in SCHEDULED_TOPICS:
        if one.settles and not (origin_record is not None and origin_record.due_ms == one.due_ms):
            return HistoryEvent.MOVED
        is_copy = one.settles or "TIMER_ROLL_TIMES" in record.properties
        return HistoryEvent.PUT_AGAIN if is_copy else HistoryEvent.SCHEDULED
    if topic.startswith(DLQ_PREFIX):
        return HistoryEvent.DEAD_LETTER
    if topic.startswith(RETRY_PREFIX):
        return HistoryEvent.RETRY
    if one.settles:
        due_ms = origin_record.due_ms if origin_record is not None else None
        is_early = due_ms is not None and record.store_ms < due_ms
        return HistoryEvent.FIRED if is_early else HistoryEvent.DELIVERED
    if any(
        other.record.topic in SCHEDULED_TOPICS and other.log_offset < one.log_offset
        for other in chain.values()
    ):
        return HistoryEvent.DELIVERED  # deliveries of an Apache broker name no origin
    return HistoryEvent.COMMITTED if one.origin is not None else HistoryEvent.STORED


def _state_of(
    chain: Sequence[HistoryRecord], events: Sequence[HistoryEvent]
) -> tuple[HistoryState, str, HistoryRecord | None]:
    """Return the state, its reason, and the record that determines it (None: no record)."""
    for one in reversed(chain):
        if one.record.topic in SCHEDULED_TOPICS and one.verdict == Verdict.DONE:
            return HistoryState.PENDING, "", one
    last, event = chain[-1], events[-1]
    if event in (HistoryEvent.DELIVERED, HistoryEvent.FIRED):
        return (
            HistoryState.DELIVERED,
            "fired before its time" if event is HistoryEvent.FIRED else "",
            last,
        )
    if event is HistoryEvent.RETRY:
        return HistoryState.DELIVERED, _group_text(last.record, chain[0].record), last
    if event is HistoryEvent.DEAD_LETTER:
        return HistoryState.DEAD_LETTER, _group_text(last.record, chain[0].record), last
    if event is HistoryEvent.QUARANTINED:
        return HistoryState.QUARANTINED, _quarantine_reason(last.record), last
    if event is HistoryEvent.CANCELLED:
        return HistoryState.CANCELLED, "", last
    if event is HistoryEvent.GIVEN_UP:
        return HistoryState.GIVEN_UP, "its producer neither committed it nor rolled it back", last
    if event is HistoryEvent.HALF:
        if last.half_finished:
            return HistoryState.ROLLED_BACK, "", last
        return HistoryState.HALF, "its producer has neither committed it nor rolled it back", last
    if event in (HistoryEvent.STORED, HistoryEvent.COMMITTED):
        return HistoryState.STORED, "", last
    return _state_without_record(chain)


def _state_without_record(
    chain: Sequence[HistoryRecord],
) -> tuple[HistoryState, str, HistoryRecord | None]:
    """Return the state of a scheduled message that is not pending and has no final record."""
    verdicts = {one.verdict for one in chain if one.record.topic in SCHEDULED_TOPICS}
    if Verdict.CANCELLED in verdicts:
        return HistoryState.CANCELLED, "cancelled by a client's recall marker", None
    if Verdict.DELIVERED in verdicts:
        reason = (
            "no record of its delivery: the message has no key, or retention removed the record"
        )
        return HistoryState.DELIVERED, reason, None
    return (
        HistoryState.UNKNOWN,
        "not pending, and the log has no record of its delivery or removal",
        None,
    )


def _content_record(
    chain: Sequence[HistoryRecord], events: Sequence[HistoryEvent]
) -> HistoryRecord:
    """Return the latest record with the body and properties of the message."""
    without_content = (
        HistoryEvent.CANCELLED,
        HistoryEvent.CANCEL_REQUESTED,
        HistoryEvent.QUARANTINED,
    )
    with_content = [
        one
        for one, event in zip(chain, events, strict=True)
        if event not in without_content and one.record.topic != DECISION_TOPIC
    ]
    return with_content[-1] if with_content else chain[-1]


def _step(one: HistoryRecord, event: HistoryEvent, first: Record) -> HistoryStep:
    record, detail = one.record, ""
    if event is HistoryEvent.QUARANTINED:
        detail = _quarantine_reason(record)
    elif event in (HistoryEvent.RETRY, HistoryEvent.DEAD_LETTER):
        detail = _group_text(record, first)
    elif record.topic == SCHEDULE_TOPIC:
        detail = f"level {record.queue_id + 1}"
    return HistoryStep(
        event=event,
        commit_log_offset=one.log_offset,
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_ms=record.store_ms,
        size=record.total_size,
        due_ms=one.due_ms,
        detail=detail,
    )


def _group_text(record: Record, first: Record) -> str:
    """Return which group did not consume a message, and how often it was delivered before.

    Args:
        first: First record of the message; a pop retry topic ends with its topic.
    """
    group = record.topic.partition("%")[2].partition("%")[2]
    for separator in "+_":
        group = group.removesuffix(f"{separator}{first.topic}")
    return f"group {group}, after {max(record.reconsume_times, 1)} deliveries"


def _quarantine_reason(record: Record) -> str:
    properties = record.properties
    return f"{properties.get('DUEMQ_REASON', '')}: {properties.get('DUEMQ_DETAIL', '')}"


def _is_marker(record: Record) -> bool:
    """Return whether a record is a recall marker, which cancels the timer with its unique key."""
    return record.topic == TIMER_TOPIC and "TIMER_DEL_UNIQKEY" in record.properties


def _level_of(chain: Sequence[HistoryRecord]) -> int | None:
    levels = [one.record.queue_id + 1 for one in chain if one.record.topic == SCHEDULE_TOPIC]
    return levels[-1] if levels else None


def _queue_of(record: Record) -> int | None:
    if record.topic in OWN_TOPICS:
        properties = record.properties
        return _number(properties.get("REAL_QID") or properties.get("DUEMQ_QUEUE_ID"))
    return record.queue_id


def _number(text: str | None) -> int | None:
    fits = text is not None and text.isascii() and text.isdigit() and len(text) <= 18
    return int(text) if fits and text is not None else None
