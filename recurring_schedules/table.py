"""Table of schedules: columns without definitions, a projection of the log.

    slot   name hash   journal offset   planned   next   state       41 bytes a schedule

Definitions stay in the log and are read when an occurrence is planned. The table is brought up to
date by records in log order: those of the journal, and occurrences in the timer topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from delayed_delivery.names import MANUAL, NEXT_TIME, PLANNED_TIME, SCHEDULE_NAME
from delayed_delivery.schedule_rows import DERIVED_PREFIX
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULES_TOPIC, TIMER_TOPIC
from message_store.log.text_search import rows_with
from recurring_schedules import journal
from recurring_schedules.journal import ACTIVE, DELETED, PAUSED, ScheduleRecord
from recurring_schedules.name_index import NameIndex, hash_of
from recurring_schedules.names import JOURNAL_QUEUE, REAL_TOPIC, UNIQUE_KEY
from recurring_schedules.snapshot import Rows, RowSnapshot
from recurring_schedules.wake_times import NEVER, WakeTimes

if TYPE_CHECKING:
    from message_store.reader import StoreReader

ROW: Final = np.dtype(
    [
        ("hash", "u8"),
        ("offset", "i8"),  # log offset of the newest record in the journal
        ("planned_ms", "i8"),
        ("next_ms", "i8"),  # 0: the schedule has ended
        ("pending", "i8"),  # log offset of the record of the last occurrence, -1 without one
        ("state", "u1"),
    ]
)
STATES: Final = (DELETED, ACTIVE, PAUSED)
IS_DELETED, IS_ACTIVE, IS_PAUSED = range(len(STATES))
UNKNOWN_OFFSET: Final = -1
_MARK: Final = f"{SCHEDULE_NAME}\x01".encode()


class ScheduleTable:
    """Schedules of one store.

    Args:
        rows: (n,) ROW.
        log_offset: Log offset up to which the log is applied.

    Attributes:
        wake_ms: Time from which the next occurrence has to be appended, by slot; NEVER if the
            schedule is in the queue of the planner.
        changes: Number of changes since the table was made.
        withdrawn: Records of pauses and deletions by name, as read at a start: the cancellation of
            their occurrence may be missing in the log.
    """

    def __init__(self, rows: Rows | None = None, log_offset: int = 0) -> None:
        self.rows: Rows = np.zeros(0, ROW) if rows is None else rows
        self.log_offset = log_offset
        self.count = self.rows.size
        self.changes = 0
        planned = (self.rows["state"] == IS_ACTIVE) & (self.rows["next_ms"] > 0)
        self.wake_ms = WakeTimes(np.where(planned, self.rows["planned_ms"], NEVER))
        self.withdrawn: dict[str, ScheduleRecord] = {}
        self._snapshot: RowSnapshot | None = None
        self._oldest: int | None = UNKNOWN_OFFSET
        live = np.flatnonzero(self.rows["state"] != IS_DELETED)
        self._free = np.flatnonzero(self.rows["state"] == IS_DELETED).tolist()
        self._index = NameIndex(self.rows["hash"][live], live.astype(np.int32))

    @property
    def filled(self) -> Rows:
        """The rows in use, with those of deleted schedules."""
        return self.rows[: self.count]

    def __len__(self) -> int:
        return self.count - len(self._free)

    def find(self, name: str) -> int:
        """Return the slot of a schedule, -1 if there is none."""
        return self._index.find(hash_of(name))

    def definition_offsets(self) -> npt.NDArray[np.int64]:
        """Return the log offsets of the newest records in the journal, in no order."""
        rows = self.filled
        offsets: npt.NDArray[np.int64] = rows["offset"][rows["state"] != IS_DELETED]
        return offsets

    def oldest_definition(self) -> int | None:
        """Return the log offset of the oldest definition of a schedule, None without any.

        Retention asks every few seconds; a million rows are read only after this one has changed.
        """
        if self._oldest == UNKNOWN_OFFSET:
            offsets = self.definition_offsets()
            self._oldest = int(offsets.min()) if offsets.size else None
        return self._oldest

    def counts(self) -> dict[str, int]:
        """Return the number of active and paused schedules."""
        states = np.bincount(self.filled["state"], minlength=len(STATES))
        return {ACTIVE: int(states[IS_ACTIVE]), PAUSED: int(states[IS_PAUSED])}

    @contextmanager
    def snapshot(self) -> Iterator[RowSnapshot]:
        """Return the rows of this instant, valid until the end of the block. One at a time."""
        assert self._snapshot is None
        self._snapshot = RowSnapshot(self.filled)
        try:
            yield self._snapshot
        finally:
            self._snapshot = None

    # -- records in log order -----------------------------------------------------------------

    def apply(self, record: ScheduleRecord, phys_offset: int) -> None:
        """Apply a record of the journal."""
        name_hash = hash_of(record.definition.name)
        slot = self._index.find(name_hash)
        self.changes += 1
        if self._oldest is None or (slot >= 0 and self.rows["offset"][slot] == self._oldest):
            self._oldest = UNKNOWN_OFFSET
        if record.state == DELETED:
            if slot >= 0:
                self._before_change(slot)
                self.rows["state"][slot] = IS_DELETED
                self.wake_ms[slot] = NEVER
                self._index.set(name_hash, -1)
                self._free.append(slot)
            return
        if slot < 0:
            slot = self._free.pop() if self._free else self._new_slot()
            self._index.set(name_hash, slot)
        state = STATES.index(record.state)
        times = record.planned_ms, record.next_ms
        self._before_change(slot)
        self.rows[slot] = (name_hash, phys_offset, *times, record.pending_offset, state)
        self.set_wake(slot)

    def _new_slot(self) -> int:
        if self.count == self.rows.size:
            grown = np.zeros(max(64, self.count + self.count // 4), ROW)
            grown[: self.count] = self.filled
            self.rows = grown
            self.wake_ms.grow(grown.size)
        self.count += 1
        return self.count - 1

    def occurred(self, slot: int, planned_ms: int, next_ms: int, phys_offset: int) -> None:
        """Record that an occurrence is in the log."""
        row = self.rows[slot]
        if planned_ms > row["planned_ms"]:
            self._before_change(slot)
            row["planned_ms"], row["next_ms"], row["pending"] = planned_ms, next_ms, phys_offset
            self.set_wake(slot)
            self.changes += 1

    def skip_to(self, slot: int, next_ms: int) -> None:
        """Set the next occurrence to append; 0: the schedule has ended."""
        self._before_change(slot)
        self.rows["next_ms"][slot] = next_ms
        self.set_wake(slot)

    def _before_change(self, slot: int) -> None:
        if self._snapshot is not None:
            self._snapshot.before_change(slot)

    def is_due(self, slot: int, now_ms: int) -> bool:
        """Return whether the next occurrence has to be appended."""
        row = self.rows[slot]
        has_next = row["state"] == IS_ACTIVE and row["next_ms"] > 0
        return bool(has_next and row["planned_ms"] <= now_ms)

    def set_wake(self, slot: int) -> None:
        """Set the wake time by the state of the schedule."""
        row = self.rows[slot]
        has_next = row["state"] == IS_ACTIVE and row["next_ms"] > 0
        self.wake_ms[slot] = row["planned_ms"] if has_next else NEVER

    # -- reading ------------------------------------------------------------------------------

    def record(self, store: StoreReader, slot: int) -> ScheduleRecord:
        """Return the newest record of a schedule, with its current progress.

        Raises:
            RecordUnreadable: The record is damaged.
        """
        row = self.rows[slot]
        record = read_journal(store, int(row["offset"]))
        return replace(
            record,
            planned_ms=int(row["planned_ms"]),
            next_ms=int(row["next_ms"]),
            pending_offset=int(row["pending"]),
        )

    def replay(self, store: StoreReader, on_fault: Callable[[str], None]) -> None:
        """Apply the log from `log_offset` to its end."""
        while self.replay_chunk(store, on_fault):
            pass

    def replay_chunk(self, store: StoreReader, on_fault: Callable[[str], None]) -> bool:
        """Apply the next records of the log; return whether there are more."""
        end = store.max_offset
        rows = next(store.scan(self.log_offset, end), None)
        if rows is None:
            self.log_offset = end
            return False
        last = rows[-1]
        self.log_offset = int(last["phys_offset"]) + int(last["record_size"])
        journal_index = store.topics.find(SCHEDULES_TOPIC)
        topics = rows["topic_index"]
        timers = rows[(topics == store.topics.find(TIMER_TOPIC)) & (topics >= 0)]
        occurrences = rows_with(store, timers, _MARK)["phys_offset"]
        is_definition = (topics == journal_index) & (topics >= 0)
        for row in rows[is_definition | np.isin(rows["phys_offset"], occurrences)]:
            offset = int(row["phys_offset"])
            try:
                if row["topic_index"] == journal_index:
                    self._replay_record(read_journal(store, offset), offset)
                else:
                    self._replay_occurrence(store.read_record(offset).properties, offset)
            except (RecordUnreadable, ValueError) as error:
                on_fault(f"the record at log offset {offset} is skipped: {error}")
        return True

    def read_newest_withdrawal(self, store: StoreReader) -> None:
        """Add the newest record of the journal to `withdrawn` if it withdraws an occurrence.

        A replica's checkpoint may be after this record, and the master was lost before it
        cancelled the occurrence. Nothing else follows the record of an interrupted withdrawal.
        """
        first, end = store.queue_bounds(SCHEDULES_TOPIC, JOURNAL_QUEUE)
        units = store.units(SCHEDULES_TOPIC, JOURNAL_QUEUE, end - 1, 1) if first < end else ()
        for unit in units:
            with suppress(RecordUnreadable):
                record = read_journal(store, int(unit["phys_offset"]))
                if record.withdrawn_ms:
                    self.withdrawn[record.definition.name] = record

    def _replay_record(self, record: ScheduleRecord, offset: int) -> None:
        self.apply(record, offset)
        if record.withdrawn_ms:
            self.withdrawn[record.definition.name] = record
        else:
            self.withdrawn.pop(record.definition.name, None)

    def _replay_occurrence(self, properties: dict[str, str], offset: int) -> None:
        if MANUAL in properties or UNIQUE_KEY not in properties:
            return
        if properties.get(REAL_TOPIC, "").startswith(DERIVED_PREFIX):  # a delayed retry of one
            return
        slot = self.find(properties.get(SCHEDULE_NAME, ""))
        if slot >= 0:
            planned_ms, next_ms = int(properties[PLANNED_TIME]), int(properties.get(NEXT_TIME, 0))
            self.occurred(slot, planned_ms, next_ms, offset)


def read_journal(store: StoreReader, phys_offset: int) -> ScheduleRecord:
    """Return the journal's record at a log offset.

    Raises:
        RecordUnreadable: There is no such record, or it is damaged.
    """
    record = store.read_record(phys_offset)
    if record.topic != SCHEDULES_TOPIC:
        raise RecordUnreadable(phys_offset, "it is not a record of a schedule")
    try:
        return journal.decode(record.body)
    except ValueError as error:
        raise RecordUnreadable(phys_offset, f"it is not a record of a schedule: {error}") from None
