"""Rate-limited log lines about peers.

Each kind of line has an allowance of its own that refills with time; what was left out is counted
and reported with the next line of that kind.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

BURST_LINES: Final = 20
LINES_PER_S: Final = 2.0


class Notices:
    """Rate-limited lines of one kind.

    Args:
        log: where the lines go.
        level: of the lines.
    """

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log, self._level = log, level
        self._allowed = float(BURST_LINES)
        self._refilled_s = 0.0
        self.left_out = 0

    def __call__(self, text: str, *args: Any, exc_info: BaseException | None = None) -> None:
        """Log a line, or count it."""
        if not self._log.isEnabledFor(self._level):
            return
        now_s = asyncio.get_running_loop().time()
        refill = (now_s - self._refilled_s) * LINES_PER_S
        self._allowed = min(self._allowed + refill, float(BURST_LINES))
        self._refilled_s = now_s
        if self._allowed < 1.0:
            self.left_out += 1
            return
        self._allowed -= 1.0
        if self.left_out:
            self._log.log(self._level, "%d lines like the next were left out", self.left_out)
            self.left_out = 0
        self._log.log(self._level, text, *args, exc_info=exc_info)


class PeerNotices:
    """What one endpoint logs about its peers.

    Attributes:
        refused: connections that found no room.
        broken: streams that cannot be followed.
        shed: Connections that were closed to free memory.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.refused, self.broken, self.shed = Notices(log), Notices(log), Notices(log)
