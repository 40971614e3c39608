"""Transfers of level messages: enqueued in place, and returned.

    journal      transfer [0, 900)  transfer [900, 2000)  return [1500, 2000) ...
                                    ^ position.handover_offset: the next transfer to enqueue,
                                      position.handover_unit: end of the enqueued part of its range
    a transfer   units of the level's queue --level_records--> TIMED rows --> timer log, wheel,
                 counts, near stage: 52 bytes each; the records stay where they are
    a return     units get the tombstone of a copy (the record may be transferred again); counts
                 and stage drop them

The ownership journal defines which messages the timers own (`owned`), and origins in the commit log
show which of them are settled, as for every timer. The state can therefore be rebuilt from both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from delayed_delivery import ownership
from delayed_delivery.ownership import NO_END, JournalEntry, Return, Transfer
from delayed_delivery.ownership_projection import Ownership, change_of
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.ranges import Range, common, distinct, is_among, is_in, minus, within
from message_store.store import MessageStore
from timer_store import layout
from timer_store.enqueue.enqueue_service import EnqueueService
from timer_store.enqueue.level_records import LevelRecords
from timer_store.layout import LOWER_Y, NO_OFFSETS, UPPER_Y, Mask, Offsets, Rows
from timer_store.log.slot_choice import candidates
from timer_store.log.units import TimerUnits
from timer_store.progress import PendingCounts, Position

log = logging.getLogger(__name__)
READ_UNITS = 65_536


class TransferredUnits:
    """Level messages that one timer store owns. Belongs to the event loop's thread.

    Attributes:
        owned: Ranges that the timers own according to the applied records.
        enqueued, returned: Numbers of messages enqueued and returned by this process.
        incomplete: Transfers whose messages are not completely enqueued.
    """

    def __init__(
        self,
        store: MessageStore,
        units: TimerUnits,
        position: Position,
        counts: PendingCounts,
        enqueue: EnqueueService,
        window_ms: int,
    ) -> None:
        self._store, self._units, self._position = store, units, position
        self._counts, self._enqueue, self._window_ms = counts, enqueue, window_ms
        self.records = LevelRecords(store)
        self.owned = Ownership()
        self._gone = Ownership()  # see `settled_at_offsets`
        self.enqueued = self.returned = 0
        self.incomplete: list[JournalEntry] = []
        self._next = 0  # queue offset of the next record to apply

    # -- journal ------------------------------------------------------------------------------

    def on_transfer(self, entry: JournalEntry) -> None:
        """Apply an ownership record that was just appended, or read at the start."""
        position = self._position
        if entry.queue_offset < self._next:
            return
        self._next = entry.queue_offset + 1
        self.owned.apply(entry)
        if isinstance(entry.record, Transfer):
            self.incomplete.append(entry)
        elif not self.incomplete:
            position.handover_offset, position.handover_unit = entry.queue_offset + 1, 0

    def scan_from(self) -> int:
        """Return a log offset before all decisions about messages that are not enqueued."""
        return self.incomplete[0].phys_offset if self.incomplete else int(self._store.max_offset)

    def first_unenqueued(self) -> int | None:
        """Return the log offset of the first record that is not enqueued, None without any."""
        log_offsets = [rows["phys_offset"].min() for rows in self._unenqueued_rows() if rows.size]
        return int(min(log_offsets)) if log_offsets else None

    def unenqueued(self, rows: Rows) -> Mask:
        """Return which of (n,) `layout.TIMED` level messages are transferred but not enqueued."""
        is_unenqueued = np.zeros(rows.size, np.bool_)
        for level_rows in self._unenqueued_rows():
            is_unenqueued |= is_in(rows["phys_offset"], level_rows["phys_offset"])
        return is_unenqueued & ~is_among(rows["phys_offset"], self._enqueue.skip)

    def _unenqueued_rows(self) -> Iterator[Rows]:
        unit = self._position.handover_unit
        for entry in self.incomplete:
            assert isinstance(entry.record, Transfer)
            for first, end in self.owned.ranges_of(entry):
                first = max(first, unit)
                while first < end:
                    rows, first = self.records.read(entry.record.level, first, end, {})
                    yield rows
            unit = 0

    # -- enqueue ------------------------------------------------------------------------------

    def catch_up(self, count_max: int, now_ms: int) -> int:
        """Enqueue transferred messages; return their number, 0 if none remains or it is blocked.

        `enqueue.blocked_by` is the reason; the next call tries again.
        """
        total = 0
        self._enqueue.blocked_by = ""
        while self.incomplete and total < count_max:
            try:
                done, complete = self._enqueue_transfer(
                    self.incomplete[0], count_max - total, now_ms
                )
            except OSError as error:  # of the letters: the records and their units are unchanged
                self._enqueue.blocked_by = f"the records of a level cannot be changed: {error}"
                self._enqueue.report_block()
                break
            total += done
            if not complete:
                break
            self._next_transfer()
        self.enqueued += total
        return total

    def _next_transfer(self) -> None:
        """Advance the position to the next transfer."""
        self.incomplete.pop(0)
        position = self._position
        position.handover_unit = 0
        position.handover_offset = (
            self.incomplete[0].queue_offset if self.incomplete else self._next
        )

    def _enqueue_transfer(
        self, entry: JournalEntry, count_max: int, now_ms: int
    ) -> tuple[int, bool]:
        """Enqueue from a transfer; return (messages, whether it is complete)."""
        record, position = entry.record, self._position
        assert isinstance(record, Transfer)
        done, least = 0, max(position.handover_unit, self.records.bounds(record.level)[0])
        for first, end in within(self.owned.ranges_of(entry), least, record.end):
            while first < end:
                if done >= count_max:
                    return done, False
                stop = min(end, first + count_max - done)
                rows, following = self.records.read(
                    record.level, first, stop, record.promised, name=LOWER_Y
                )
                linked = self._link(rows, now_ms)
                if linked < rows.size:
                    position.handover_unit = self._offset_of(record.level, first, rows, linked)
                    return done + linked, False
                done += linked
                position.handover_unit = first = following
        return done, True

    def _link(self, rows: Rows, now_ms: int) -> int:
        """Link the rows that are not settled; return the number of leading rows done."""
        skip = self._enqueue.skip
        if not skip.size:
            return int(self._enqueue.link_rows(rows, now_ms))
        left = np.flatnonzero(~is_among(rows["phys_offset"], skip))
        linked = int(self._enqueue.link_rows(rows[left], now_ms))
        return int(left[linked]) if linked < left.size else int(rows.size)

    def _offset_of(self, level: int, first: int, rows: Rows, position: int) -> int:
        """Return the queue offset of rows[position]; blank units make no row."""
        phys_offset = int(rows[position]["phys_offset"])
        while True:
            units = self._store.units(SCHEDULE_TOPIC, level - 1, first, READ_UNITS)
            hits = np.flatnonzero(units["phys_offset"] == phys_offset)
            if hits.size or not units.size:
                return first + (int(hits[0]) if hits.size else 0)
            first += int(units.size)

    # -- at the start -------------------------------------------------------------------------

    def restore(
        self, start: int, unit: int, *, log_offset: int = 0, scan_from: int = NO_END
    ) -> None:
        """Apply the records before a checkpoint, whose messages already have units.

        If a transfer was blocked, the records after it are transfers without units, and returns
        whose units the checkpoint does not count.

        Args:
            start: `Position.handover_offset` of the checkpoint.
            unit: `Position.handover_unit` of the checkpoint.
            log_offset: End of the log at the checkpoint.
            scan_from: Log offset after which all deliveries from the slots of the checkpoint are.
        """
        self.owned, self.incomplete, self._next = Ownership(), [], start
        self._gone = Ownership()
        position = self._position
        for entry in ownership.read(self._store, quiet=True):
            is_enqueued = entry.queue_offset < start or (entry.queue_offset == start and unit > 0)
            if not is_enqueued and entry.phys_offset >= log_offset:
                break
            if isinstance(entry.record, Return) and entry.phys_offset >= scan_from:
                self._keep_settled(entry.queue_offset, entry.record)
            if is_enqueued:
                change = self.owned.apply(entry)
                if change is not None and entry.queue_offset == start:  # enqueued up to `unit`
                    self.owned.remove(change.level, unit, change.end)
            elif isinstance(entry.record, Return):
                self.owned.remove(entry.record.level, entry.record.first, entry.record.end)
        self.owned.next_offset = start
        self._gone.promised = self.owned.promised
        position.handover_offset, position.handover_unit = start, unit

    def _keep_settled(self, queue_offset: int, record: Return) -> None:
        """Keep the ranges of a return that were settled, because slots may have their units."""
        ranges = self.owned.ranges(record.level, record.first, record.end)
        self._gone.add(record.level, minus(ranges, record.pending), queue_offset)

    def settled_at_offsets(self, offsets: Offsets) -> Rows:
        """Return the records at log offsets that were settled when their range was returned.

        The timers no longer own these messages, but the slot that was partly delivered at the
        return may have their units in the restored checkpoint.

        Returns:
            (m,) `layout.TIMED`, from the records after `scan_from` of `restore`.
        """
        return self.records.at_offsets(offsets, self._gone)[0]

    def apply_new_records(self) -> list[tuple[int, list[Range]]]:
        """Apply the new records of the journal; return the enqueued messages that they return.

        Returns:
            (level, ranges) that the timers owned before.
        """
        before = self.owned.copy()
        position, returned = self._position, []
        for entry in ownership.read(self._store, self._next, quiet=True):
            change = change_of(entry.record)
            if change is not None and change.lost:
                went = common(before.ranges(change.level), change.regained)
                before.remove(change.level, change.first, change.end)
                returned.append((change.level, went))
            self.on_transfer(entry)
        self._next = max(self._next, ownership.bounds(self._store)[1])
        if not self.incomplete:
            position.handover_offset, position.handover_unit = self._next, 0
        return [(level, ranges) for level, ranges in returned if ranges]

    # -- return -------------------------------------------------------------------------------

    def owned_rows(
        self, level: int, first: int, end: int, names: list[Offsets] | None = None
    ) -> tuple[Rows, Offsets]:
        """Return the transferred messages in first..end of a level's queue, settled or not.

        Returns ((n,) TIMED, (n,) queue offsets); `names`: see `LevelRecords.read`.
        """
        promised = self.owned.promised.get(level, {})
        parts, numbers = [np.empty(0, layout.TIMED)], [NO_OFFSETS]
        first = max(first, self.records.bounds(level)[0])
        for low, high in self.owned.ranges(level, first, end):
            while low < high:
                rows, following = self.records.read(level, low, high, promised, names=names)
                if rows.size == following - low:
                    numbers.append(np.arange(low, following))
                else:
                    position = [self._offset_of(level, low, rows, i) for i in range(rows.size)]
                    numbers.append(np.array(position, np.int64))
                parts.append(rows)
                low = following
        if len(parts) == 2:
            return parts[1], numbers[1]
        return np.concatenate(parts), np.concatenate(numbers)

    def at_offsets(self, offsets: Offsets) -> tuple[Rows, Offsets]:
        """Return the records at log offsets that are transferred, and their indexes."""
        return self.records.at_offsets(offsets, self.owned)

    def on_return(self, entry: JournalEntry, rows: Rows) -> None:
        """Return messages to their level.

        `Decisions.return_units` has already removed them from their slots.
        """
        assert isinstance(entry.record, Return)
        self.on_transfer(entry)
        self.returned += int(rows.size)

    def set_level_letters(self, rows: Rows, name_at: Offsets) -> None:
        """Rename DELAy in the records of returned messages to DELAY.

        A record that the disk does not allow to change keeps DELAy: its level delivers the message
        as any other one. Call it when both owners have applied the return.

        Args:
            name_at: (n,) i8: see `LevelRecords.read`.
        """
        try:
            self.records.set_letter(rows, name_at, UPPER_Y)
        except OSError as error:
            log.warning("records of returned messages keep the name DELAy: %s", error)

    def mark_returned_units(
        self, returned: list[tuple[int, list[Range]]], settled: Offsets
    ) -> None:
        """Write tombstones for messages returned since a checkpoint, and subtract them (recovery).

        Args:
            settled: (n,) ascending: messages settled otherwise, which have tombstones already.
        """
        position = self._position
        for level, ranges in returned:
            for low, high in ranges:
                while low < high:
                    names = [NO_OFFSETS]
                    rows, low = self.records.read(
                        level,
                        low,
                        min(high, low + READ_UNITS),
                        self.owned.promised.get(level, {}),
                        names=names,
                    )
                    self.set_level_letters(rows, names[-1])
                    rows = rows[~is_among(rows["phys_offset"], settled)]
                    self._counts.change(rows["topic_index"], rows["phys_offset"], -1)
                    loaded_ms = position.staged_ms, position.rolled_ms
                    slots_ms = candidates(
                        rows["due_ms"], position.read_ms, loaded_ms, self._window_ms
                    )
                    for slot_ms in slots_ms:
                        positions = self._units.find(rows["phys_offset"], slot_ms)
                        self._units.settle(distinct(positions[positions >= 0]), copied=True)
                    self._units.recount(np.concatenate(slots_ms))
