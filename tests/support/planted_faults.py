"""Store with known faults in its log, after use of levels, timers and a migration.

Each kind of fault is planted in messages of four kinds, at random positions among normal messages:

    timer      timer with a delivery time           level     message in a level's queue
    drained    level message migrated to a timer    routed    level message routed to a timer
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.fill import KEY_DIGITS, KEY_HEAD, LOOPBACK, ROWS, TIME_DIGITS, key, write_digits
from delayed_delivery.pending import Verdict
from delayed_delivery.quarantine import origin_of
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store import layout
from message_store.layout import CQ_UNIT
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from tests.spark_reconciliation.log_bytes import Log
from tests.support.migration_rig import MigrationRig

Numbers = npt.NDArray[np.int64]
Messages = list[tuple[str, bytes, bytes, int]]  # topic, body, property text, origin
HOUR_MS = 3_600_000
HOLDERS: Final = ("timer", "level", "drained", "routed")
LEVELS: Final = (
    "10s 2h 12s 3h 14s 4h"  # short and long delays of a level, a drained and a routed one
)
NEAR_MS, SPREAD_MS, OVER_MS = 10_000, 5_000, 60_000
QUEUES: Final = 4
NEAR: Final = {
    "ok": "ok",
    "lost": "lost",
    "duplicated": "duplicated",
    "early": "early",
    "misrouted": "misrouted",
    "properties": "corrupt",
    "body": "corrupt",
    "gone": "quarantined",
    "unreachable": "unreachable",
}
FAR: Final = {
    "pending": "pending",
    "unreadable": "corrupt",
    "moved_twice": "moved_twice",
    "moved": "moved",
    "fired": "moved",
    "fired_lost": "lost",
    "moved_lost": "lost",
    "cancelled": "cancelled",
    "cancelled_but_fired": "cancelled_but_fired",
    "other_time": "corrupt",
}
KINDS: Final = (*NEAR, *FAR, "late")
VERDICTS: Final = NEAR | FAR | {"late": "late"}
HISTORY = np.dtype([("kind", "i4"), ("holder", "i4"), ("at", "i8"), ("size", "i8")])
PLAIN_PENDING = 0.2
MANY = 10_000  # minimum number of normal messages for files of default size
SIZES = {
    "commitlog_file_bytes": 1 << 26,
    "queue_file_bytes": 6_000_000,
    "index_slots_max": 500_000,
    "index_entries_max": 2_000_000,
}
SMALL_FILE_BYTES = 65_536


@dataclass
class Planted:
    """Expected findings of an audit.

    Attributes:
        verdicts: Verdicts by log offset of the first record of each message.
        gaps: Log offsets of destroyed records, in order.
        in_queues: Messages whose fault is in a queue file.
        marked: Lost messages with a marker that says that they were fired or moved.
        not_due: Lost messages that the log shows as pending, because their level is due later.
    """

    root: Path
    verdicts: dict[int, str] = field(default_factory=dict)
    gaps: list[int] = field(default_factory=list)
    in_queues: set[int] = field(default_factory=set)
    marked: set[int] = field(default_factory=set)
    not_due: set[int] = field(default_factory=set)


def plant(root: Path, each: int = 2, plain: int = 0, seed: int = 6) -> Planted:
    """Create a store with each kind of fault, `each` times per kind of message.

    Args:
        plain: Number of normal messages.
    """
    made = _Planting(root, each, plain, seed)
    made.outage()
    made.send(made.shuffled())
    made.decide()
    made.rig.advance(OVER_MS)
    made.append()
    made.rig.close()
    made.change_log()
    return made.expected()


class _Planting:
    def __init__(self, root: Path, each: int, plain: int, seed: int) -> None:
        self.root, self.each, self.plain = root, each, plain
        self.random = np.random.default_rng(seed)
        many = plain >= MANY
        timers = {"log_file_bytes": 1 << 26} if many else {}
        self.rig = MigrationRig(root, levels=LEVELS, **timers)
        self.rig.store_changes = dict(SIZES) if many else {}
        self.file_bytes = SIZES["commitlog_file_bytes"] if many else SMALL_FILE_BYTES
        self.histories = np.zeros(0, HISTORY)
        self.named: list[npt.NDArray[Any]] = []  # origins of records
        self.unexpected: list[int] = []
        self.senders: dict[bool, _Sender] = {}
        self.open()
        self.rig.route(5)
        self.rig.route(6)

    def open(self) -> None:
        self.rig.open()
        self.rig.store.add_dispatcher(self._note)
        first = self.histories.size
        self.senders = {timer: _Sender(self.rig, first, timer=timer) for timer in (True, False)}

    def _note(self, batch: PutBatch) -> None:
        rows = batch.filled
        rows = rows[(rows["prepared_offset"] < 0) & (rows["status"] == 0)]
        self.named.append(rows[["phys_offset", "prepared_offset", "topic_index"]].copy())

    # -- events ---------------------------------------------------------------------------------

    def outage(self) -> None:
        """Advance the clock past delivery times while no broker runs."""
        late = np.zeros(self.each * len(HOLDERS), HISTORY)
        late["kind"], late["holder"] = KINDS.index("late"), np.arange(late.size) % len(HOLDERS)
        self.send(late)
        self.rig.close()
        self.rig.clock.set_ms(self.rig.clock.now_ms() + HOUR_MS)
        self.open()

    def shuffled(self) -> npt.NDArray[Any]:
        """Return all other kinds in random order."""
        kinds = np.repeat(np.arange(len(NEAR) + len(FAR)), self.each)
        faults, plain = np.zeros(kinds.size * len(HOLDERS), HISTORY), np.zeros(self.plain, HISTORY)
        faults["kind"] = np.tile(kinds, len(HOLDERS))
        faults["holder"] = np.repeat(np.arange(len(HOLDERS)), kinds.size)
        waits = self.random.random(self.plain) < PLAIN_PENDING
        plain["kind"] = np.where(waits, KINDS.index("pending"), KINDS.index("ok"))
        plain["holder"] = self.random.integers(0, len(HOLDERS), self.plain)
        return self.random.permutation(np.concatenate([faults, plain]))

    def send(self, histories: npt.NDArray[Any]) -> None:
        """Send messages, one batch per millisecond, and drain the level to be migrated."""
        clock, first_ms = self.rig.clock, self.rig.clock.now_ms()
        for first in range(0, histories.size, ROWS):
            part = histories[first : first + ROWS]
            clock.set_ms(clock.now_ms() + 1)
            for timer in (True, False):
                indexes = np.flatnonzero((part["holder"] == 0) == timer)
                later_ms = self.random.integers(0, SPREAD_MS // 100, indexes.size) * 100
                self.senders[timer].send(part, indexes, first_ms + NEAR_MS + later_ms)
            self.rig.work()
        for level in (3, 4):
            while self.rig.drain.step(level, ROWS, migration="planted").processed:
                self.rig.work()
            assert self.rig.drain.is_empty(level)
        self.histories = np.concatenate([self.histories, histories])

    def decide(self) -> None:
        """Cancel, move and fire messages like the timer store and the level service."""
        now_ms = self.rig.clock.now_ms()
        for holder in HOLDERS:
            is_level = holder == "level"
            pending = self.rig.pending_levels if is_level else self.rig.pending_timers
            cancelled = self.places("cancelled", "cancelled_but_fired", holder=holder)
            moved = self.places("moved", holder=holder)
            copied = self.places("moved_twice", "moved_lost", holder=holder)
            for decided in (
                pending.cancel(cancelled),
                pending.fire(self.places("fired", "fired_lost", holder=holder)),
                pending.move(moved, np.full(moved.size, now_ms + 2_500), self.rig.run_hooks),
                pending.move(copied, np.full(copied.size, now_ms + HOUR_MS), self.rig.run_hooks),
            ):
                assert (decided.verdicts == Verdict.DONE).all(), decided.remarks
            self.rig.work()

    def append(self) -> None:
        """Append records that should not exist."""
        copies = self._of_origins(TIMER_TOPIC)
        twice = self.places("duplicated", "cancelled_but_fired").tolist()
        copied = self.places("moved_twice").tolist()
        self.put([self._copy("T", offset, offset) for offset in twice])
        self.put([self._copy(TIMER_TOPIC, offset, copies[offset]) for offset in copied])
        count = self.each * len(HOLDERS)
        self.unexpected = self.put([("T", b"plain", b"", 0)] * count)
        self.put([("T", b"unexpected", b"", origin_of(offset)) for offset in self.unexpected])

    def _copy(self, topic: str, origin: int, like: int) -> tuple[str, bytes, bytes, int]:
        record = self.rig.store.read_record(like)
        return topic, record.body, encode_properties(record.properties), origin_of(origin)

    def put(self, messages: Messages) -> list[int]:
        """Append messages without hooks; return their offsets."""
        store, batch, now_ms = self.rig.store, PutBatch(len(messages)), self.rig.clock.now_ms()
        for topic, body, properties, origin in messages:
            batch.add(
                topic_index=store.topics.add(topic),
                queue_id=0,
                body=body,
                properties=properties,
                born_ms=store.read_record(-origin - 1).born_ms if origin < 0 else now_ms,
                born_host=LOOPBACK,
                store_host=LOOPBACK,
                prepared_offset=origin,
            )
        batch.trusted = True
        store.put(batch)
        assert not batch.filled["status"].any(), batch.remarks
        offsets: list[int] = batch.filled["phys_offset"].tolist()
        return offsets

    def change_log(self) -> None:
        """Change bytes of the log."""
        log, sent = Log(self.root, self.file_bytes), self._of_origins("T")

        def deliveries(kind: str) -> Iterator[int]:
            return (sent[offset] for offset in self.places(kind).tolist())

        copies = self._of_origins(TIMER_TOPIC)
        lost_copies = (copies[offset] for offset in self.places("moved_lost").tolist())
        for offset in (*deliveries("lost"), *deliveries("fired_lost"), *lost_copies):
            log.head(offset)["sys_flag"] = layout.SYS_ROLLBACK
        for offset in deliveries("early"):
            log.head(offset)["store_ms"] -= NEAR_MS // 2
        for offset in deliveries("misrouted"):
            log.head(offset)["queue_id"] = (log.head(offset)["queue_id"] + 1) % QUEUES
        for offset in deliveries("body"):
            log.flip(offset + layout.RECORD_HEAD.itemsize)
        for offset in deliveries("properties"):
            log.flip(log.find(b"UNIQ_KEY\x01", offset) + 12)
        for offset in self.places("unreadable").tolist():
            log.head(offset)["magic"] = 0
        self.change_units(log, deliveries("unreachable"), "T", bytes(CQ_UNIT.itemsize))
        for number, offset in enumerate(self.places("other_time", holder="level").tolist()):
            late = ((1 << 42) + (number << 20)).to_bytes(8, "big")  # farther away than any level's
            self.change_units(log, iter([offset]), SCHEDULE_TOPIC, late)
        log.close()

    def change_units(self, log: Log, places: Iterator[int], topic: str, end: bytes) -> None:
        """Change the last bytes of the units of some records."""
        for offset in places:
            head = log.head(offset)
            folder = self.root / "consumequeue" / topic / str(int(head["queue_id"][0]))
            position = int(head["queue_offset"][0] + 1) * CQ_UNIT.itemsize - len(end)
            files = sorted(folder.iterdir())
            path = [path for path in files if int(path.name) <= position][-1]
            with path.open("r+b") as file:
                file.seek(position - int(path.name))
                file.write(end)

    # -- state ----------------------------------------------------------------------------------

    def places(self, *kinds: str, holder: str = "") -> Numbers:
        """Return the log offsets of messages of some kinds."""
        mask = np.isin(self.histories["kind"], [KINDS.index(kind) for kind in kinds])
        if holder:
            mask &= self.histories["holder"] == HOLDERS.index(holder)
        offsets: Numbers = self.histories["at"][mask]
        return offsets

    def _of_origins(self, topic: str) -> dict[int, int]:
        """Return the first record of a topic by its origin."""
        rows = np.concatenate(self.named)
        rows = rows[rows["topic_index"] == self.rig.store.topics.find(topic)]
        origins = (-rows["prepared_offset"] - 1).tolist()
        return dict(zip(origins[::-1], rows["phys_offset"].tolist()[::-1], strict=True))

    def expected(self) -> Planted:
        """Return the expected findings."""
        verdicts = [VERDICTS[kind] for kind in KINDS]
        expected = (verdicts[kind] for kind in self.histories["kind"].tolist())
        made = Planted(self.root, dict(zip(self.histories["at"].tolist(), expected, strict=True)))
        sound = set(self.places("other_time").tolist())
        made.in_queues = set(self.places("other_time", holder="level").tolist())
        made.verdicts |= dict.fromkeys(sound - made.in_queues, "pending")
        made.in_queues |= set(self.places("unreachable").tolist())
        made.not_due = set(self.places("moved_lost", holder="level").tolist())
        made.marked = set(self.places("fired_lost", "moved_lost").tolist()) - made.not_due
        made.verdicts |= dict.fromkeys(self.unexpected, "unexpected")
        gone = self.histories[self.histories["kind"] == KINDS.index("unreadable")]
        ends = gone["at"] + gone["size"]  # adjacent gaps are merged
        alone = ~np.isin(gone["at"], ends) | (gone["at"] % self.file_bytes == 0)
        made.gaps = sorted(gone["at"][alone].tolist())
        return made


class _Sender:
    """Sender that encodes one batch, and overwrites only digits and columns for further batches.

    Args:
        first: Number of the first message.
        timer: Whether the messages are timers; else they have a level.
    """

    def __init__(self, rig: MigrationRig, first: int, *, timer: bool) -> None:
        self.rig, self.timer, self.count = rig, timer, first
        command = {"TIMER_DELIVER_MS": "0" * TIME_DIGITS} if timer else {"DELAY": "1"}
        text = encode_properties({"UNIQ_KEY": key(0), "WAIT": "true"} | command)
        self.topics = [rig.store.topics.add(name) for name in ("T", "Nowhere")]
        self.batch = PutBatch(ROWS)
        for n in range(ROWS):
            self.batch.add(
                topic_index=self.topics[0],
                queue_id=n % QUEUES,
                body=key(0).encode(),
                properties=text,
                born_ms=0,
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        self.made, self.staged = self.batch.rows.copy(), self.batch.staging_len
        self.texts = self.batch.staging[: self.staged].reshape(ROWS, -1)
        self.pristine = self.texts[0].copy()  # hooks change texts, too
        body = len(key(0))
        self.keys_at = (len(KEY_HEAD), body + text.index(key(0).encode()) + len(KEY_HEAD))
        name = b"TIMER_DELIVER_MS\x01" if timer else b"DELAY\x01"
        self.delay_offset = body + text.index(name) + len(name)

    def send(self, histories: npt.NDArray[Any], indexes: Numbers, near_ms: Numbers) -> None:
        """Send the histories at given indexes.

        Args:
            near_ms: Delivery times of timers, in ms since the epoch.
        """
        batch, size = self.batch, indexes.size
        batch.clear()
        batch.rows[:size], batch.count, batch.staging_len = self.made[:size], size, self.staged
        rows, texts, kinds = batch.filled, self.texts[:size], histories["kind"][indexes]
        texts[:] = self.pristine
        # timers have even numbers, level messages odd ones
        numbers = 2 * np.arange(self.count, self.count + size) + int(not self.timer)
        for column in self.keys_at:
            write_digits(texts[:, column:], numbers, KEY_DIGITS, 16)
        is_far = (kinds >= len(NEAR)) & (kinds < KINDS.index("late"))
        if self.timer:
            rows["timer_value"] = near_ms + np.where(is_far, 2 * HOUR_MS, 0)
            write_digits(texts[:, self.delay_offset :], rows["timer_value"], TIME_DIGITS, 10)
        else:
            rows["delay_level"] = 2 * histories["holder"][indexes] - 1 + is_far
            write_digits(texts[:, self.delay_offset :], rows["delay_level"], 1, 10)
        rows["topic_index"] = np.where(kinds == KINDS.index("gone"), *self.topics[::-1])
        rows["born_ms"] = self.rig.clock.now_ms()
        self.rig.put(batch)
        assert not rows["status"].any(), batch.remarks
        histories["at"][indexes], histories["size"][indexes] = (
            rows["phys_offset"],
            rows["record_size"],
        )
        self.count += size
