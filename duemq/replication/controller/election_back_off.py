"""Back-off of elections: pause of a member before it requests another election.

    1st election  - one heartbeat period -  2nd  - two -  3rd  - four -  ...  at most two limits
    after a stable term, the next election has no pause again

Each election changes roles, and adds an entry to the epoch files, which keep the newest only. If
no master lasts, as on a machine that is too busy for its heartbeats, elections without a pause
leave no time for anything else. Elections that the controller itself decides have no pause.
"""

from __future__ import annotations

import logging
from typing import Final

log = logging.getLogger(__name__)
PAUSE_LIMITS_MAX: Final = 2  # longest pause, in heartbeat limits
STABLE_LIMITS: Final = 3  # longer than a term that ends because its first heartbeats are the last


class ElectionBackOff:
    """Pauses between the elections that one member requests. Times are of `Clock.steady_ms`.

    Args:
        heartbeat_ms: Period of heartbeats, and first pause.
        limit_ms: Time limit of heartbeats at the controller.

    Attributes:
        pause_ms: Pause after the last election; 0: none since the last stable term.
    """

    def __init__(self, heartbeat_ms: int, limit_ms: int) -> None:
        self._first_ms, self._max_ms = heartbeat_ms, PAUSE_LIMITS_MAX * limit_ms
        self._stable_ms = STABLE_LIMITS * limit_ms
        self.pause_ms = self._until_ms = 0
        self._term: tuple[int | None, int] = None, 0
        self._since_ms = 0

    def left_ms(self, now_ms: int) -> int:
        """Return the time until this member may request an election; 0: now."""
        return max(self._until_ms - now_ms, 0)

    def elected(self, now_ms: int) -> None:
        """Begin the pause after an election, with or without a result."""
        pause_ms = min(max(2 * self.pause_ms, self._first_ms), self._max_ms)
        if pause_ms > self.pause_ms > 0:
            log.warning("elections repeat: the next one is requested in %d ms or later", pause_ms)
        self.pause_ms, self._until_ms = pause_ms, now_ms + pause_ms

    def seen(self, master_id: int | None, epoch: int, now_ms: int) -> None:
        """Note the master of a view; end the back-off when its term is stable."""
        if master_id is None or self._term != (master_id, epoch):
            self._term, self._since_ms = (master_id, epoch), now_ms
        elif now_ms - self._since_ms >= self._stable_ms:
            self.pause_ms = self._until_ms = 0
