"""Stage 5: delivers due timers to their topics in order; the rest goes to quarantine.

    rows in order --gather--> batch --put--> topics
                                |
                                +-- refused (full disk): nothing is lost, the rest is put back
                                +-- undeliverable: a quarantine record stands in its place

What is appended is delivered: every record names its origin, so a delivery is never repeated,
after any kind of end. A record that may be too long for the store goes alone, so that a refusal for
good concerns one timer only.

A timer is either in the near stage or on a outcome that ends before any other work runs: so no
cancel is answered while its timer is under way. Gathering the next batch in a thread meanwhile was
tried and gained nothing on two cores: index and read-ahead use the second one up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from delivery.quarantine import (
    MESSAGE_ILLEGAL,
    NOT_WRITABLE,
    Reason,
    Undeliverable,
    put_quarantined,
)
from message_store.log.batch import PutBatch
from message_store.log.unreadable import READS_MAX
from message_store.store import MessageStore
from timer_store.dequeue.gather import Gatherer, Load
from timer_store.kernels import gather as kernels
from timer_store.layout import NO_OFFSETS, Offsets, Row, Rows

NOT_PUT = -1
BATCH_ROWS = 4_096


@dataclass(slots=True)
class DeliveryBatch:
    """What happened to some timers.

    Attributes:
        done: leading timers that are settled: delivered, in quarantine, or lost.
        delivered: how many of them reached their topic.
        store_ms: (done,) i8: when; -1: it did not reach its topic.
        topic_index: (done,) i4: their real topic, -1: not known.
        parked: those that went to quarantine.
        lost: those whose record retention had removed.
        refusal: why the next timer was not taken by the store, or empty.
    """

    done: int = 0
    delivered: int = 0
    store_ms: Offsets = field(default_factory=lambda: NO_OFFSETS)
    topic_index: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    parked: list[Undeliverable] = field(default_factory=list)
    lost: int = 0
    refusal: str = ""

    def note(self, store_ms: Any, topic_index: Any) -> None:
        """Add the next timers."""
        self.done += int(store_ms.size)
        self.delivered += int(np.count_nonzero(store_ms != NOT_PUT))
        if self.store_ms.size:
            store_ms = np.concatenate([self.store_ms, store_ms])
            topic_index = np.concatenate([self.topic_index, topic_index])
        self.store_ms, self.topic_index = store_ms, topic_index

    def note_one(self, store_ms: int, topic_index: int) -> None:
        """Add the next timer."""
        self.note(np.array([store_ms], np.int64), np.array([topic_index], np.int32))


class TimerDeliverer:
    """Appends what timers become to one store. Belongs to the event loop's thread."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._gatherer = Gatherer(store)
        self._batch = PutBatch(BATCH_ROWS)
        self._single = PutBatch(1, 1)

    @property
    def log_end(self) -> int:
        """Where the next record will be appended."""
        return int(self._store.max_offset)

    def expect(self, record_bytes: int) -> None:
        """Have the log prepared for so many bytes of records that will be due at once."""
        self._store.read_ahead.expect(record_bytes)

    # -- due ------------------------------------------------------------------------------------

    def deliver_batch(self, rows: Rows, now_ms: int) -> DeliveryBatch:
        """Append due timers, in order, until all are settled or the store refuses.

        Args:
            rows: (n,) `layout.STAGED`, as the near stage gave them.
        """
        outcome = DeliveryBatch()
        while outcome.done < rows.size and not outcome.refusal:
            unreadable = self._store.log.unreadable
            for _ in range(READS_MAX):
                seen = unreadable.seen
                load = self._gatherer.plan(rows[outcome.done :], self._batch, now_ms)
                load.read()
                if not unreadable.changed(seen):
                    break
            else:
                load.is_malformed[:] = 1  # the plain way reads each record alone
            if unreadable.ranges:  # zeros were read in place of some records
                hit = unreadable.mask(load.rows["phys_offset"], load.rows["record_size"])
                load.is_malformed[hit] = 1
            self._put(load, outcome)
        return outcome

    def _put(self, load: Load, outcome: DeliveryBatch) -> None:
        """Put what was gathered, up to the first timer that goes alone; then that one."""
        count = int(np.argmax(load.alone)) if load.alone.any() else int(load.rows.size)
        if count:
            load.batch.count = count
            self._gatherer.finish(load)
            self._store.put(load.batch)
            self._note(load, outcome)
        if count < load.rows.size and not outcome.refusal:
            self._put_alone(load.rows[count], outcome, load.now_ms)

    def _note(self, load: Load, outcome: DeliveryBatch) -> None:
        """Settle the leading rows that were appended or are lost; stop at the first refused."""
        batch = load.batch
        store_ms = np.empty(batch.count, np.int64)
        topic_index = np.empty(batch.count, np.int32)
        count, illegal = kernels.outcome(batch.rows, batch.count, store_ms, topic_index)
        assert not illegal, "what is too long goes alone"
        for at in (*load.parked, *load.lost):
            if at < count:
                store_ms[at] = NOT_PUT
                topic_index[at] = self._topic_of(load.rows[at], load.parked.get(at))
        outcome.note(store_ms[:count], topic_index[:count])
        outcome.parked += [item for at, item in load.parked.items() if at < count]
        outcome.lost += sum(at < count for at in load.lost)
        if count < batch.count:
            outcome.refusal = batch.remarks.get(count, NOT_WRITABLE)

    def _put_alone(self, timer: Row, outcome: DeliveryBatch, now_ms: int) -> None:
        """Deliver a timer that the store may refuse for good: then it goes to quarantine."""
        if self._gatherer.is_lost(timer):
            outcome.note_one(NOT_PUT, self._topic_of(timer))
            outcome.lost += 1
            return
        batch = self._single
        batch.clear()
        item = self._gatherer.build(batch, timer, now_ms)
        if item is None:
            self._store.put(batch)
            row = batch.rows[0]
            if row["status"] != MESSAGE_ILLEGAL:
                if row["status"]:
                    outcome.refusal = batch.remarks.get(0, NOT_WRITABLE)
                else:
                    outcome.note_one(int(row["store_ms"]), int(row["topic_index"]))
                return
            why = batch.remarks.get(0, "the store takes no such message")
            item = self._gatherer.undeliverable(Reason.ILLEGAL, why, timer)
        self._park(item, timer, outcome, now_ms)

    def _park(self, item: Undeliverable, timer: Row, outcome: DeliveryBatch, now_ms: int) -> None:
        outcome.refusal = put_quarantined(self._store, self._single, item, now_ms=now_ms)
        if outcome.refusal:
            return
        outcome.note_one(NOT_PUT, self._topic_of(timer, item))
        outcome.parked.append(item)

    def _topic_of(self, timer: Row, item: Undeliverable | None = None) -> int:
        """Return the real topic of a timer that is not delivered, -1 if it is not known."""
        if item is not None and item.record is not None:
            index = self._store.topics.find(item.record.properties.get("REAL_TOPIC", ""))
            if index >= 0:
                return int(index)
        return self._gatherer.topic_of_hash(int(timer["topic_hash"]))

    # -- not due --------------------------------------------------------------------------------

    def roll(self, rows: Rows, now_ms: int) -> DeliveryBatch:
        """Append copies of pending timers; `timerRollMode=message`.

        A copy goes through the timer queue once more; it names the record it was made of as its
        origin, like a delivery. `store_ms` and `topic_index` are those of the copies.

        Args:
            rows: (n,) `layout.STAGED`.
        """
        outcome = DeliveryBatch()
        while outcome.done < rows.size and not outcome.refusal:
            timer, batch = rows[outcome.done], self._single
            if self._gatherer.is_lost(timer):
                outcome.note_one(NOT_PUT, self._topic_of(timer))
                outcome.lost += 1
                continue
            batch.clear()
            item = self._gatherer.roll(batch, timer, now_ms)
            if item is None:
                self._store.put(batch)
                row = batch.rows[0]
                if row["status"] == 0:
                    outcome.note_one(int(row["store_ms"]), self._topic_of(timer))
                elif row["status"] != MESSAGE_ILLEGAL:
                    outcome.refusal = batch.remarks.get(0, NOT_WRITABLE)
                else:
                    why = batch.remarks.get(0, "the store takes no such message")
                    item = self._gatherer.undeliverable(Reason.ILLEGAL, why, timer)
            if item is not None:
                self._park(item, timer, outcome, now_ms)
        return outcome

    def park_broken(self, rows: Rows, now_ms: int) -> int:
        """Put records of the timer queue that are no timers into quarantine; return how many.

        A refusal of the store ends it. A record that retention removed needs nothing.

        Args:
            rows: (n,) `layout.STAGED` of their records; `due_ms` 0.
        """
        outcome = DeliveryBatch()
        for timer in rows:
            if self._gatherer.is_lost(timer):
                outcome.note_one(NOT_PUT, -1)
                continue
            self._park(self._gatherer.broken(timer), timer, outcome, now_ms)
            if outcome.refusal:
                break
        return outcome.done
