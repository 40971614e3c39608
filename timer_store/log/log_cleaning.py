"""Removal of timer log files without pending timers, oldest first.

    timerlog    [ file 0 ][ file 1 ][ file 2 ][ written ]
                             ^ the first unit that is needed: not settled, its slot not delivered

A chain may lead into files that are gone, and ends there: what it had there is settled, or was
rolled into a later slot. A marker is not needed after it was enqueued: its target says that it is
settled. A unit waits for one roll window at most, so no file stays for long. Only the first needed
unit is looked at until it is needed no more, so that each is passed once.

What is needed is what the checkpoint on the disk needs, so files go when one has been written. An
Apache broker keeps a file until the commit log has lost the record of its last unit; it takes a
timer log that begins later as we do. Source: TimerMessageStore, cleaning of the TimerLog
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
LOOK_UNITS: Final = 131_072  # passed at a checkpoint, at most
FILES_MAX: Final = 10  # removed at a time


class LogCleaning:
    """Removes files of one timer log. Belongs to the event loop's thread."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._pos = self._remade = 0
        self.removed_files = 0

    def needed_from(self, read_ms: int) -> int:
        """Return where the first unit lies that this instant may need.

        Args:
            read_ms: the first slot that is not completely delivered.
        """
        log = self._state.units.log
        if self._remade != self._state.rebuilds or self._pos > log.end:
            self._pos, self._remade = 0, self._state.rebuilds
        self._pos = max(self._pos, log.min_pos)
        for _ in range(LOOK_UNITS // PIECE_UNITS):
            if not log.files or self._pos >= log.files[-1].base or not self._pass(read_ms):
                break  # the file that is written stays in any case
        return self._pos

    def _pass(self, read_ms: int) -> bool:
        """Pass some units of one file; return whether none of them is needed."""
        log, width_ms = self._state.units.log, self._state.config.precision_ms
        rows, following = log.read_piece(self._pos, log.end, np.empty(PIECE_UNITS, layout.LOGGED))
        needed = is_pending(rows) & (rows["slot_ms"] >= read_ms - read_ms % width_ms)
        if needed.any():
            self._pos += int(np.argmax(needed)) * UNIT_BYTES
            return False
        self._pos = following
        return True

    def detach_before(self, pos: int) -> list[LogFile]:
        """Take files that end at or before a position out of the log, the last one never.

        They are to be erased, in any thread.
        """
        log = self._state.units.log
        files: list[LogFile] = []
        while len(log.files) > 1 and len(files) < FILES_MAX and log.files[1].base <= pos:
            files.append(log.detach_first())
        self.removed_files += len(files)
        return files
