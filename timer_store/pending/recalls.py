"""Recall handles (request 370): the timer store's `Recalls`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from delayed_delivery.pending import Verdict
from delayed_delivery.plugin import Recalled
from duemq_common.errors import RequestError, StoreError
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

SYSTEM_ERROR, SERVICE_NOT_AVAILABLE = 1, 14


class TimerRecalls:
    """Cancellation of timers by topic, time and unique key.

    Args:
        timers: Returns the timer store while it runs, else None.
    """

    def __init__(self, timers: Callable[[], TimerStore | None]) -> None:
        self._timers = timers

    async def recall(self, topic: str, time_ms: int, unique_id: str) -> Recalled:
        """Cancel a timer; see `delayed_delivery.plugin.Recalls`.

        A timer that was moved since the send matches as well; a timer with the same key at another
        due time does not. A second cancel returns done.

        Raises:
            RequestError: The store is not writable, or the disk did not sync in time.
        """
        timers = self._timers()
        if timers is None:
            raise RequestError(SERVICE_NOT_AVAILABLE, "recall failed: timers are not loaded yet")
        pending = PendingTimers(timers)
        try:
            matches = await pending.by_key(topic, [unique_id], unique=True)
        except StoreError as error:
            raise RequestError(SYSTEM_ERROR, f"recall failed: {error}") from error
        width_ms = timers.config.precision_ms
        meant = (matches.due_ms - 1) // width_ms == (time_ms - 1) // width_ms
        meant |= timers.records.read(matches.offsets)["origin"] >= 0
        if not meant.any():
            cancelled = matches.verdicts[0] == Verdict.CANCELLED
            await self._confirmed(timers, timers.store.max_offset if cancelled else 0)
            return _recalled(int(matches.verdicts[0]))
        decided = pending.cancel(np.ascontiguousarray(matches.offsets[meant]))
        if (decided.verdicts == Verdict.REFUSED).any():
            reason = next(iter(decided.remarks.values()), "")
            raise RequestError(SERVICE_NOT_AVAILABLE, f"recall failed: {reason}")
        await self._confirmed(timers, decided.log_end)
        return Recalled.DONE

    @staticmethod
    async def _confirmed(timers: TimerStore, log_end: int) -> None:
        if log_end and (missing := await timers.store.wait_confirmed(log_end)):
            text = f"recall: the message is cancelled, but {missing.text}"
            raise RequestError(missing.code, text)


def _recalled(gone: int) -> Recalled:
    if gone == Verdict.CANCELLED:
        return Recalled.DONE
    return Recalled.DELIVERED if gone == Verdict.DELIVERED else Recalled.UNKNOWN
