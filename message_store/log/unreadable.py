"""Unreadable ranges of a log that is in use.

The mappings of the files are zero there (`page_guard`), which is not a valid record: such messages
go to quarantine, pulls skip them, and recovery bridges the gap. This module converts the pages to
log offsets, so that each reader can report the cause, and logs each range once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from duemq_common.errors import RecordUnreadable
from message_store.log.page_guard import GuardedMap, page_guard
from message_store.ranges import Range, joined, minus

logger = logging.getLogger(__name__)
Numbers = npt.NDArray[np.integer]
READS_MAX = 3  # maximum reads of a range; a hole on a full tmpfs is replaced at each read
REMEDY = (
    "Messages there go to quarantine or are skipped by pulls. Stop the broker and copy the store "
    "to another disk, or restore this file from a copy"
)


class MappedFile(Protocol):
    """File of a log."""

    path: Path
    base: int
    pages: GuardedMap


class UnreadableRanges:
    """Unreadable ranges of one log.

    Args:
        files: Returns the log's files, in order.
    Attributes:
        notice: Called with one line for each new range, from any thread.
        ranges: Log offsets, ascending.
        seen: Number of replaced pages that `ranges` covers; for `changed`.
        replaced: (1,): Number of replaced pages; a read is complete if it still equals `seen` from
            before the read.
    """

    def __init__(self, files: Callable[[], Sequence[MappedFile]]) -> None:
        self._files = files
        self.notice: Callable[[str], None] = logger.warning
        self._guard = page_guard()
        self.replaced = self._guard.replaced
        self._lock = threading.Lock()
        self.seen = 0
        self.ranges: list[Range] = []

    def changed(self, seen: int) -> bool:
        """Return whether bytes read since `seen` may be zeros in place of readable pages.

        If so, `ranges` is updated, readable pages are mapped again, and the caller must read again.
        """
        if self.replaced[0] == seen:
            return False
        self.update()
        return True

    def reading(self, seen: int | None = None) -> Reading:
        """Begin a reading that stops at zeros.

        Args:
            seen: `seen` before the first read; None: it has not begun.
        """
        return Reading(self, self.seen if seen is None else seen)

    def update(self) -> bool:
        """Update `ranges`; return whether there are new ones."""
        if self.replaced[0] == self.seen:
            return False
        with self._lock:
            seen = self._guard.update()
            ranges, notices = self._ranges()
            before, self.ranges = self.ranges, ranges
            self.seen = seen  # set after `ranges`, so that no other thread mistakes zeros for data
        for notice in notices:
            self.notice(notice)
        return bool(minus(ranges, before))

    def _ranges(self) -> tuple[list[Range], list[str]]:
        """Return all unreadable ranges of the mapped files, and a line for each new one."""
        ranges: list[Range] = []
        notices: list[str] = []
        for file in list(self._files()):
            file_ranges = [
                (file.base + low, file.base + high) for low, high in file.pages.unreadable
            ]
            notices += [
                f"{file.path} at byte {low - file.base}: {high - low} bytes cannot be read: "
                f"{file.pages.reason}. {REMEDY}"
                for low, high in minus(file_ranges, self.ranges)
            ]
            ranges += file_ranges
        return joined(ranges), notices

    def mask(self, offsets: Numbers, sizes: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of (n,) records at log offsets cannot be read."""
        hit = np.zeros(offsets.size, np.bool_)
        for low, high in self.ranges:
            hit |= (offsets < high) & (offsets + sizes > low)
        return hit

    def check(self, offset: int, size: int) -> None:
        """Check that a record can be read.

        Raises:
            RecordUnreadable: It is unreadable.
        """
        self.update()
        for low, high in self.ranges:
            if offset < high and offset + size > low:
                raise RecordUnreadable(offset, self._where(max(low, offset)))

    def _where(self, offset: int) -> str:
        for file in reversed(list(self._files())):
            if file.base <= offset:
                position = f"{file.path} at byte {offset - file.base}"
                return f"the disk cannot read {position}: {file.pages.reason}"
        return "its file was removed"


class Reading:
    """A read that stops at zeros, repeated until no readable page was replaced by zeros."""

    def __init__(self, unreadable: UnreadableRanges, seen: int) -> None:
        self._unreadable, self._seen = unreadable, seen
        self._reach, self._idle = -1, 0

    def again(self, reach: int) -> bool:
        """Return whether to read again.

        Args:
            reach: Position at which the reading stopped. It ends after READS_MAX readings without
                progress.
        """
        changed = self._unreadable.changed(self._seen)
        self._idle = self._idle + 1 if reach <= self._reach else 0
        self._reach, self._seen = max(reach, self._reach), self._unreadable.seen
        return changed and self._idle < READS_MAX
