"""Removal of timer log files without pending timers, oldest first.

    timerlog    [ file 0 ][ file 1 ][ file 2 ][ written ]
                             ^ first needed unit: not settled, in a slot that is not delivered

A chain that leads into removed files ends there: the units in these files are settled, or rolled
into a later slot. A marker is not needed after it was enqueued, because its target is marked as
settled. A unit is pending for at most one roll window, so every file is removed after that time.
The search continues at the first needed unit, so each unit is checked once.

Files are removed after a checkpoint was written, because the last checkpoint on the disk needs its
units. An Apache broker keeps a file until the commit log has lost the record of its last unit; it
accepts a timer log that begins later. Source: TimerMessageStore, cleaning of the TimerLog
"""

from __future__ import annotations

from typing import Final

import numpy as np

from message_store.log.commit_log import LogFile
from timer_store import layout
from timer_store.layout import UNIT_BYTES
from timer_store.log.chain_check import is_pending
from timer_store.state import TimerState

PIECE_UNITS: Final = 16_384
LOOK_UNITS: Final = 131_072  # maximum units checked per checkpoint
FILES_MAX: Final = 10  # maximum files removed at a time


class LogCleaning:
    """Removal of one timer log's files. Belongs to the event loop's thread."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._pos = self._rebuilds = 0
        self.removed_files = 0

    def needed_from(self, read_ms: int) -> int:
        """Return the position of the first unit that may be needed now.

        Args:
            read_ms: the first slot that is not completely delivered.
        """
        log = self._state.units.log
        if self._rebuilds != self._state.rebuilds or self._pos > log.end:
            self._pos, self._rebuilds = 0, self._state.rebuilds
        self._pos = max(self._pos, log.min_pos)
        for _ in range(LOOK_UNITS // PIECE_UNITS):
            if not log.files or self._pos >= log.files[-1].base or not self._skip_piece(read_ms):
                break  # the file that is being written is never removed
        return self._pos

    def _skip_piece(self, read_ms: int) -> bool:
        """Advance to the first needed unit of the next piece; return True if it has none."""
        log, width_ms = self._state.units.log, self._state.config.precision_ms
        rows, following = log.read_piece(self._pos, log.end, np.empty(PIECE_UNITS, layout.LOGGED))
        needed = is_pending(rows) & (rows["slot_ms"] >= read_ms - read_ms % width_ms)
        if needed.any():
            self._pos += int(np.argmax(needed)) * UNIT_BYTES
            return False
        self._pos = following
        return True

    def detach_before(self, pos: int) -> list[LogFile]:
        """Detach the files that end at or before a position from the log, except the last file.

        The caller erases them, in any thread.
        """
        log = self._state.units.log
        files: list[LogFile] = []
        while len(log.files) > 1 and len(files) < FILES_MAX and log.files[1].base <= pos:
            files.append(log.detach_first())
        self.removed_files += len(files)
        return files
