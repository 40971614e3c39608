"""Comparison of a replica's clock with its master's, by the store times of copied records.

The due times of delayed messages are times of the master's clock. If the replica becomes the
master, it delivers them by its own clock: early or late by the difference.

A record is compared if it was stored since the last check: both logs were equal at that time, and
are equal again. Records of a catch-up are older than the connection.
"""

from __future__ import annotations

from typing import Final

DIFFERENCE_MS_MAX: Final = 60_000
CHECK_MS: Final = 5_000


class ClockComparison:
    """Checks of one replica, `CHECK_MS` apart.

    Attributes:
        failure: Difference of the clocks and its effect, as a text; empty: none is known.
    """

    def __init__(self) -> None:
        self.failure = ""
        self._equal_end: int | None = (
            None  # end of both logs at the last check; None: they differed
        )

    def check(
        self, log_end: int, master_log_end: int | None, stored_ms: int, now_ms: int, master: str
    ) -> None:
        """Compare the store time of the newest record with the time now, if it was just stored.

        Args:
            log_end: End of the replica's log.
            master_log_end: End of the master's log; None: unknown.
            stored_ms: Store time of the newest record, in ms since the epoch; negative: unknown.
            master: Address of the master for the text.
        """
        equal_end, self._equal_end = self._equal_end, log_end if log_end == master_log_end else None
        if equal_end is None or self._equal_end is None or log_end <= equal_end or stored_ms < 0:
            return
        ahead_ms = stored_ms - now_ms
        self.failure = _text(ahead_ms, master) if abs(ahead_ms) > DIFFERENCE_MS_MAX else ""


def _text(ahead_ms: int, master: str) -> str:
    side, effect = ("ahead of", "late") if ahead_ms > 0 else ("behind", "early")
    return (
        f"the clock of the master {master} is {abs(ahead_ms) // 1_000} s {side} this broker's: if "
        f"this broker becomes the master, pending messages are {effect} by that time. Set both "
        f"clocks right"
    )
