"""Log lines about schedules that the broker pauses: one for the first, one that counts others.

A deleted topic can have a million schedules.
"""

from __future__ import annotations

import logging
from typing import Final

from recurring_schedules.wake_times import NEVER

REPORT_MS: Final = 10_000
"""Time in which further schedules are counted before they are reported."""


class PauseReports:
    """Reports of pauses.

    Attributes:
        next_ms: Time of the next report, or NEVER.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._until_ms = 0  # until then, pauses are counted
        self._count, self._last = 0, ""
        self.next_ms = NEVER

    def add(self, name: str, reason: str, now_ms: int) -> None:
        """Report a paused schedule, or count it."""
        if self._until_ms - REPORT_MS <= now_ms < self._until_ms:
            self._count += 1
            self._last = f"{name}: {reason}"
            self.next_ms = self._until_ms
            return
        self._until_ms = now_ms + REPORT_MS
        self._log.error("schedule %s is paused: %s", name, reason)

    def report(self, now_ms: int) -> None:
        """Report the counted schedules when it is time."""
        if self._count and not self._until_ms - REPORT_MS <= now_ms < self._until_ms:
            self._log.error(
                "%d more schedules are paused; the last one is %s", self._count, self._last
            )
            self._until_ms = now_ms + REPORT_MS
            self._count, self.next_ms = 0, NEVER
