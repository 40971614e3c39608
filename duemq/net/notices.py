"""Rate-limited log lines about peers: a token bucket per kind of line.

Suppressed lines are counted; the count is logged before the next line of that kind.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

BURST_LINES: Final = 20
LINES_PER_S: Final = 2.0


class Notices:
    """Rate-limited log lines of one kind.

    Args:
        log: Logger of the lines.
        level: Level of the lines.
    """

    def __init__(self, log: logging.Logger, level: int = logging.WARNING) -> None:
        self._log, self._level = log, level
        self._tokens = float(BURST_LINES)
        self._refilled_s = 0.0
        self.suppressed = 0

    def __call__(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log a line, or count it as suppressed."""
        if not self._log.isEnabledFor(self._level):
            return
        now_s = asyncio.get_running_loop().time()
        refill = (now_s - self._refilled_s) * LINES_PER_S
        self._tokens = min(self._tokens + refill, float(BURST_LINES))
        self._refilled_s = now_s
        if self._tokens < 1.0:
            self.suppressed += 1
            return
        self._tokens -= 1.0
        if self.suppressed:
            self._log.log(
                self._level, "%d lines similar to the next were suppressed", self.suppressed
            )
            self.suppressed = 0
        self._log.log(self._level, text, *args, exc_info=exc_info)


class PeerNotices:
    """Rate-limited log lines of one endpoint.

    Attributes:
        refused: Connections refused at a limit.
        broken: Connections that failed or sent malformed data.
        shed: Connections closed to free memory.
    """

    def __init__(self, log: logging.Logger) -> None:
        self.refused, self.broken, self.shed = Notices(log), Notices(log), Notices(log)
