"""Stage 5: delivers due timers to their topics in order, and undeliverable ones to quarantine.

    rows in order --gather--> batch --put--> topics
                                |
                                +-- refused (full disk): these and later rows return to the stage
                                +-- undeliverable: the batch has a quarantine record instead

A timer is delivered when its record is appended: the record names its origin, so no recovery
delivers the timer again. A record that may be too long for the store is put in a batch of its own,
so that a permanent refusal affects one timer only.

Timers are taken out of the near stage and delivered in one turn of the event loop, so a cancel
never finds a timer that is neither pending nor delivered. (Gathering the next batch in a thread was
not faster on two cores: index and read-ahead need the second core.)
"""

from __future__ import annotations

import numpy as np

from delayed_delivery.deliverer import Outcome, SingleDeliverer
from delayed_delivery.quarantine import report
from duemq_common.errors import CorruptStore
from message_store.log.batch import PutBatch
from message_store.log.unreadable import READS_MAX
from message_store.store import MessageStore
from timer_store.dequeue.gather import Gatherer, Load
from timer_store.dequeue.unit_check import UnitCheck
from timer_store.layout import Rows

BATCH_ROWS = 4_096


class TimerDeliverer:
    """Deliverer of one store's timers. Belongs to the event loop's thread.

    Args:
        precision_ms: Width of a slot.
        check: Determines whether a unit or its record is damaged; None: it is the record.
    Attributes:
        broken: Error of the damaged unit that ended the last batch.
    """

    def __init__(
        self, store: MessageStore, precision_ms: int, check: UnitCheck | None = None
    ) -> None:
        self._store, self._check = store, check
        self.broken: CorruptStore | None = None
        self._gatherer = Gatherer(store, precision_ms)
        self._batch = PutBatch(BATCH_ROWS)
        self._single = SingleDeliverer(store, self._gatherer)

    @property
    def log_end(self) -> int:
        """Log offset of the next record."""
        return int(self._store.max_offset)

    def expect(self, record_bytes: int) -> None:
        """Prepare the next log file for a delivery of `record_bytes` bytes at once."""
        self._store.read_ahead.expect(record_bytes)

    # -- due ------------------------------------------------------------------------------------

    def deliver_batch(self, rows: Rows, now_ms: int) -> Outcome:
        """Append due timers, in order, until all are settled, one is refused, or one is damaged.

        Args:
            rows: (n,) `layout.STAGED`, as taken from the near stage.
        """
        outcome, self.broken = Outcome(rows.size), None
        while outcome.done < rows.size and not outcome.refusal:
            unreadable = self._store.unreadable
            for _ in range(READS_MAX):
                seen = unreadable.seen
                load = self._gatherer.plan(rows[outcome.done :], self._batch, now_ms)
                load.read()
                if unreadable.replaced[0] == seen or not unreadable.changed(seen):
                    break
            else:
                load.is_malformed[:] = 1  # Python reads each record alone
            if unreadable.ranges:  # zeros were read in place of some records
                hit = unreadable.mask(load.rows["phys_offset"], load.rows["record_size"])
                load.is_malformed[hit] = 1
            if self._check is not None and load.is_malformed.any():
                self.broken = self._check.wrong_unit(load.rows[load.is_malformed != 0])
                if self.broken is not None:
                    outcome.refusal = str(self.broken)
                    break
            self._put(load, outcome)
        return outcome

    def _put(self, load: Load, outcome: Outcome) -> None:
        """Append the gathered rows before the first that needs its own batch, then that row."""
        count = int(np.argmax(load.alone)) if load.alone.any() else int(load.rows.size)
        if count:
            load.batch.count = count
            self._gatherer.finish(load)
            self._store.put(load.batch)
            self._settle(load, outcome)
        if count < load.rows.size and not outcome.refusal:
            convert = self._gatherer.delivery(load.now_ms)
            self._single.deliver(load.rows[count], convert, outcome, load.now_ms)

    def _settle(self, load: Load, outcome: Outcome) -> None:
        """Settle the leading rows that were appended or are lost, up to the first refused one."""
        topics = {
            position: self._gatherer.topic_of(
                load.rows[position], load.quarantine_items.get(position)
            )
            for position in (*load.quarantine_items, *load.lost)
        }
        count = outcome.record_batch(load.batch, topics)
        outcome.quarantined += [
            item for position, item in load.quarantine_items.items() if position < count
        ]
        outcome.lost += sum(position < count for position in load.lost)

    # -- not due --------------------------------------------------------------------------------

    def quarantine_broken(self, rows: Rows, now_ms: int) -> int:
        """Move records of the timer queue that are not timers to quarantine; return their number.

        It stops when the store refuses a record. Records that retention removed are skipped.

        Args:
            rows: (n,) `layout.STAGED` of the records; `due_ms` is 0.
        """
        outcome = Outcome(rows.size)
        convert = self._gatherer.fault
        while outcome.done < rows.size and not outcome.refusal:
            self._single.deliver(rows[outcome.done], convert, outcome, now_ms)
        report(outcome.quarantined)
        return outcome.done
