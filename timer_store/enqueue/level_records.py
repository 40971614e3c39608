"""Level messages that timers own, read in place from the level's queue and the commit log.

    units of a level's queue      due time: the tags code, or the time in the transfer record
    records in the commit log     target; the name DELAY in them is changed when the owner changes

The files of the log are mapped a second time, writable, to change that one byte. Only pages with
records are written: these are never in a hole, and an unreadable page reads as zeros.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from delayed_delivery.ownership_projection import Ownership
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import SCHEDULE_TOPIC
from message_store import layout as store_layout
from message_store.index.key_search import frames
from message_store.kernels.kernel import entry
from message_store.log.commit_log import LogFile
from message_store.log.page_guard import GuardedMap
from message_store.ranges import Range
from message_store.store import MessageStore
from timer_store import layout
from timer_store.enqueue.enqueue_service import name_topics
from timer_store.kernels.enqueue import Scratch
from timer_store.kernels.transfer import read_levels
from timer_store.layout import DUE_MS_MAX, NO_OFFSETS, Offsets, Rows

Bytes = npt.NDArray[np.uint8]
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
POPULATE_UNITS = 1_024
NO_ROWS = np.empty(0, layout.TIMED)


class LevelRecords:
    """Reader of one store's level messages as (n,) `layout.TIMED` rows.

    Attributes:
        fixed: Number of records read whose DELAY cannot be renamed.
        unnamed: Number of such records whose owner has changed.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._schedule = store.topics.add(SCHEDULE_TOPIC)
        self._scratch = Scratch(np.zeros(1, store_layout.SCANNED), np.zeros(1, layout.TIMER_TEXT))
        self._maps: dict[int, GuardedMap] = {}
        self._entries: dict[tuple[bool, bool], Callable[..., int]] = {}
        self.fixed = self.unnamed = 0

    def bounds(self, level: int) -> Range:
        """Return the first queue offset of a level's queue and its end."""
        first, end = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1)
        return int(first), int(end)

    def read(
        self,
        level: int,
        first: int,
        end: int,
        promised: Mapping[int, int],
        *,
        name: int | None = None,
        names: list[Offsets] | None = None,
    ) -> tuple[Rows, int]:
        """Return the messages of a level's queue from `first` on, and the offset after them.

        Reads at most to the end of a queue file. Removed records are skipped.

        Args:
            promised: Due times of units whose tags code is not a time, by queue offset.
            name: New last letter of DELAY in their records, UPPER_Y or LOWER_Y; None: unchanged.
            names: Gets the log offset of that letter for each message, for `set_letter`.
        """
        low, high = self.bounds(level)
        first, end = max(first, low), min(end, high)
        if first >= end:
            return NO_ROWS, end
        units = self._store.units(SCHEDULE_TOPIC, level - 1, first, end - first)
        if not units.size:
            return NO_ROWS, first + 1
        following = first + int(units.size)
        due_ms = due_times(units, first, promised)
        messages = units["size"] != store_layout.PRE_BLANK_SIZE
        if not messages.all():
            units, due_ms = units[messages], due_ms[messages]
        rows, name_at = self._rows(level, units, due_ms)
        if name is not None:
            self.set_letter(rows, name_at, name)
        if names is not None:
            names.append(name_at)
        return rows, following

    def _rows(self, level: int, units: Rows, due_ms: Offsets) -> tuple[Rows, Offsets]:
        timed = np.zeros(units.size, layout.TIMED)
        name_at = np.empty(units.size, np.int64)
        numbers = np.array([self._schedule, level - 1], np.int64)
        position = 0
        while position < units.size:
            data, span, count = self._piece(units[position:])
            self.fixed += self._enter(
                data,
                span,
                units[position : position + count],
                self._store.topics.arrays,
                numbers,
                self._scratch,
                timed[position : position + count],
                name_at[position : position + count],
            )
            position += count
        name_topics(self._store, timed)
        timed["due_ms"], timed["slot_ms"] = due_ms, due_ms - 1
        return timed, name_at

    def _enter(self, *args: Any) -> int:
        """Call the compiled `read_levels` directly: a dispatch costs as much as 1,000 rows."""
        kinds = args[0].flags.writeable, args[2].flags.writeable
        kernel = self._entries.get(kinds)
        if kernel is None:
            kernel = self._entries[kinds] = entry(read_levels, *args)
        return int(kernel(*args))

    def set_letter(self, units: Rows, name_at: Offsets, name: int) -> None:
        """Set the last letter of DELAY in records that were read before to `name`.

        Letters that are already correct are not written, so that their pages stay clean and their
        blocks keep their checksums.

        Args:
            units: (n,) `layout.TIMED`.
            name_at: (n,) i8: see `read`.

        Raises:
            OSError: The checksums cannot be withdrawn; no letter was changed.
        """
        named = name_at >= 0
        self.unnamed += int(named.size - np.count_nonzero(named))
        for file, in_file in self._store.indexes_by_file(name_at):
            data = self._map(file)
            in_file = in_file[data[name_at[in_file] - file.base] != name]
            if in_file.size:
                self._populate(
                    file.base, units["phys_offset"][in_file], units["record_size"][in_file]
                )
                with self._store.rewriting(name_at[in_file]):
                    data[name_at[in_file] - file.base] = name

    def _piece(self, units: Rows) -> tuple[Bytes, tuple[int, int], int]:
        """Return the file of the first unit, writable, and the number of units in it."""
        try:
            file = self._store.log_file(int(units[0]["phys_offset"]))
        except RecordUnreadable:
            return np.zeros(0, np.uint8), (0, 0), 1
        inside = units["phys_offset"] < file.base + file.size
        inside &= units["phys_offset"] >= file.base
        count = int(units.size if inside.all() else np.argmin(inside))
        return self._map(file), self._store.written_span(file), count

    def _populate(self, base: int, offsets: Offsets, sizes: npt.NDArray[np.int32]) -> None:
        """Make the pages of neighbouring records writable in one call.

        Otherwise each page costs a page fault when its first byte is changed. The pages are
        unmapped before: Linux makes a page that was mapped for reading writable alone, and passes
        all blocks of its folio, of up to 1 MiB after large appends; otherwise it maps the folio.
        """
        mapped = self._maps.get(base)
        if mapped is None or offsets.size < POPULATE_UNITS:
            return
        first, last = offsets.min(), offsets.max()
        used = int(sizes.astype(np.int64).sum())
        if used * 2 >= last - first > 0:
            start = int(first - base) // mmap.PAGESIZE * mmap.PAGESIZE
            size = int(last - base) - start
            mapped.map.madvise(mmap.MADV_DONTNEED, start, size)
            with suppress(OSError):  # older Linux kernels lack it
                mapped.map.madvise(POPULATE_WRITE, start, size)

    def _map(self, file: LogFile) -> Bytes:
        mapped = self._maps.get(file.base)
        if mapped is None:
            first, end = self._store.min_offset, self._store.max_offset
            self._maps = {base: pages for base, pages in self._maps.items() if first <= base < end}
            mapped = GuardedMap(file.path, file.fd, file.size, writable=True)
            mapped.forget_file()  # the log may close it first
            self._maps[file.base] = mapped
        return mapped.data

    def at_offsets(self, offsets: Offsets, owned: Ownership) -> tuple[Rows, Offsets]:
        """Return the records at log offsets that timers own, and their indexes.

        Returns ((n,) `layout.TIMED`, (n,) indexes into `offsets`).
        """
        if not owned or not offsets.size:
            return NO_ROWS, NO_OFFSETS
        seen = frames(self._store, offsets)
        of_levels = np.flatnonzero(
            (seen["record_size"] > 0) & (seen["topic_index"] == self._schedule)
        )
        rows, position = [NO_ROWS], [NO_OFFSETS]
        levels = seen["queue_id"][of_levels] + 1
        for level in np.unique(levels).tolist():
            which = of_levels[levels == level]
            timed, kept = self._of_level(level, seen[which], owned)
            rows.append(timed)
            position.append(which[kept])
        return np.concatenate(rows), np.concatenate(position)

    def _of_level(self, level: int, seen: Rows, owned: Ownership) -> tuple[Rows, Offsets]:
        """Return the records of a level (SCANNED) that the timers own, and their indexes."""
        order = np.argsort(seen["queue_offset"], kind="stable")
        numbers = seen["queue_offset"][order]
        promised = owned.promised.get(level, {})
        rows, position = [NO_ROWS], [NO_OFFSETS]
        for first, end in owned.ranges(level):
            low, high = np.searchsorted(numbers, (first, end)).tolist()
            while low < high:
                units = self._run(level, numbers[low:high])
                if not units.size:
                    low += 1
                    continue
                count = int(units.size)
                in_range = order[low : low + count]
                due_ms = due_times(units, int(numbers[low]), promised)
                same = units["phys_offset"] == seen["phys_offset"][in_range]
                rows.append(self._rows(level, units[same], due_ms[same])[0])
                position.append(in_range[same])
                low += count
        return np.concatenate(rows), np.concatenate(position)

    def _run(self, level: int, numbers: Offsets) -> Rows:
        """Return the units of the leading consecutive queue offsets."""
        breaks = np.flatnonzero(np.diff(numbers) != 1)
        count = int(breaks[0]) + 1 if breaks.size else int(numbers.size)
        units: Rows = self._store.units(SCHEDULE_TOPIC, level - 1, int(numbers[0]), count)
        return units


def due_times(units: Rows, first: int, promised: Mapping[int, int]) -> Offsets:
    """Return the due times of units of a level's queue; `first`: the queue offset of units[0].

    The due times of timers are at least 1 and have at most 18 digits.
    """
    due_ms = units["tags_code"].astype(np.int64)
    if promised:
        for index in range(units.size):
            due_ms[index] = promised.get(first + index, due_ms[index])
    return np.asarray(np.clip(due_ms, 1, DUE_MS_MAX))
