"""Random stores as table rows, with correctly and incorrectly handled messages."""

from __future__ import annotations

import random
from typing import Any
from zlib import crc32

from delayed_delivery.names import CANCELLED_BODY, FIRED_BODY, MOVED_BODY
from duemq_common.topics import DECISION_TOPIC, QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

Row = dict[str, Any]
START_MS = 1_700_000_000_000
STEP_MS = 400
FAR = [(1 << 48) - 1, (1 << 48) + 10_100, (1 << 63) - 1]  # larger than any log offset


class RandomStore:
    """Rows of a random store; columns have few distinct values, so that collisions are frequent."""

    def __init__(self, name: str, chance: int | random.Random) -> None:
        self.name = name
        self.random = random.Random(chance) if isinstance(chance, int) else chance
        self.messages: list[Row] = []
        self.queues: list[Row] = []
        self.cursors: list[Row] = []
        self.log_offset = self.random.choice([0, 0, 10_000])
        self.now_ms = START_MS
        self.numbers: dict[str, int] = {}
        self.held: list[Row] = []
        for _ in range(self.random.randint(3, 25)):
            self.step()
        self.write_cursors()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def row(self, topic: str, **more: Any) -> Row:
        """Append a record."""
        self.log_offset += self.random.randint(100, 300)
        self.now_ms += self.random.randint(0, STEP_MS)
        number = self.numbers[topic] = self.numbers.get(topic, -1) + 1
        made = {
            "store": self.name,
            "phys_offset": self.log_offset,
            "topic": topic,
            "queue_id": 0,
            "queue_offset": number,
            "store_ms": self.now_ms,
            "born_ms": START_MS,
            "sys_flag": self.random.choice([0] * 30 + [8, 12]),
            "prepared_offset": 0,
            "body_crc": self.random.choice([1] * 12 + [2]),
            "body_len": 4,
            "damage": self.random.choice([None] * 30 + ["body-crc", "gap"]),
            "unique_id": None,
            "real_topic": None,
            "real_queue_id": None,
            "level": None,
            "due_ms": None,
            "out_ms": None,
            "rolls": None,
            "cancels": None,
            "properties_hash": self.random.choice([7] * 12 + [8]),
            "head_hash": self.random.choice([5] * 20 + [6]),
            "other_time": self.chance(0.1) if topic == SCHEDULE_TOPIC else None,
            "queued": self.random.choice([None] * 5 + [True] * 21 + [False] * 5),
        } | more
        self.messages.append(made)
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and self.chance(0.9):
            self.queues.append(
                {
                    "store": self.name,
                    "topic": topic,
                    "queue_id": made["queue_id"],
                    "queue_offset": number,
                    "phys_offset": self.log_offset,
                    "record_size": 100,
                    "tags_code": self.now_ms + 1_000 if self.chance(0.8) else 77,
                }
            )
        if self.queues and self.chance(0.03):
            other_unit = {"queue_offset": 500 + len(self.queues), "second": True}
            self.queues.append(self.random.choice(self.queues) | other_unit)
        return made

    def step(self) -> None:
        """Append a record of some kind."""
        kinds = [self.level, self.timer, self.copy, self.end, self.end, self.end, self.marker]
        self.random.choice(kinds)()
        if self.chance(0.05):
            origin = self.random.choice([self.random.randint(0, self.log_offset + 500)] * 3 + FAR)
            self.row("Plain", prepared_offset=~origin)
        if self.chance(0.05):
            self.unrelated()
        if self.chance(0.05):
            self.early_marker()
        if self.chance(0.2):
            self.removed()

    def own(self) -> Row:
        uniques: list[str | None] = ["a", "b", "c", "d", None]
        return {
            "unique_id": self.random.choice(uniques),
            "real_topic": self.random.choice(["T", "T", "U"]),
            "real_queue_id": self.random.choice([0, 0, 1]),
        }

    def level(self) -> None:
        """Append a message with a level."""
        level = self.random.randint(1, 2)
        facts = {"level": level, "queue_id": level - 1}
        facts["due_ms"] = self.now_ms + 5 if self.chance(0.1) else None  # type: ignore[assignment]
        self.held.append(self.row(SCHEDULE_TOPIC, **facts, **self.own()))

    def times(self) -> Row:
        due_ms = self.now_ms + self.random.choice([100, 900, 2_500, 60_000])
        broken = self.chance(0.05)
        return {"due_ms": None if broken else due_ms, "out_ms": (due_ms - 1) // 1_000 * 1_000}

    def timer(self) -> None:
        """Append a timer; some were rolled by an Apache broker."""
        rolls = self.random.choice([None] * 8 + [1, 2])
        self.held.append(self.row(TIMER_TOPIC, rolls=rolls, **self.times(), **self.own()))

    def copy(self) -> None:
        """Append a copy with an origin, or one of Apache's."""
        if not self.held:
            return
        old = self.random.choice(self.held[-3:])
        kept = {n: old[n] for n in ("unique_id", "real_topic", "real_queue_id", "out_ms", "due_ms")}
        rolls = (old["rolls"] or 0) + 1 if self.chance(0.5) else None
        times = kept if rolls and old["out_ms"] else kept | self.times()
        named = 0 if rolls and self.chance(0.4) else -old["phys_offset"] - 1
        if old["topic"] == TIMER_TOPIC and not old["rolls"] and self.chance(0.3):
            rolls, times, named = 0, kept, 0  # by Apache's timeline in RocksDB
        self.held.append(self.row(TIMER_TOPIC, prepared_offset=named, rolls=rolls, **times))

    def end(self) -> None:
        """Append a record that settles a message, validly or not."""
        if not self.held:
            return
        old = self.random.choice(self.held[-5:] if self.chance(0.4) else self.held[-1:])
        named = -old["phys_offset"] - 1 if self.chance(0.7) else 0
        names = ("unique_id", "real_topic", "real_queue_id", "level", "out_ms", "rolls")
        kept = {name: old[name] for name in names}
        if self.chance(0.15):
            topic = self.random.choice([QUARANTINE_TOPIC, DECISION_TOPIC])
            self.row(topic, prepared_offset=named, **self.decision())
            return
        if self.chance(0.6) and old["due_ms"]:
            self.now_ms = max(self.now_ms, old["due_ms"])
        topic = old["real_topic"] if self.chance(0.9) else "V"
        if named == 0 and self.chance(0.3):  # as Apache's timeline in RocksDB delivers
            kept |= {"real_topic": None, "real_queue_id": None}
        self.row(topic, queue_id=old["real_queue_id"] or 0, prepared_offset=named, **kept)

    def marker(self) -> None:
        """Append a marker that cancels."""
        if not self.held:
            return
        old = self.random.choice(self.held[-3:])
        name = f"{old['real_topic']}+{old['unique_id']}"
        named = -old["phys_offset"] - 1 if self.chance(0.5) else 0
        own = {"prepared_offset": named, "cancels": name, "out_ms": old["out_ms"]}
        self.row(TIMER_TOPIC, **own, **self.decision())

    def decision(self) -> Row:
        """Return the body of a record about a cancel, a fire or a move."""
        body = self.random.choice([CANCELLED_BODY] * 2 + [FIRED_BODY, MOVED_BODY])
        return {"body_crc": crc32(body) & 0x7FFFFFFF, "body_len": len(body)}

    def early_marker(self) -> None:
        """Append a marker before its timer, which is not cancelled."""
        own, times = self.own(), self.times()
        name = f"{own['real_topic']}+{own['unique_id']}"
        self.row(TIMER_TOPIC, cancels=name, out_ms=times["out_ms"])
        self.held.append(self.row(TIMER_TOPIC, **times, **own))

    def unrelated(self) -> None:
        """Append a record whose origin is an offset without a record, sometimes with a unit."""
        origin = self.log_offset + 10
        if self.chance(0.5):
            self.queues.append(
                {
                    "store": self.name,
                    "topic": SCHEDULE_TOPIC,
                    "queue_id": 0,
                    "queue_offset": 1_000 + len(self.queues),
                    "phys_offset": origin,
                    "record_size": 100,
                    "tags_code": self.now_ms + 1_000,
                }
            )
        topic = self.random.choice([QUARANTINE_TOPIC, DECISION_TOPIC])
        self.row(topic, prepared_offset=~origin)

    def removed(self) -> None:
        """Add a queue unit with an offset before the log, sometimes with a settled state."""
        if not self.messages or not (log_min := self.messages[0]["phys_offset"]):
            return
        origin = self.random.randrange(min(log_min, 6))
        if self.chance(0.7):
            self.queues.append(
                {
                    "store": self.name,
                    "queue_id": 0,
                    "queue_offset": 2_000 + len(self.queues),
                    "topic": self.random.choice([SCHEDULE_TOPIC, TIMER_TOPIC]),
                    "record_size": 100,
                    "phys_offset": origin,
                    "tags_code": self.now_ms,
                    "pending": self.chance(0.5),
                }
            )
        if self.chance(0.5):
            topic = self.random.choice(["T", "T", DECISION_TOPIC, QUARANTINE_TOPIC])
            self.row(topic, prepared_offset=~origin)

    def write_cursors(self) -> None:
        """Write or omit the offsets of services."""
        for level in (1, 2):
            if self.chance(0.7):
                value = self.random.randint(0, self.numbers.get(SCHEDULE_TOPIC, 0) + 1)
                self._cursor("level", str(level), level - 1, value)
        if self.chance(0.7):
            self._cursor("timer", "read_ms", 0, (self.now_ms - 500) // 1_000 * 1_000)
            self._cursor("timer", "log_pos", 0, 52)

    def _cursor(self, kind: str, name: str, queue_id: int, value: int) -> None:
        self.cursors.append(
            {"store": self.name, "kind": kind, "name": name, "queue_id": queue_id, "value": value}
        )
