"""Naive model of a broker: a list of messages and their expected state."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from message_store.log.gaps import BRIDGE_TOPIC
from message_store.log.record import Record

SCHEDULE, HALF, OPS = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
)
TIMER = "rmq_sys_wheel_timer"
QUARANTINE_PROPERTY = "DUEMQ_REASON"
BODY = re.compile(rb"<\d+ x*>")
HOLD_MS = 1_000  # maximum lead of store times over a clock that was set back


class Fate(Enum):
    """Response of the broker to a send."""

    UNKNOWN = auto()  # no response: stored once or not at all
    TAKEN = auto()
    NEVER = auto()  # rolled back: must not be delivered


@dataclass(slots=True)
class Message:
    """Sent message.

    Attributes:
        due_ms: Earliest delivery time.
        there_ms: Time by which an accepted message is delivered, with a tolerance of HOLD_MS.
        level: Delay level; 0: no delay.
        is_overtaken: Whether messages may have been sent before the response to its commit: they
            may come before it.
    """

    body: bytes
    topic: str
    level: int
    due_ms: int
    number: int
    fate: Fate = Fate.UNKNOWN
    there_ms: int = 0
    is_overtaken: bool = False

    def taken(self, now_ms: int, sent_ms: int) -> None:
        """Record the acknowledgement at `now_ms`; the store time is between `sent_ms` and then."""
        self.fate = Fate.TAKEN
        self.there_ms = self.due_ms + max(now_ms - sent_ms, 0)


@dataclass
class Model:
    """All messages of a simulation in the order of their sends."""

    messages: dict[tuple[str, bytes], Message] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)  # topics that were ever deleted

    def add(self, message: Message) -> Message:
        """Add a message before its send."""
        self.messages[message.topic, message.body] = message
        return message

    def faults(self, records: list[Record], now_ms: int) -> list[str]:
        """Compare the log's records in real topics and the quarantine; return the faults."""
        counts: Counter[tuple[str, bytes]] = Counter()
        faults = []
        order: dict[tuple[int, str, int], list[Message]] = defaultdict(list)
        for record in records:
            if record.topic in (SCHEDULE, HALF, OPS, TIMER, BRIDGE_TOPIC[: len(record.topic)]):
                continue
            key, parked = key_of(record)
            counts[key] += 1
            message = self.messages.get(key)
            if message is None:
                faults.append(f"no client sent {key}")
                continue
            if record.store_ms < message.due_ms:
                faults.append(f"{key} came {message.due_ms - record.store_ms} ms early")
            if message.level and not parked:
                order[message.level, record.topic, record.queue_id].append(message)
        faults += [self._count_fault(m, counts[k], now_ms) for k, m in self.messages.items()]
        faults += [fault for arrived in order.values() for fault in order_faults(arrived)]
        return [fault for fault in faults if fault]

    @staticmethod
    def _count_fault(message: Message, count: int, now_ms: int) -> str:
        subject = f"{message.fate.name} message {message.body!r} of level {message.level}"
        if count > 1:
            return f"{subject} is there {count} times"
        if count and message.fate is Fate.NEVER:
            return f"{subject} is there although it was rolled back"
        if not count and message.fate is Fate.TAKEN and now_ms >= message.there_ms + HOLD_MS:
            return f"{subject} is not there {now_ms - message.there_ms} ms after it was due"
        return ""


def key_of(record: Record) -> tuple[tuple[str, bytes], bool]:
    """Return (topic, body) of a message, and whether it is in the quarantine."""
    if QUARANTINE_PROPERTY in record.properties:
        inner = record.properties["DUEMQ_TOPIC"]
        match = BODY.search(record.body)  # the body there is the whole schedule record
        assert match is not None
        return (inner, match.group()), True
    return (record.topic, record.body), False


def order_faults(arrived: list[Message]) -> list[str]:
    """Return the messages of one level and queue that were delivered out of order."""
    faults = []
    for index, message in enumerate(arrived):
        for later in arrived[index + 1 :]:
            is_elder = later.number < message.number and not later.is_overtaken
            if is_elder and later.due_ms <= message.due_ms:
                faults.append(f"{message.body!r} came before its elder {later.body!r}")
                break
    return faults


def pending_of(records: list[Record], units: set[int]) -> Counter[int]:
    """Return the number of pending schedule records by level.

    A schedule record is pending if it is not the origin of another record.

    Args:
        units: Log offsets in the schedule queues.
    """
    origins = {-(record.prepared_offset + 1) for record in records if record.prepared_offset < 0}
    waiting: Counter[int] = Counter()
    for record in records:
        if record.topic == SCHEDULE:
            assert record.phys_offset in units, f"{record.phys_offset} has no unit"
            waiting[record.queue_id + 1] += record.phys_offset not in origins
    return +waiting


def timers_of(records: list[Record]) -> int:
    """Return the number of pending timers: timers that are not the origin of a record."""
    origins = {-(record.prepared_offset + 1) for record in records if record.prepared_offset < 0}
    return sum(record.topic == TIMER and record.phys_offset not in origins for record in records)


def log_records(store: Any) -> list[Record]:
    """Return every record of the log, decoded."""
    return [
        store.read_record(int(offset))
        for rows in store.scan(store.min_offset)
        for offset in rows["phys_offset"].tolist()
    ]
