"""Logs of random histories, and the rows that an export must have: the events know their truth.

Each event appends records to a log, and remembers what happened to which message. `expected` makes
the rows of all tables of these events, without reading a record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from delayed_delivery.names import CANCELLED_BODY, FIRED_BODY, MOVED_BODY
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.support.scheduled_logs import START_MS, ScheduledLog

LEVELS_MS = (1_000, 5_000)
BROKER = "b"
DAY_MS = 86_400_000
REVIVE = "rmq_sys_REVIVE_LOG_C"
Row = dict[str, Any]
Tables = dict[str, list[Row]]


@dataclass(frozen=True)
class Happened:
    """Record with a meaning.

    Attributes:
        leaf: Log offset of the pending record that it names.
        facts: Columns that depend on the kind.
    """

    table: str
    message: int
    offset: int
    ms: int
    leaf: int | None
    facts: Row


@dataclass
class PendingMessage:
    """State of a message while the log is written."""

    number: int
    topic: str
    level: int | None
    due_ms: int
    leaf: int

    @property
    def own(self) -> dict[str, str]:
        """Properties of its records."""
        named = {"UNIQ_KEY": f"id{self.number}", "KEYS": f"k{self.number}", "REAL_QID": "2"}
        named |= {"REAL_TOPIC": self.topic}
        if self.level:
            sent_back = {"TIMER_OUT_MS": "5000"} if self.number % 3 else {}  # a timer before
            return named | {"DELAY": str(self.level)} | sent_back
        out_ms = (self.due_ms - 1) // 1_000 * 1_000
        return named | {"TIMER_OUT_MS": str(out_ms), "TIMER_DELIVER_MS": str(self.due_ms)}


@dataclass
class RandomLog:
    """Log written by random events."""

    log: ScheduledLog = field(default_factory=ScheduledLog)
    events: list[Happened] = field(default_factory=list)
    pending: list[PendingMessage] = field(default_factory=list)
    now_ms: int = START_MS
    count: int = 0

    def step(self, kind: int, number: int) -> None:
        """Append the records of an event."""
        self.now_ms += number * 997
        kinds = [self.level, self.timer, self.level, self.timer, self.plain, self.pop]
        if not self.pending or kind < len(kinds):
            kinds[kind % len(kinds)](number)
            return
        ends = [self.deliver, self.move, self.copy, self.cancel, self.fire, self.quarantine]
        ends[kind % len(ends)](self.pending[number % len(self.pending)], number)

    def record(self, topic: str, properties: dict[str, str], **more: Any) -> int:
        return self.log.add(topic, self.now_ms, properties, **more)

    def note(self, table: str, message: PendingMessage, offset: int, **facts: Any) -> None:
        leaf = facts.pop("leaf", message.leaf)
        self.events.append(Happened(table, message.number, offset, self.now_ms, leaf, facts))

    def accept(self, message: PendingMessage, topic: str, queue_id: int) -> None:
        self.count += 1
        message.leaf = self.record(topic, message.own, queue_id=queue_id)
        self.pending.append(message)
        kind = {"level": message.level, "due_ms": message.due_ms, "topic": message.topic}
        self.note("scheduled", message, message.leaf, leaf=None, **kind)

    def level(self, number: int) -> None:
        level = 1 + number % 2
        due_ms = self.now_ms + LEVELS_MS[level - 1]
        message = PendingMessage(self.count, f"T{number % 3}", level, due_ms, 0)
        self.accept(message, SCHEDULE_TOPIC, level - 1)

    def timer(self, number: int) -> None:
        message = PendingMessage(self.count, f"T{number % 3}", None, self.now_ms + 1 + number, 0)
        self.accept(message, TIMER_TOPIC, 0)

    def plain(self, number: int) -> None:
        """Append a message, or one with the properties of a message that waits or was delivered."""
        topics = ("Plain", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%g_T1", "%DLQ%g")
        own = {"DELAY": "2"} if number % 4 == 1 else {"TIMER_OUT_MS": str(self.now_ms)}
        own |= {"REAL_TOPIC": "T1", "REAL_QID": "2"}
        self.record(topics[number % 4], {"UNIQ_KEY": "plain"} | (own if number % 4 else {}))

    def pop(self, number: int) -> None:
        facts = {"t": "T", "c": "g", "q": 1, "so": 7, "pt": self.now_ms, "it": 60_000, "n": 2}
        tag, offsets, body = "ck", [7, 8], json.dumps(facts | {"d": [0, 1]}).encode()
        if number % 3 == 1:
            tag, offsets, body = "ack", [9], json.dumps(facts | {"ao": 9}).encode()
        if number % 3 == 2:
            tag, offsets, body = "ck", [], b"{"
        own = {"REAL_TOPIC": REVIVE, "REAL_QID": "0", "TAGS": tag, "TIMER_OUT_MS": str(self.now_ms)}
        offset = self.record(TIMER_TOPIC, own, body=body)
        record = {"ck": "pop", "ack": "ack"}[tag]
        for queue_offset in offsets:
            named = {"topic": "T", "consumer_group": "g", "queue_id": 1, "popped_ms": self.now_ms}
            named |= {"invisible_ms": 60_000 if record == "pop" else None}
            self.pops(offset, record=record, queue_offset=queue_offset, **named)
        if not offsets:
            self.pops(offset, record="malformed")
        self.record(REVIVE, own, body=body, origin=offset)  # its delivery has no row

    def pops(self, offset: int, **facts: Any) -> None:
        self.events.append(Happened("pops", -1, offset, self.now_ms, None, facts))

    def deliver(self, message: PendingMessage, number: int) -> None:
        self.pending.remove(message)
        self.now_ms = max(self.now_ms, message.due_ms)
        for _ in range(1 if number % 4 else 2):  # some are delivered twice
            self.sent(message)

    def sent(self, message: PendingMessage) -> None:
        own = {name: value for name, value in message.own.items() if name != "REAL_QID"}
        offset = self.record(message.topic, own, origin=message.leaf, queue_id=2)
        queue_offset = self.log.records[-1].queue_offset
        self.note(
            "delivered",
            message,
            offset,
            level=message.level,
            due_ms=message.due_ms,
            topic=message.topic,
            queue_offset=queue_offset,
        )

    def move(self, message: PendingMessage, number: int) -> None:
        message.due_ms, message.level = message.due_ms + 1 + number, None
        if number % 5 == 4:  # the copy is not in the log
            self.pending.remove(message)
            [offset] = self.mark(message, message.leaf, body=MOVED_BODY)
            self.note(
                "decisions", message, offset, decision="moved", topic=message.topic, keys=None
            )
            return
        self.copied(message, "moved", {})
        self.mark(message, self.events[-1].leaf, body=MOVED_BODY if number % 2 else CANCELLED_BODY)

    def copy(self, message: PendingMessage, number: int) -> None:
        if message.level:
            return
        rolled = number % 2
        rolls = {"TIMER_ROLL_TIMES": str(number)} if rolled else {}
        self.copied(message, "rolled" if rolled else "copied", rolls)

    def copied(self, message: PendingMessage, decision: str, more: dict[str, str]) -> None:
        offset = self.record(TIMER_TOPIC, message.own | more, origin=message.leaf)
        facts = {"topic": message.topic, "due_ms": message.due_ms}
        self.note("decisions", message, offset, decision=decision, **facts)
        message.leaf = offset

    def mark(
        self,
        message: PendingMessage,
        origin: int | None,
        count: int = 1,
        body: bytes = CANCELLED_BODY,
    ) -> list[int]:
        """Append markers; former versions wrote the same body for all decisions."""
        named = {"TIMER_DEL_UNIQKEY": f"{message.topic}+id{message.number}"}
        own = {"REAL_TOPIC": message.topic, "TIMER_OUT_MS": str(self.now_ms)} | named
        return [self.record(TIMER_TOPIC, own, origin=origin, body=body) for _ in range(count)]

    def cancel(self, message: PendingMessage, number: int) -> None:
        if number % 4 == 3:
            [offset] = self.mark(message, None)
            facts = {"decision": "cancel_requested", "topic": message.topic}
            self.note("decisions", message, offset, leaf=None, **facts)
            return
        self.pending.remove(message)
        if message.level:
            own = {"UNIQ_KEY": f"id{message.number}"}
            offset = self.record("DUEMQ_DECISIONS", own, origin=message.leaf, body=b"0")
            self.note("decisions", message, offset, decision="cancelled")
            return
        offset = self.mark(message, message.leaf, 2)[0]
        self.note("decisions", message, offset, decision="cancelled", topic=message.topic)

    def fire(self, message: PendingMessage, number: int) -> None:
        self.pending.remove(message)
        if message.level or number % 5 != 4:  # otherwise the delivery is not in the log
            self.sent(message)
        if message.level:
            offset = self.record("DUEMQ_DECISIONS", {}, origin=message.leaf, body=b"1")
            self.note("decisions", message, offset, decision="fired", message_id=None)
            return
        old = number % 5 < 2
        [offset] = self.mark(message, message.leaf, body=CANCELLED_BODY if old else FIRED_BODY)
        self.note("decisions", message, offset, decision="fired", topic=message.topic)

    def quarantine(self, message: PendingMessage, number: int) -> None:
        self.pending.remove(message)
        offset = self.record("DUEMQ_QUARANTINE", message.own, origin=message.leaf)
        self.note("decisions", message, offset, decision="quarantined", topic=message.topic)


def expected(events: list[Happened], first: int, schemas: dict[str, list[str]]) -> Tables:
    """Return the rows of all tables for an export that begins at log offset `first`."""
    tables: Tables = {name: [] for name in schemas}
    first_records: dict[int, tuple[int, Row]] = {}
    for event in events:
        if event.offset < first:
            if event.table == "scheduled":
                first_records[event.message] = (event.offset, event.facts)
            continue
        row, table = dict(event.facts), event.table
        if event.table == "scheduled":
            first_records[event.message] = (event.offset, event.facts)
        is_known = event.leaf is not None and event.leaf >= first
        is_copy = row.get("decision") in ("moved", "copied", "rolled")
        if is_copy and not is_known:
            table, row = "scheduled", {"due_ms": row["due_ms"], "topic": row["topic"]}
            first_records[event.message] = (event.offset, row)
        row |= {"log_offset": event.offset, "origin_offset": event.leaf}
        if is_known:
            row["scheduled_offset"] = first_records[event.message][0]
        if table == "delivered":
            if not is_known and row["level"]:
                row["due_ms"] = None
            row["late_ms"] = None if row["due_ms"] is None else event.ms - row["due_ms"]
        tables[table].append(_row(table, row, event, schemas[table]))
    tables["lateness"] = lateness(tables["delivered"], schemas["lateness"])
    return tables


def _row(table: str, row: Row, event: Happened, names: list[str]) -> Row:
    own: Row = {"broker": BROKER, "message_id": f"id{event.message}"} | row
    if table in ("scheduled", "delivered"):
        own["kind"] = "level" if row.get("level") else "timer"
        own.setdefault("queue_id", 2)
    keyed = table != "decisions" or row["decision"] in ("moved", "copied", "rolled", "quarantined")
    if keyed:
        own.setdefault("keys", f"k{event.message}")
    own |= {"body_bytes": 4, "born_ms": START_MS}
    for name in ("accepted_ms", "delivered_ms", "decided_ms", "stored_ms"):
        own[name] = event.ms
    return _with_day({name: own.get(name) for name in names}, event.ms)


def _with_day(row: Row, ms: int) -> Row:
    day = datetime.fromtimestamp(ms // DAY_MS * DAY_MS / 1_000, UTC).date().isoformat()
    return row | {"day": day}


def lateness(delivered: list[Row], names: list[str]) -> list[Row]:
    """Return the rows of `lateness`, by sorted lists."""
    minutes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for sent in delivered:
        if sent["late_ms"] is not None:
            minute_ms = sent["delivered_ms"] // 60_000 * 60_000
            minutes[sent["topic"], minute_ms].append(sent["late_ms"])
    rows = []
    for (topic, minute_ms), values in minutes.items():
        late = sorted(value for value in values if value >= 0)
        row: Row = {"broker": BROKER, "topic": topic, "minute_ms": minute_ms}
        row |= {"deliveries": len(late), "early": len(values) - len(late)}
        for name, share in zip(names[5:], (500, 900, 990, 999, 1_000), strict=True):
            row[name] = late[(len(late) * share + 999) // 1_000 - 1] if late else None
        rows.append(_with_day(row, minute_ms))
    return rows
