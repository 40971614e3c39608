"""Timer log files: fixed size, named by their first position, units of 52 bytes.

    timerlog/00000000000000000000   [unit][unit]...[blank]
    timerlog/00000000000104857600   [unit]...             <- `end`: known from the snapshot

A file is closed with a blank record of 16 bytes when it has no room for a unit and a blank. A
written unit never changes, except for three fields: when a timer is settled early, `due_ms` becomes
negative and `magic` that of a marker (`write_tombstones`); when a broken chain is linked again,
`prev_pos` is corrected (`patch`).

Reads go through a shared mapping of each file; what pwrite wrote is visible there at once.

Source: org.apache.rocketmq.store.timer.TimerLog
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from duemq_common.errors import ConfigError, CorruptStore
from message_store.layout import MAGIC_BLANK
from message_store.log.commit_log import LogFile, NumberedLog, numbered_files
from message_store.log.file_sequence import check_next
from timer_store import layout
from timer_store.kernels import chain
from timer_store.kernels import wheel as kernels
from timer_store.layout import BLANK, TIMER_BLANK, TIMER_UNIT, UNIT_BYTES, Offsets, Rows

BLANK_BYTES: Final = TIMER_BLANK.itemsize
FILE_BYTES_DEFAULT: Final = 104_857_600
FILE_BYTES_MAX: Final = (1 << 31) - 1
SCAN_UNITS: Final = 65_536
REMEDY: Final = "The wheel is linked again from the timer log at the next start."
PATCH_GAP_BYTES: Final = 512  # fields with smaller gaps between them are written by one call
PATCH_BYTES_MAX: Final = 1 << 20
PIECE_UNITS: Final = 8_192  # per call, because a call blocks the event loop: it has the GIL


class UnitFile(LogFile):
    """One file of the timer log.

    The chains of slots lead to random pages; a sequential walk calls `will_read` before each piece.

    Attributes:
        unrolled_end: Log position before which no pending unit rolls; see `pending.forecast`.
    """

    def __init__(self, path: Path, base: int, size: int, *, create: bool) -> None:
        super().__init__(path, base, size, create=create)
        self.pages.read_at_random()
        self.unrolled_end = base

    def will_read(self, pos: int, end: int) -> None:
        """Begin to read the units from one log position to another into the page cache."""
        os.posix_fadvise(self.fd, pos - self.base, max(end - pos, 1), os.POSIX_FADV_WILLNEED)

    def release(self) -> None:
        """Unmap the pages that were read; they stay in the page cache."""
        self.pages.map.madvise(mmap.MADV_DONTNEED)


class TimerLog(NumberedLog[UnitFile]):
    """Files of the timer log in order, the write position, and views of the written units.

    Belongs to one thread; `sync` and `patch` may run in another.

    Args:
        file_bytes: mappedFileSizeTimerLog.
    Attributes:
        failure: Error of a failed sync; no checkpoint may be written until the log is reopened.
    """

    def __init__(self, directory: Path, file_bytes: int = FILE_BYTES_DEFAULT) -> None:
        if not UNIT_BYTES + BLANK_BYTES <= file_bytes <= FILE_BYTES_MAX:
            raise ConfigError(
                "mappedFileSizeTimerLog",
                str(file_bytes),
                f"a file holds at least one unit and a blank ({UNIT_BYTES + BLANK_BYTES} bytes) "
                f"and less than 2 GiB",
            )
        super().__init__(directory, file_bytes, UnitFile)
        self.units_per_file = (file_bytes - BLANK_BYTES) // UNIT_BYTES
        self._changed: set[int] = set()  # first positions of files with writes that are not synced
        self._changed_lock = threading.Lock()
        self.failure: OSError | None = None

    # -- open -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Open every existing file, and set `end` to the end of the last one.

        The next `sync` covers all of them: a killed process may not have synced them.

        Raises:
            CorruptStore: A file has a wrong size or name, or a file is missing in between.
        """
        paths = numbered_files(self.directory)
        for path in paths:
            check_next(
                path,
                self.files[-1].base if self.files else None,
                self.file_bytes,
                is_last=path == paths[-1],
                key="mappedFileSizeTimerLog",
                source="the timer queue",
            )
            self.open_file(path)
        if self.files:
            self.end = self.files[-1].base + self.file_bytes
        with self._changed_lock:
            self._changed.update(file.base for file in self.files)

    @property
    def min_pos(self) -> int:
        """First position that still exists."""
        return self.files[0].base if self.files else self.end

    # -- read -----------------------------------------------------------------------------------

    def index_of(self, pos: int) -> int:
        """Return the index of the file that contains `pos`, -1 if it was removed.

        Raises:
            CorruptStore: The position is after the end of the log.
        """
        if pos >= self.end:
            raise self.fault(pos, f"the log ends at {self.end}")
        return bisect.bisect_right(self.files, pos, key=lambda f: f.base) - 1

    def unit(self, pos: int) -> Rows:
        """Return the unit at `pos`, () `layout.LOGGED`.

        Raises:
            CorruptStore: There is no unit.
        """
        out = np.zeros(1, layout.LOGGED)
        start = self.index_of(pos)
        if start < 0:
            raise self.fault(pos, f"the log starts at {self.min_pos}")
        file = self.files[start]
        if not chain.read_units(file.data, file.base, pos, pos + UNIT_BYTES, out):
            raise self.fault(pos, "there is no unit")
        return out.reshape(())

    def scan(self, from_pos: int = 0, until_pos: int | None = None) -> Iterator[Rows]:
        """Yield the units of the log in its order, (n,) `layout.LOGGED`; damaged ones are skipped.

        Args:
            from_pos: Position of a unit, or before the log.
            until_pos: Position to stop at, None: the current end of the log.
        """
        until_pos = self.end if until_pos is None else min(until_pos, self.end)
        for file in self.files_from(from_pos):
            pos = max(from_pos, file.base)
            end = min(self.end_in(file), until_pos)
            while pos < end:
                out = np.empty(min(SCAN_UNITS, (end - pos) // UNIT_BYTES + 1), layout.LOGGED)
                file.will_read(pos, min(end, pos + 2 * SCAN_UNITS * UNIT_BYTES))
                unit_count = int(chain.read_units(file.data, file.base, pos, end, out))
                if unit_count:
                    yield out[:unit_count]
                pos += max(unit_count, 1) * UNIT_BYTES

    def read_piece(self, pos: int, end: int, out: Rows) -> tuple[Rows, int]:
        """Return the units of one file from `pos` on, and the position of the next piece.

        A damaged unit is skipped. The memory of a file that was read to its end is released.

        Args:
            pos: Position of a unit; not before `min_pos`.
            out: (n,) `layout.LOGGED`; the result is a view of it.
        """
        file = self.files[self.index_of(pos)]
        file_end = min(self.end_in(file), end)
        file.will_read(pos, min(file_end, pos + 2 * out.size * UNIT_BYTES))
        unit_count = int(chain.read_units(file.data, file.base, pos, file_end, out))
        following = pos + max(unit_count, 1) * UNIT_BYTES
        if following >= file_end:
            following = max(following, file.base + file.size)
            file.release()
        return out[:unit_count], following

    def end_in(self, file: UnitFile) -> int:
        """Return the position after the last unit of a file, without its blank."""
        return min(self.end, file.base + self.units_per_file * UNIT_BYTES)

    def fault(self, pos: int, reason: str) -> CorruptStore:
        """Return the error for a fault at a position."""
        start = bisect.bisect_right(self.files, pos, key=lambda f: f.base) - 1
        inside = start >= 0 and pos < self.files[start].base + self.file_bytes
        return CorruptStore(
            self.files[start].path if inside else self.directory,
            pos - self.files[start].base if inside else pos,
            reason,
            REMEDY,
        )

    # -- write ----------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of units that fit into the current file; 0: close it first."""
        return max(self.file_bytes - self.end % self.file_bytes - BLANK_BYTES, 0) // UNIT_BYTES

    def append(self, units: memoryview) -> int:
        """Write whole units at the end; return the position of the first.

        Raises:
            OSError: The disk refused it; the log ends where it ended.
        """
        assert len(units) % UNIT_BYTES == 0
        assert len(units) <= self.room() * UNIT_BYTES
        file, pos = self.writable_file(), self.end
        file.write(pos - file.base, units)
        self._mark_changed(file.base)
        self.end = pos + len(units)
        return pos

    def close_file(self) -> None:
        """Write the blank record that ends the current file; the next append opens a new one.

        Raises:
            OSError: The disk refused it; the log ends where it ended.
        """
        file = self.writable_file()
        pos = self.end - file.base
        file.write(pos, BLANK.pack(file.size - pos, 0, MAGIC_BLANK))
        self._mark_changed(file.base)
        self.end = file.base + file.size

    def patch(self, positions: Offsets, column: str, values: Offsets) -> None:
        """Write a field of existing units. May run in any thread.

        Args:
            positions: (n,) of the units, ascending.
            column: Field of `layout.TIMER_UNIT`.
            values: (n,) new values.

        Raises:
            OSError: The disk refused it; some may be written.
        """
        assert TIMER_UNIT.fields is not None
        kind, offset = TIMER_UNIT.fields[column][:2]
        data = values.astype(kind).view(np.uint8).reshape(-1, kind.itemsize)
        for file, low, high in self.files_with(positions):
            _patch_file(file, positions[low:high] - file.base + offset, data[low:high])
            self._mark_changed(file.base)

    def write_tombstones(self, positions: Offsets, due: Offsets) -> None:
        """Write tombstones to units, a bounded piece at a time. May run in any thread.

        Args:
            positions: (n,) of the units, ascending.
            due: (n,) their new due_ms.

        Raises:
            OSError: The disk refused it; some may be written.
        """
        for first in range(0, positions.size, PIECE_UNITS):
            group, left = positions[first : first + PIECE_UNITS], due[first : first + PIECE_UNITS]
            for file, low, high in self.files_with(group):
                _write_tombstones(file, group[low:high], left[low:high])
                self._mark_changed(file.base)

    def _mark_changed(self, base: int) -> None:
        if base not in self._changed:
            with self._changed_lock:
                self._changed.add(base)

    def sync(self, until_pos: int | None = None) -> None:
        """Wait until the bytes before `until_pos` (None: all) are on the disk.

        May run in a thread while another thread appends.

        Raises:
            OSError: This sync or an earlier one failed. Linux drops pages that it could not write,
                and the next sync succeeds without them, so only a start from the last checkpoint
                writes them again.
        """
        if self.failure is not None:
            raise OSError(self.failure.errno, f"a sync has failed before: {self.failure}")
        with self._changed_lock:
            changed, self._changed = self._changed, set()
        later = {base for base in changed if until_pos is not None and base >= until_pos}
        done: set[int] = set(later)
        try:
            for base in sorted(changed - later):
                file = self.find_file(base)
                if file is not None:  # else it was removed
                    file.sync()
                done.add(base)
        except OSError as error:
            self.failure = error
            raise
        finally:
            with self._changed_lock:
                self._changed |= (changed - done) | later


def _write_tombstones(file: UnitFile, positions: Offsets, due: Offsets) -> None:
    for start, end in _groups(positions - file.base):
        first, last = int(positions[start]), int(positions[end - 1])
        block = file.data[first - file.base : last - file.base + UNIT_BYTES].copy()
        kernels.write_tombstones(block, first, positions[start:end], due[start:end])
        file.write(first - file.base, block.data)


def _patch_file(file: UnitFile, offsets: Offsets, data: npt.NDArray[np.uint8]) -> None:
    """Write numbers, (n, bytes of one), at ascending file positions."""
    size = data.shape[1]
    for start, end in _groups(offsets):
        first, last = int(offsets[start]), int(offsets[end - 1])
        block = file.data[first : last + size].copy()
        block[(offsets[start:end] - first)[:, None] + np.arange(size)] = data[start:end]
        file.write(first, block.data)


def _groups(offsets: Offsets) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of groups of ascending file positions that are written by one call."""
    apart = (np.diff(offsets) > PATCH_GAP_BYTES) | (np.diff(offsets // PATCH_BYTES_MAX) > 0)
    edges = (np.flatnonzero(apart) + 1).tolist()
    yield from pairwise([0, *edges, offsets.size])
