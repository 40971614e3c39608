"""Timer wheel: one slot per second (or less) over two weeks; later times wrap around.

    slot = time / precision mod 1,209,600      tick = time / precision: shows the lap of the slot
    tick | first_pos | last_pos | num          the two ends of a chain of units in the timer log

A slot with another tick counts as empty. Slots are not cleared after their time; the next
lap reuses them.

The slots are in memory in the layout of the disk. A start reads the pages with data; other pages
use no memory until they are used. The file is not mapped, because an unreadable sector or a hole on
a full tmpfs would end the process inside a kernel. Only a write-back changes the file: `capture`
copies the changed pages, `write` writes them to the disk.

Source: org.apache.rocketmq.store.timer.TimerWheel, Slot
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from delayed_delivery.steps import Steps, at_once
from duemq_common.directories import sync_directory
from duemq_common.errors import CorruptStore
from duemq_common.existence import is_directory
from message_store.layout import packer
from timer_store import layout
from timer_store.kernels import wheel as kernels
from timer_store.kernels.forecast import bin_slots, fullest_slots
from timer_store.kernels.wheel import PAGE_BYTES, PAGE_CHANGED, PAGE_USED
from timer_store.layout import SLOT_BYTES, TIMER_SLOT, WHEEL_BYTES, WHEEL_SLOTS, Offsets, Rows

WHEEL_PAGES: Final = WHEEL_BYTES // PAGE_BYTES
READ_BYTES: Final = 1 << 20
LIST_SLOTS: Final = 4_096
STEP_SLOTS: Final = 1 << 16  # maximum slots that a step of a long count looks at
_SLOT = packer(TIMER_SLOT)
DAMAGED_SUFFIX: Final = ".damaged"


class Slot(NamedTuple):
    """The units of one slot: the ends of their chain, -1 if there are none."""

    tick: int
    first_pos: int
    last_pos: int
    num: int
    magic: int


NO_UNITS = Slot(-1, -1, -1, 0, 0)


class Captured(NamedTuple):
    """Changed pages as they were at one instant: (n,) page numbers, (n, 4096) their bytes."""

    pages: Offsets
    data: npt.NDArray[np.uint8]


class TimerWheel:
    """`<root>/timerwheel` in memory. Belongs to one thread; `write` may run in another.

    Args:
        path: Path of the file; if missing or empty, a sparse one is created.
        precision_ms: Width of a slot (timerPrecisionMs).
    Attributes:
        data: (38707200,) u1: the slots, as on the disk; private to this process.
        pages: (9450,) u1, for kernels: PAGE_USED, PAGE_CHANGED.

    Raises:
        CorruptStore: The file has another size, or cannot be read.
    """

    def __init__(self, path: Path, precision_ms: int) -> None:
        assert precision_ms > 0
        self.path, self.precision_ms = path, precision_ms
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._check_size()
            self._map = mmap.mmap(-1, WHEEL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            # Used slots are far apart, and each would take a huge page of 2 MiB.
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
            self.data: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
            self.pages: npt.NDArray[np.uint8] = self._read()
        except (OSError, CorruptStore):
            os.close(self._fd)
            raise
        self._durable = False  # a killed process may not have synced the file

    def _check_size(self) -> None:
        size = os.fstat(self._fd).st_size
        if size == 0:
            os.ftruncate(self._fd, WHEEL_BYTES)
            sync_directory(self.path.parent)
        elif size != WHEEL_BYTES:
            raise CorruptStore(
                self.path,
                0,
                f"it has {size} bytes; a wheel has {WHEEL_BYTES}",
                "Restore it from a copy, or remove it: it is rebuilt from the timer log.",
            )

    def _read(self) -> npt.NDArray[np.uint8]:
        """Read the pages with data into `data`; return the page flags."""
        used = np.zeros(WHEEL_PAGES, np.uint8)
        data = self.data.reshape(WHEEL_PAGES, PAGE_BYTES)
        pos = 0
        while True:
            try:
                pos = os.lseek(self._fd, pos, os.SEEK_DATA)
            except OSError:  # only holes from here on
                return used
            first = pos // PAGE_BYTES
            block = self._read_pages(first * PAGE_BYTES)
            with_data = np.flatnonzero(block.any(axis=1))
            used[first + with_data] = PAGE_USED
            data[first + with_data] = block[with_data]
            pos = (first + len(block)) * PAGE_BYTES
            if pos >= WHEEL_BYTES:
                return used

    def _read_pages(self, pos: int) -> npt.NDArray[np.uint8]:
        try:
            block = os.pread(self._fd, READ_BYTES, pos)
        except OSError as error:
            raise CorruptStore(
                self.path,
                pos,
                f"it cannot be read: {error.strerror}",
                "Check the disk; the wheel is rebuilt from the timer log.",
            ) from error
        return np.frombuffer(block, np.uint8).reshape(-1, PAGE_BYTES)

    # -- one slot -------------------------------------------------------------------------------

    def tick(self, time_ms: int) -> int:
        """Return the tick of a time."""
        return time_ms // self.precision_ms

    def slot(self, time_ms: int) -> Slot:
        """Return the slot that covers `time_ms`, empty if it belongs to another lap.

        Source: TimerWheel.getSlot
        """
        tick = time_ms // self.precision_ms
        slot = Slot(*_SLOT.unpack_from(self._map, tick % WHEEL_SLOTS * SLOT_BYTES))
        return slot if slot.tick == tick > 0 and slot.last_pos >= 0 else NO_UNITS

    def num(self, time_ms: int) -> int:
        """Return the number of pending timers in the slot that covers `time_ms`.

        Source: TimerMessageStore.getSlotNum
        """
        return max(self.slot(time_ms).num, 0)

    # -- many slots -----------------------------------------------------------------------------

    @property
    def is_unused(self) -> bool:
        """Whether no slot has had a timer since the wheel was created or cleared."""
        return not self.pages.any()

    def next_live(self, from_ms: int, until_ms: int) -> int | None:
        """Return the start of the first slot with units that covers `from_ms` or later.

        Args:
            until_ms: Slots that begin at or after it are not searched.
        """
        first, count = self._ticks(from_ms, until_ms)
        tick = int(kernels.next_live(self.data, self.pages, first, count))
        return None if tick < 0 else tick * self.precision_ms

    def live(self, from_ms: int, until_ms: int | None = None) -> Rows:
        """Return the slots with units that begin before `until_ms`, from that of `from_ms` on.

        Returns:
            (n,) `layout.SLOT`, in the order of time.
        """
        parts = list(self.live_parts(from_ms, until_ms))
        return np.concatenate(parts) if parts else np.empty(0, layout.SLOT)

    def live_parts(
        self, from_ms: int, until_ms: int | None = None, slots_max: int = LIST_SLOTS
    ) -> Iterator[Rows]:
        """Yield the slots of `live` in arrays of at most `slots_max` slots."""
        first, count = self._ticks(from_ms, until_ms)
        while count > 0:
            out = np.empty(min(slots_max, count), layout.SLOT)
            slot_count, looked_at = kernels.live_slots(self.data, self.pages, first, count, out)
            first, count = first + looked_at, count - looked_at
            if slot_count:
                yield out[:slot_count]

    def _ticks(self, from_ms: int, until_ms: int | None) -> tuple[int, int]:
        """Return the first tick and the number of ticks, at most one lap."""
        first = max(from_ms // self.precision_ms, 1)
        if until_ms is None:
            return first, WHEEL_SLOTS
        return first, min(max(-(-until_ms // self.precision_ms) - first, 0), WHEEL_SLOTS)

    def forecast(self, from_ms: int, width_ms: int, count: int) -> Offsets:
        """Return the number of pending timers in each of `count` spans from `from_ms` on.

        Timers that roll are counted in their current slot.
        """
        bins = np.zeros(count + 2, np.int64)
        at_once(self.add_to_bins(bins, from_ms, width_ms, from_ms, from_ms + width_ms * count))
        bins[1] += bins[0]  # of the slot that has begun before
        return bins[1:-1]

    def add_to_bins(
        self,
        bins: Offsets,
        first_ms: int,
        width_ms: int,
        from_ms: int,
        until_ms: int | None = None,
    ) -> Steps[None]:
        """Add the timers of slots to the bins in which the slots begin, in steps.

        Args:
            bins: (n,) i8: the first one is for times before `first_ms`, the last one for later
                ones.
            from_ms, until_ms: See `live`.
        """
        first, count = self._ticks(from_ms, until_ms)
        numbers = (first_ms, width_ms, self.precision_ms)
        for ticks in _in_steps(first, first + count):
            bin_slots(self.data, self.pages, ticks, numbers, bins)
            yield

    def fullest(self, from_ms: int, count: int, limit: int) -> Steps[tuple[int, int, Offsets]]:
        """Return the slots with the most timers, from that of `from_ms` on, in steps.

        Returns:
            Number of slots with timers, number of those with `limit` timers or more, and (n, 2):
            timers and tick, most timers first; at most `count`.
        """
        fullest = np.zeros((count, 2), np.int64)
        first, tick_count = self._ticks(from_ms, None)
        used = full = 0
        for ticks in _in_steps(first, first + tick_count):
            # `fullest` has the slots of the former steps, whose ticks are lower
            counts = fullest_slots(self.data, self.pages, ticks, limit, fullest)
            used, full = used + int(counts[0]), full + int(counts[1])
            yield
        return used, full, fullest[fullest[:, 0] > 0]

    def total(self, from_ms: int, until_ms: int | None = None) -> int:
        """Return the number of pending timers in the slots of `live`."""
        bins = np.zeros(1, np.int64)
        at_once(self.add_to_bins(bins, from_ms, 1, from_ms, until_ms))
        return int(bins[0])

    # -- to the disk ----------------------------------------------------------------------------

    def capture(self) -> Captured:
        """Return a copy of the pages that changed since the last call."""
        pages = np.flatnonzero(self.pages & PAGE_CHANGED)
        data = self.data.reshape(WHEEL_PAGES, PAGE_BYTES)[pages]
        self.pages[pages] &= ~np.uint8(PAGE_CHANGED)
        return Captured(pages, data)

    def write(self, captured: Captured) -> None:
        """Write captured pages to the disk. May run in any thread.

        Raises:
            OSError: The file cannot be written; the next capture has these pages again.
        """
        pages, data = captured
        if not pages.size and self._durable:
            return
        edges = [0, *(np.flatnonzero(np.diff(pages) != 1) + 1).tolist(), int(pages.size)]
        try:
            for start, end in pairwise(edges if pages.size else ()):
                _write_all(self._fd, data[start:end].data.cast("B"), int(pages[start]) * PAGE_BYTES)
            os.fdatasync(self._fd)
            self._durable = True
        except OSError:
            self.mark_changed(captured)
            raise

    def mark_changed(self, captured: Captured) -> None:
        """Mark pages as changed again, because they were not written to the disk."""
        self.pages[captured.pages] |= PAGE_CHANGED

    def clear(self) -> None:
        """Empty every slot; the file is emptied by the next write-back."""
        used = np.flatnonzero(self.pages & PAGE_USED)
        self.data.reshape(WHEEL_PAGES, PAGE_BYTES)[used] = 0
        self.pages[used] = PAGE_CHANGED

    def stray_slots(self, read_ms: int) -> int:
        """Return the number of slots with an impossible time: more than one lap ahead."""
        end_tick = read_ms // self.precision_ms + WHEEL_SLOTS
        return int(kernels.stray_slots(self.data, self.pages, end_tick))

    def close(self) -> None:
        """Close the file; changes that were not written back are lost."""
        os.close(self._fd)


def _in_steps(first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of ticks that are counted in one step each."""
    for start in range(first, end, STEP_SLOTS):
        yield start, min(start + STEP_SLOTS, end)


def _write_all(fd: int, data: memoryview, pos: int) -> None:
    while data:
        done = os.pwrite(fd, data, pos)
        pos += done
        data = data[done:]


def open_wheel(path: Path, precision_ms: int, findings: list[str]) -> TimerWheel:
    """Open a wheel; an invalid file is renamed and replaced.

    Args:
        findings: Gets a line for the operator if that happens.
    """
    try:
        return TimerWheel(path, precision_ms)
    except CorruptStore as error:
        kept = move_aside(path)
        findings.append(f"{error} It is kept as {kept}; the slots are rebuilt.")
        return TimerWheel(path, precision_ms)


def move_aside(path: Path) -> Path:
    """Rename a damaged file or directory, replacing an older one; return its new path."""
    kept = path.with_name(path.name + DAMAGED_SUFFIX)
    if is_directory(kept):
        shutil.rmtree(kept)
    kept.unlink(missing_ok=True)
    os.rename(path, kept)
    sync_directory(path.parent)
    return kept
