"""Lookup, cancel, move and fire of level messages: the level service's `PendingMessages`.

    cancel   a record in DUEMQ_DECISIONS                             <- names its origin
    move     the message with TIMER_DELIVER_MS through the put hooks <- names its origin
    fire     the delivery itself                                     <- names its origin
             then a note in DUEMQ_DECISIONS that explains the early delivery

The unit stays in the level's queue; delivery skips it (`LevelCursor.settled`), and a restart
recognizes it by the origin in the log, like a delivery. The module does not depend on the component
that stores timers: if no put hook redirects a moved message, the move is refused.

There is no await between the check of a message and its decision. An Apache broker that opens the
store ignores these decisions: it delivers every message that is pending by its offset table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from delayed_delivery.kernels.texts import UNREADABLE, DecisionOutput
from delayed_delivery.names import CANCELLED_BODY, FIRED_BODY
from delayed_delivery.pending import (
    Decided,
    Found,
    HitQuery,
    Hooks,
    Offsets,
    PendingPiece,
    Position,
    Verdict,
    found_by_one,
    none_found,
)
from delayed_delivery.pending_search import piece_of
from delayed_delivery.quarantine import NO_HOST, origin_of
from delayed_delivery.records import add_message
from delayed_delivery.redirected import without
from duemq_common.clock import Clock
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import DECISION_TOPIC, SCHEDULE_TOPIC
from message_store.index.key_search import HIT_UNIQUE, frames, search
from message_store.layout import SCANNED, Row, Rows
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from message_store.ranges import distinct
from message_store.store import MessageStore
from schedule_service import kernels
from schedule_service.deliverer import Deliverer, target_of
from schedule_service.delivery import LevelService
from schedule_service.level import Level
from schedule_service.queues import ScheduleQueues

PIECE_UNITS = 512
WALK_UNITS = 8_192
BATCH_ROWS = 512
DAMAGED: Final = "its record in the commit log is damaged"
NOT_TAKEN = (
    "the message needs the timer store, which does not run: set timerWheelEnable=true and start "
    "the broker again"
)
DROPPED = (
    b"DELAY",
    b"REAL_TOPIC",
    b"REAL_QID",
    b"TIMER_DELIVER_MS",
    b"TIMER_DELAY_MS",
    b"TIMER_DELAY_SEC",
    b"__CRC32#",
)


class _Split:
    """Records found for some names, divided into pending and ended ones.

    Attributes:
        pending: Log offset, due time and name of each pending record.
        ended: Log offset of the last record that is not pending, by name.
    """

    def __init__(self, names: int) -> None:
        self._names = names
        self.pending: list[tuple[int, int, int]] = []
        self.ended: dict[int, int] = {}

    def decided(self) -> Found:
        """Return the pending records; names without any are `UNKNOWN`."""
        offsets, due_ms, name_index = np.array(self.pending, np.int64).reshape(-1, 3).T.copy()
        verdicts = np.full(self._names, Verdict.UNKNOWN, np.int8)
        verdicts[name_index] = Verdict.DONE
        return Found(offsets, due_ms, name_index, verdicts)


class PendingLevels:
    """Pending level messages of one store: find, cancel, move and fire."""

    def __init__(
        self, store: MessageStore, queues: ScheduleQueues, service: LevelService, clock: Clock
    ) -> None:
        self._store, self._queues, self._service = store, queues, service
        self._clock, self._deliverer = clock, Deliverer(store, queues)
        self._schedule = store.topics.add(SCHEDULE_TOPIC)
        self._decisions = store.topics.add(DECISION_TOPIC)

    # -- find -----------------------------------------------------------------------------------

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find messages by the log offset of their record."""
        rows = frames(self._store, offsets)
        split = _Split(offsets.size)
        self._classify(rows, np.arange(offsets.size), split)
        return await self._with_verdicts(split)

    def pending_of(self, offsets: Offsets) -> Found:
        """Return the pending ones of some records."""
        split = _Split(1)
        self._classify(frames(self._store, offsets), np.zeros(offsets.size, np.int64), split)
        return split.decided()

    def promised(self, offsets: Offsets) -> Offsets:
        """Return the due times of these records, -1 for records that are not level messages."""
        rows = frames(self._store, offsets)
        due_ms = [(self._due_ms(row) or -1) if self._is_level(row) else -1 for row in rows]
        return np.array(due_ms, np.int64)

    async def by_key(
        self, topic: str | Sequence[str], keys: Sequence[str], *, unique: bool
    ) -> Found:
        """Find messages by their keys."""
        if not keys:
            return none_found(0)
        matches = await search(self._store, [SCHEDULE_TOPIC], keys)
        hits = np.flatnonzero((matches.hits == HIT_UNIQUE) | (not unique))
        split = _Split(len(keys))
        for first in range(0, hits.size, PIECE_UNITS):
            if first:
                await asyncio.sleep(0)
            part = hits[first : first + PIECE_UNITS]
            rows, name_index = frames(self._store, matches.offsets[part]), matches.key_at[part]
            if topic:
                topics = [topic] * len(keys) if isinstance(topic, str) else topic
                fits = np.array(
                    [
                        not topics[name] or self._has_target(row, topics[name])
                        for row, name in zip(rows, name_index.tolist(), strict=True)
                    ],
                    np.bool_,
                )
                rows, name_index = rows[fits], name_index[fits]
            self._classify(rows, name_index, split)
        messages = await self._with_verdicts(split)
        _, firsts = np.unique(messages.offsets, return_index=True)  # found by two keys: listed once
        return Found(
            messages.offsets[firsts],
            messages.due_ms[firsts],
            messages.name_index[firsts],
            messages.verdicts,
        )

    def search(self, query: HitQuery, cursor: str) -> PendingPiece:
        """Return the next pending messages of a search, level by level."""
        number, _, offset = (cursor or "0.0").partition(".")
        pending, following = self._walk((int(number), int(offset)), query.count_max)
        pending = pending.within(query.from_ms, query.until_ms)
        return piece_of(
            self._store,
            query,
            pending.offsets,
            pending.due_ms,
            None if following is None else f"{following[0]}.{following[1]}",
        )

    def walk(self, position: Position) -> tuple[Found, Position | None]:
        """Return the pending messages of the next piece: part n is level n."""
        return self._walk(position, WALK_UNITS)

    def _walk(self, position: Position, units_max: int) -> tuple[Found, Position | None]:
        number, offset = position
        levels = self._service.levels
        level = levels.get(number)
        ahead = [] if level is None else [s for s in level.cursor.segments if s.end > offset]
        if level is None or not ahead:
            following = min((other for other in levels if other > number), default=0)
            return none_found(1), (following, 0) if following else None
        first = max(offset, ahead[0].appended)
        units = self._queues.units(number, first, min(units_max, ahead[0].end - first))
        if not units.size:
            return none_found(1), (number, ahead[0].end)
        settled = level.cursor.settled_in(first, int(units.size))
        following = first + int(units.size)
        if settled is not None:
            units = units[~settled]
        due_ms = self._queues.due_ms(number, units)
        return found_by_one(units["phys_offset"], due_ms), (number, following)

    def _classify(self, rows: Rows, name_index: Offsets, split: _Split) -> None:
        """Add records to `split`: pending ones, and ended ones that belong to this service."""
        for name, row in zip(name_index.tolist(), rows, strict=True):
            if self._is_pending(row):
                split.pending.append((int(row["phys_offset"]), self._due_ms(row), name))
            elif self._is_level(row) and not self._is_transferred(row):  # else a timer
                split.ended[name] = int(row["phys_offset"])

    async def _with_verdicts(self, split: _Split) -> Found:
        """Return the pending records, and the verdicts of names without a pending record."""
        messages = split.decided()
        left = {
            position: name
            for name, position in split.ended.items()
            if messages.verdicts[name] != Verdict.DONE
        }
        cancelled = await self._cancelled(list(left))
        for position, name in left.items():
            messages.verdicts[name] = (
                Verdict.CANCELLED if position in cancelled else Verdict.DELIVERED
            )
        return messages

    async def _cancelled(self, offsets: list[int]) -> set[int]:
        """Return which of these records, none of them pending, were cancelled."""
        records = [record for position in offsets if (record := self._record(position)) is not None]
        uniques = {record.properties.get("UNIQ_KEY", "") for record in records} - {""}
        if not uniques:
            return set()
        markers = await search(self._store, [DECISION_TOPIC], sorted(uniques))
        origins = set(frames(self._store, markers.offsets)["prepared_offset"].tolist())
        return {position for position in offsets if origin_of(position) in origins}

    def _is_level(self, row: Row) -> bool:
        return bool(row["record_size"] > 0 and row["topic_index"] == self._schedule)

    def _is_transferred(self, row: Row) -> bool:
        """Return whether the timers own a record."""
        level, offset = int(row["queue_id"]) + 1, int(row["queue_offset"])
        return self._is_level(row) and self._service.transfers.owned.owns(level, offset)

    def _level_of(self, row: Row) -> Level | None:
        return self._service.levels.get(int(row["queue_id"]) + 1) if self._is_level(row) else None

    def _is_pending(self, row: Row) -> bool:
        level = self._level_of(row)
        return level is not None and level.cursor.is_pending(int(row["queue_offset"]))

    def _due_ms(self, row: Row) -> int:
        level = int(row["queue_id"]) + 1
        units = self._queues.units(level, int(row["queue_offset"]), 1)
        return int(self._queues.due_ms(level, units)[0]) if units.size else 0

    def _record(self, phys_offset: int) -> Record | None:
        """Return the record at a log offset, None if it cannot be read."""
        try:
            return self._store.read_record(int(phys_offset))
        except RecordUnreadable:
            return None

    def _has_target(self, row: Row, topic: str) -> bool:
        record = self._record(row["phys_offset"])
        return record is not None and record.properties.get("REAL_TOPIC") == topic

    # -- decide ---------------------------------------------------------------------------------

    def wake_due(self, now_ms: int) -> bool:
        """Wake the delivery of messages that are due; return whether there are any."""
        is_due = self._service.can_deliver(now_ms)
        if is_due:
            self._service.wake()
        return is_due

    def cancel(self, offsets: Offsets) -> Decided:
        """Cancel pending messages: they are never delivered."""
        rows, decided = self._read_rows(offsets)
        pending = np.flatnonzero(decided.verdicts == Verdict.DONE)
        for first in range(0, pending.size, BATCH_ROWS):
            part = pending[first : first + BATCH_ROWS]
            batch = self._cancels_of(rows[part])
            self._store.put(batch)
            self._conclude(rows, part, batch, decided)
        decided.log_end = self._store.max_offset
        return decided

    def _cancels_of(self, rows: Rows) -> PutBatch:
        """Return the records that cancel messages, (n,) `layout.SCANNED`."""
        offsets = np.ascontiguousarray(rows["phys_offset"])
        batch, text_bytes = PutBatch(BATCH_ROWS), int(rows["prop_len"].sum())
        batch.reserve(offsets.size, text_bytes + kernels.CANCEL_ROOM * (offsets.size + 1))
        batch.trusted, batch.count = True, int(offsets.size)
        batch.filled["status"] = UNREADABLE
        body_pos = batch.stage(CANCELLED_BODY)
        free_pos = np.array([batch.staging_len], np.int64)
        output = DecisionOutput(batch.rows, batch.staging, free_pos)
        context = kernels.CancelContext(self._decisions, self._clock.now_ms(), body_pos)
        frames = np.zeros(1, SCANNED)
        for file, in_file in self._store.indexes_by_file(offsets):
            span = self._store.written_span(file)
            kernels.make_cancels(file.data, span, in_file, offsets, context, frames, output)
        batch.staging_len = int(free_pos[0])
        for index in np.flatnonzero(batch.filled["status"]).tolist():
            batch.remarks[index] = DAMAGED
        return batch

    def _conclude(self, rows: Rows, indexes: Offsets, batch: PutBatch, decided: Decided) -> None:
        """Settle the messages whose record was stored; the others are refused.

        Args:
            indexes: (n,) i8: index in `rows` of the message of each row of the batch.
        """
        is_stored = batch.filled["status"] == 0
        for index in np.flatnonzero(~is_stored).tolist():
            decided.verdicts[indexes[index]] = Verdict.REFUSED
            decided.remarks[int(indexes[index])] = batch.refusal(index)
        stored = rows[indexes[is_stored]]
        for number, level in self._service.levels.items():
            offsets = stored["queue_offset"][stored["queue_id"] == number - 1]
            if offsets.size:
                level.cursor.settle_all(offsets)

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Move pending messages to other due times, as timers."""
        past = due_ms <= self._clock.now_ms()
        if past.any():
            fired, moved = self.fire(offsets[past]), self.move(offsets[~past], due_ms[~past], hooks)
            verdicts = np.empty(offsets.size, np.int8)
            verdicts[past], verdicts[~past] = fired.verdicts, moved.verdicts
            remarks: dict[int, str] = {}
            for part, where in ((fired, past), (moved, ~past)):
                positions = np.flatnonzero(where)
                remarks |= {int(positions[index]): text for index, text in part.remarks.items()}
            return Decided(verdicts, remarks, max(fired.log_end, moved.log_end))
        return self._put_all(offsets, due_ms, hooks)

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver pending messages now; those that follow each other in a queue together."""
        rows, decided = self._read_rows(offsets)
        fired: list[int] = []
        try:
            for run in _runs(rows, np.flatnonzero(decided.verdicts == Verdict.DONE)):
                self._fire_run(rows, run, decided, fired)
        finally:  # also if a later queue cannot be read
            self._append_fired(rows[fired])
        decided.log_end = self._store.max_offset
        return decided

    def _fire_run(self, rows: Rows, indexes: Offsets, decided: Decided, fired: list[int]) -> None:
        """Deliver the messages of one level from a queue offset on; add those delivered to `fired`.

        A message that the store refuses does not stop the others. A delivery that has only
        repaired a unit is repeated.
        """
        level, queue_offsets = self._level_of(rows[indexes[0]]), rows["queue_offset"][indexes]
        assert level is not None
        now_ms, done = self._clock.now_ms(), 0
        while done < indexes.size:
            first, count = int(queue_offsets[done]), int(indexes.size) - done
            units = self._queues.units(level.level, first, count)
            result = self._deliverer.deliver_batch(level.level, first, units, now_ms)
            settled = slice(done, done + result.done)
            level.cursor.settle_all(queue_offsets[settled])
            level.stats.record_quarantined(result.quarantined)
            remarks = {
                item.phys_offset: f"it went to quarantine, {item.reason.value}: {item.detail}"
                for item in result.quarantined
            }
            for index in indexes[settled].tolist():
                remark = remarks.get(int(rows[index]["phys_offset"]))
                if remark is None:
                    fired.append(index)
                else:
                    decided.remarks[index] = remark
            done = settled.stop
            if done < indexes.size and (result.refusal or not units.size):
                decided.verdicts[indexes[done]] = Verdict.REFUSED
                decided.remarks[int(indexes[done])] = result.refusal
                done += 1

    def _append_fired(self, rows: Rows) -> None:
        """Append records that explain early deliveries, which are valid without them, too."""
        for first in range(0, rows.size, BATCH_ROWS):
            batch, now_ms = PutBatch(BATCH_ROWS), self._clock.now_ms()
            part = rows[first : first + BATCH_ROWS]
            texts = {number: _fired_text(number + 1) for number in set(part["queue_id"].tolist())}
            columns = zip(part["queue_id"].tolist(), part["phys_offset"].tolist(), strict=True)
            for number, phys_offset in columns:
                batch.add(
                    topic_index=self._decisions,
                    queue_id=0,
                    body=FIRED_BODY,
                    properties=texts[number],
                    born_ms=now_ms,
                    born_host=NO_HOST,
                    store_host=NO_HOST,
                    prepared_offset=origin_of(phys_offset),
                )
            self._put(batch, None)

    def _read_rows(self, offsets: Offsets) -> tuple[Rows, Decided]:
        """Return the records, and a result in which pending ones are DONE."""
        assert distinct(offsets).size == offsets.size, "each message once"
        rows = frames(self._store, offsets)
        verdicts = np.full(offsets.size, Verdict.UNKNOWN, np.int8)
        is_level = (rows["record_size"] > 0) & (rows["topic_index"] == self._schedule)
        verdicts[is_level] = Verdict.DELIVERED
        for number in np.unique(rows["queue_id"][is_level]).tolist():
            level = self._service.levels.get(number + 1)
            if level is not None:
                indexes = np.flatnonzero(is_level & (rows["queue_id"] == number))
                are_pending = level.cursor.are_pending(rows["queue_offset"][indexes])
                verdicts[indexes[are_pending]] = Verdict.DONE
        return rows, Decided(verdicts, log_end=self._store.max_offset)

    def _put_all(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Append a timer for each pending message, and settle those that were stored."""
        rows, decided = self._read_rows(offsets)
        pending = np.flatnonzero(decided.verdicts == Verdict.DONE).tolist()
        for first in range(0, len(pending), BATCH_ROWS):
            batch, row_indexes = PutBatch(BATCH_ROWS), []
            for row_index in pending[first : first + BATCH_ROWS]:
                record = self._record(rows[row_index]["phys_offset"])
                if record is None:
                    decided.verdicts[row_index] = Verdict.REFUSED
                    decided.remarks[row_index] = DAMAGED
                else:
                    self._add_timer(batch, record, int(due_ms[row_index]))
                    row_indexes.append(row_index)
            self._put(batch, hooks)
            self._conclude(rows, np.array(row_indexes, np.int64), batch, decided)
        decided.log_end = self._store.max_offset
        return decided

    def _put(self, batch: PutBatch, hooks: Hooks | None) -> None:
        """Append a batch; refuse messages that no hook redirects: they would be visible at once."""
        if hooks is not None:
            targets = batch.filled["topic_index"].copy()
            hooks(batch, self._clock.now_ms())
            status = batch.filled["status"]
            for index in np.flatnonzero((batch.filled["topic_index"] == targets) & (status == 0)):
                batch.refuse(int(index), 1, NOT_TAKEN)
        batch.trusted = True
        self._store.put(batch)

    def _add_timer(self, batch: PutBatch, record: Record, due_ms: int) -> None:
        """Add the message as its producer would have sent it with TIMER_DELIVER_MS."""
        topics = self._store.topics
        level = record.queue_id + 1
        target = target_of(record, topics, level, routed=topics.has_routes)
        topic_index, queue_id = target if isinstance(target, tuple) else (self._schedule, 0)
        text = without(record.property_text, *DROPPED)
        text += b"" if not text or text.endswith(b"\x02") else b"\x02"
        text += b"TIMER_DELIVER_MS\x01%d\x02" % due_ms
        position = add_message(batch, record, topic_index, queue_id, text)
        if not isinstance(target, tuple):
            batch.refuse(position, 1, f"{target.reason.value}: {target.detail}")


def _runs(rows: Rows, indexes: Offsets) -> Iterator[Offsets]:
    """Yield runs of messages that follow each other in the queue of one level.

    Args:
        rows: (n,) `layout.SCANNED`.
        indexes: (m,) i8: rows of the messages.
    """
    if indexes.size:
        is_next = np.diff(rows["queue_offset"][indexes]) == 1
        is_next &= np.diff(rows["queue_id"][indexes]) == 0
        yield from np.split(indexes, np.flatnonzero(~is_next) + 1)


def _fired_text(level: int) -> bytes:
    return encode_properties({"DUEMQ_DECISION": "fired", "DUEMQ_LEVEL": str(level)})
