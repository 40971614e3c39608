"""Lookup of pending timers by id, key or topic: the timer store's `PendingMessages`.

    log offset   of any record of the timer; copies of a moved timer are followed
    key          UNIQ_KEY or one of KEYS, from the key index of the timer topic
    topic        from the wheel, piece by piece: `timer_store.pending.search`

Timers that are no longer pending have a verdict. The marker of a cancel names its target as its
origin and has the keys of it; markers of moves and fires have no keys. A marker without an origin,
in a store of an Apache broker, does not prove a cancel, so the delivery is looked up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from delayed_delivery.pending import (
    Decided,
    Found,
    HitQuery,
    Hooks,
    PendingPiece,
    Position,
    Verdict,
    found_by_one,
    none_found,
)
from delayed_delivery.quarantine import origin_of
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.index.key_search import HIT_UNIQUE, Matches, frames, search, search_later
from timer_store import layout
from timer_store.layout import Mask, Offsets, Row, Rows
from timer_store.names import TIMER_QUEUE
from timer_store.pending.decisions import Decisions
from timer_store.pending.search import search_timers

if TYPE_CHECKING:
    from timer_store.store import TimerStore

PIECE_UNITS = 8_192
ANY_TOPIC = -2  # as index of a topic
SEARCHES_MAX = 4  # of one lookup, while timers with its keys change
MOVES_MAX = 10_000  # maximum number of followed moves of one timer


class PendingTimers:
    """Pending timers of one store: find, cancel, move and fire."""

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers
        self._decisions: Decisions = timers.decisions

    # -- find -----------------------------------------------------------------------------------

    async def by_offset(self, offsets: Offsets) -> Found:
        """Find timers by the log offset of any of their records."""
        rows = self._timers.records.read(offsets)
        pending = self._decisions.is_pending(rows)
        verdicts = np.full(offsets.size, Verdict.UNKNOWN, np.int8)
        verdicts[pending] = Verdict.DONE
        for index in np.flatnonzero(~pending & (rows["kind"] == layout.TIMED_PLAIN)).tolist():
            rows[index], verdicts[index] = await self._follow(rows[index])
            pending[index] = verdicts[index] == Verdict.DONE
        name_index = np.flatnonzero(pending)
        return Found(
            rows["phys_offset"][name_index].copy(),
            rows["due_ms"][name_index].copy(),
            name_index,
            verdicts,
        )

    def promised(self, offsets: Offsets) -> Offsets:
        """Return the due times of these records, -1 for records that are not timers."""
        rows = self._timers.records.read(offsets)
        due_ms: Offsets = np.where(rows["kind"] == layout.TIMED_PLAIN, rows["due_ms"], -1)
        return due_ms

    async def _follow(self, row: Row) -> tuple[Row, Verdict]:
        """Return the newest copy of a timer that is no longer pending, and its verdict."""
        unique = self._unique_of(row)
        if not unique:
            return row, Verdict.DELIVERED
        records = (await self._records([unique]))[1]
        plain = records[records["kind"] == layout.TIMED_PLAIN]
        copies = {int(copy["origin"]): copy for copy in plain if copy["origin"] >= 0}
        for _ in range(MOVES_MAX):
            following = copies.get(int(row["phys_offset"]))
            if following is None:
                break
            row = following
        if self._decisions.is_pending(row.reshape(1))[0]:
            return row, Verdict.DONE
        return row, await self._end_of(row, records, unique)

    def _unique_of(self, row: Row) -> str:
        try:
            record = self._timers.store.read_record(int(row["phys_offset"]))
        except RecordUnreadable:
            return ""
        return str(record.properties.get("UNIQ_KEY", ""))

    async def by_key(
        self, topic: str | Sequence[str], keys: Sequence[str], *, unique: bool
    ) -> Found:
        """Find timers by their keys."""
        if not keys:
            return none_found(0)
        rows, name_index, log_end = await self._with_keys(topic, keys, unique)
        for is_last in [False] * (SEARCHES_MAX - 1) + [True]:
            pending = await self._pending_in_turns(rows)
            verdicts = np.full(len(keys), Verdict.UNKNOWN, np.int8)
            verdicts[name_index[pending]] = Verdict.DONE
            has_searched = await self._set_verdicts(keys, rows, name_index, verdicts)
            if is_last or (not has_searched and rows.size <= PIECE_UNITS):
                break
            # timers may have been copied, moved or cancelled meanwhile
            later, names, log_end = await self._with_keys(topic, keys, unique, log_end)
            if not later.size:
                break
            rows, name_index = np.concatenate([rows, later]), np.concatenate([name_index, names])
            order = np.argsort(name_index, kind="stable")
            rows, name_index = rows[order], name_index[order]
        offsets, due_ms = rows["phys_offset"][pending], rows["due_ms"][pending]
        offsets, firsts = np.unique(offsets, return_index=True)  # found by two keys: listed once
        return Found(offsets, due_ms[firsts], name_index[pending][firsts], verdicts)

    async def _pending_in_turns(self, rows: Rows) -> Mask:
        """Return which timers are pending; other work runs after each piece."""
        pending = np.zeros(rows.size, np.bool_)
        for first in range(0, rows.size, PIECE_UNITS):
            if first:
                await asyncio.sleep(0)
            part = slice(first, first + PIECE_UNITS)
            pending[part] = self._decisions.is_pending(rows[part])
        return pending

    async def _with_keys(
        self, topic: str | Sequence[str], keys: Sequence[str], unique: bool, log_end: int = -1
    ) -> tuple[Rows, Offsets, int]:
        """Return the records of `by_key`, by key, then by log offset.

        Args:
            log_end: End of the log at an earlier search: only later records; -1: all.

        Returns:
            (n,) `layout.TIMED`; the index of each one's key; the end of the log at this search.
        """
        matches, rows = await self._records(keys, log_end)
        is_meant = np.ones(rows.size, np.bool_)
        if unique:
            is_meant &= matches.hits == HIT_UNIQUE
        if topic:
            topics = [topic] * len(keys) if isinstance(topic, str) else topic
            index_of = {name: self._timers.store.topics.find(name) for name in set(topics) if name}
            indexes = np.array([index_of.get(name, ANY_TOPIC) for name in topics], np.int64)
            indexes = indexes[matches.key_at]
            is_meant &= (indexes == ANY_TOPIC) | ((rows["topic_index"] == indexes) & (indexes >= 0))
        return rows[is_meant], matches.key_at[is_meant], matches.log_end

    async def _records(self, keys: Sequence[str], log_end: int = -1) -> tuple[Matches, Rows]:
        """Return the records with some keys, including transferred level messages."""
        topics = [TIMER_TOPIC]
        if self._timers.transfers.owned:
            topics.append(SCHEDULE_TOPIC)
        store = self._timers.store
        if log_end < 0:
            matches = await search(store, topics, keys)
        else:
            matches = await search_later(store, topics, keys, log_end)
        pieces = [
            self._timers.records.read(matches.offsets[first : first + PIECE_UNITS])
            for first in range(0, max(matches.offsets.size, 1), PIECE_UNITS)
        ]
        return matches, np.concatenate(pieces)

    async def _set_verdicts(
        self, keys: Sequence[str], rows: Rows, name_index: Offsets, verdicts: npt.NDArray[np.int8]
    ) -> bool:
        """Set the verdicts of keys without a pending timer; `name_index` ascends.

        Returns:
            Whether deliveries may have been searched, while other work ran.
        """
        has_searched = False
        missing = np.unique(name_index[verdicts[name_index] == Verdict.UNKNOWN])
        firsts, ends = (
            np.searchsorted(name_index, missing),
            np.searchsorted(name_index, missing, "right"),
        )
        for name, first, end in zip(missing.tolist(), firsts.tolist(), ends.tolist(), strict=True):
            records = rows[first:end]
            plain = records[records["kind"] == layout.TIMED_PLAIN]
            if plain.size:
                markers = records["kind"] == layout.TIMED_MARKER
                has_searched |= bool((markers & (records["origin"] < 0)).any())
                verdicts[name] = await self._end_of(plain[-1], records, keys[name])
        return has_searched

    async def _end_of(self, row: Row, records: Rows, key: str) -> Verdict:
        """Return the verdict of a timer that is not pending, given the records with its key."""
        markers = records[records["kind"] == layout.TIMED_MARKER]
        if (markers["origin"] == row["phys_offset"]).any():
            return Verdict.CANCELLED
        width_ms = self._timers.config.precision_ms
        same = (markers["due_ms"] - 1) // width_ms == (row["due_ms"] - 1) // width_ms
        same &= markers["topic_index"] == row["topic_index"]
        foreign = markers[same & (markers["origin"] < 0)]
        if foreign.size and not await self._is_delivered(row, key):
            return Verdict.CANCELLED
        return Verdict.DELIVERED

    async def _is_delivered(self, row: Row, key: str) -> bool:
        """Return whether the log has the delivery of a timer."""
        store = self._timers.store
        if row["topic_index"] < 0:
            return False
        topic, origin = (
            store.topics.name(int(row["topic_index"])),
            origin_of(int(row["phys_offset"])),
        )
        matches = await search(store, [topic], [key])
        return bool((frames(store, matches.offsets)["prepared_offset"] == origin).any())

    def search(self, query: HitQuery, cursor: str) -> PendingPiece:
        """Return the next pending timers of a search."""
        return search_timers(self._timers, query, cursor)

    def walk(self, position: Position) -> tuple[Found, Position | None]:
        """Return the pending timers of the next piece: part 0 is the timer queue, n is level n."""
        timers = self._timers
        part, offset = position
        if part == 0:
            offset, end = max(offset, self.first_pending()), timers.fetch.bounds()[1]
            if offset < end:
                rows, offset = timers.fetch.fetch_queue(offset, min(PIECE_UNITS, end - offset))
                return self._pending_of(rows), (0, offset)
            return none_found(1), self._next_part(0)
        end = max((end for _, end in timers.transfers.owned.ranges(part)), default=0)
        if offset >= end:
            return none_found(1), self._next_part(part)
        following = min(offset + PIECE_UNITS, end)
        rows, _ = timers.transfers.owned_rows(part, offset, following)
        return self._pending_of(rows), (part, following)

    def _next_part(self, part: int) -> Position | None:
        """Return the beginning of the next level with transferred messages, None without one."""
        owned = self._timers.transfers.owned
        level = min((number for number in owned.pieces if number > part), default=0)
        if not level:
            return None
        return level, min((first for first, _ in owned.ranges(level)), default=0)

    def _pending_of(self, rows: Rows) -> Found:
        rows = rows[self._decisions.is_pending(rows)]
        return found_by_one(rows["phys_offset"], rows["due_ms"])

    def first_pending(self) -> int:
        """Return a queue offset at or before that of the first pending timer."""
        timers = self._timers
        queue = timers.store.queues.find(TIMER_TOPIC, TIMER_QUEUE)
        enqueued, first_offset = timers.position.queue_offset, timers.first_pending_offset
        if queue is None or first_offset is None:
            return enqueued
        return min(queue.offset_from(first_offset), enqueued)

    # -- decide ---------------------------------------------------------------------------------

    def wake_due(self, now_ms: int) -> bool:
        """Wake the delivery of timers that are due; return whether there are any."""
        is_due = self._timers.dequeue.can_deliver(now_ms)
        if is_due:
            self._timers.wake()
        return is_due

    def cancel(self, offsets: Offsets) -> Decided:
        """Cancel timers."""
        return self._decisions.cancel(offsets)

    def move(self, offsets: Offsets, due_ms: Offsets, hooks: Hooks) -> Decided:
        """Move timers to other due times."""
        return self._decisions.move(offsets, due_ms)

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver timers now."""
        return self._decisions.fire(offsets)
