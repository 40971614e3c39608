"""Files of the timer log in which no timer waits any more are removed, oldest first.

    timerlog    [ file 0 ][ file 1 ][ file 2 ][ written ]
                             ^ first_pos: the oldest unit of all slots in which timers wait

A chain goes on into files that are gone, and ends there: what it had there is settled, or was put
on into a later slot. A unit waits for one roll window at most, so no file stays for long. What is
needed is what the checkpoint on the disk needs, so files go when one has been written.

An Apache broker keeps a file until the commit log has lost the record of its last unit; it takes a
timer log that begins later as we do. Source: TimerMessageStore, TimerLog cleaning
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from timer_store.store import TimerStore

LOOK_MS: Final = 30_000  # between two looks at all slots, as Apache's broker
FILES_MAX: Final = 10  # removed at a time


class LogCleaning:
    """Removes files of one timer log. Belongs to the event loop's thread."""

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers
        self._looked_ms = 0
        self.removed_files = 0

    def needed_from(self, read_ms: int) -> int:
        """Return where the first unit lies that this instant needs; 0: it is not time to look.

        Args:
            read_ms: the first slot that is not completely delivered.
        """
        units, now_ms = self._timers.units, self._timers.clock.now_ms()
        if len(units.log.files) < 2 or 0 <= now_ms - self._looked_ms < LOOK_MS:
            return 0
        self._looked_ms, first_pos = now_ms, units.log.end
        for slots in units.wheel.live_parts(read_ms):
            waits = slots["num"] > 0
            if waits.any():
                first_pos = min(first_pos, int(slots["first_pos"][waits].min()))
        return first_pos

    def remove_before(self, pos: int) -> int:
        """Remove files that end at or before a position, the last one never; return how many."""
        log, count = self._timers.units.log, 0
        while len(log.files) > 1 and count < FILES_MAX and log.files[1].base <= pos:
            log.remove_first()
            count += 1
        self.removed_files += count
        return count
