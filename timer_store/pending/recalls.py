"""Recall handles (request 370): the timer store's `Recalls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from delayed_delivery.pending import Verdict
from delayed_delivery.plugin import Recalled
from delayed_delivery.shared_batches import SharedBatches
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError, StoreError
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

BATCH_MESSAGES: Final = 256  # timers cancelled in one turn of the event loop
Handle: TypeAlias = tuple[str, int, str]
"""Real topic, time in ms since the epoch, unique key."""


class TimerRecalls:
    """Cancellation of timers by topic, time and unique key.

    Args:
        timers: Returns the timer store while it runs, else None.
    """

    def __init__(self, timers: Callable[[], TimerStore | None]) -> None:
        self._timers = timers
        self._batches = SharedBatches(self._recall_together, asyncio.Lock(), BATCH_MESSAGES)

    async def recall(self, topic: str, time_ms: int, unique_id: str) -> Recalled:
        """Cancel a timer; see `delayed_delivery.plugin.Recalls`.

        A timer that was moved since the send matches as well; a timer with the same key at another
        due time does not. A second cancel returns done.

        Raises:
            RequestError: The store is not writable, or the disk did not sync in time.
        """
        timers = self._timers()
        if timers is None:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed: timers are not loaded yet"
            )
        name = topic, unique_id
        try:
            result = await self._batches.add(timers, (topic, time_ms, unique_id), name)
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"recall failed: {error}") from error
        verdict, remark, log_end = result
        if verdict == Verdict.REFUSED:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"recall failed: {remark}")
        if verdict not in (Verdict.DONE, Verdict.CANCELLED):
            return Recalled.DELIVERED if verdict == Verdict.DELIVERED else Recalled.UNKNOWN
        if missing := await timers.store.wait_confirmed(log_end):
            text = f"recall: the message is cancelled, but {missing.text}"
            raise RequestError(missing.code, text)
        return Recalled.DONE

    async def _recall_together(
        self, timers: TimerStore, handles: list[Handle]
    ) -> list[tuple[int, str, int]]:
        """Return verdict, remark and log offset to confirm of each handle."""
        topics, times_ms, keys = zip(*handles, strict=True)
        pending = PendingTimers(timers)
        matches = await pending.by_key(topics, keys, unique=True)
        width_ms = timers.config.precision_ms
        slots = (np.array(times_ms, np.int64) - 1) // width_ms
        meant = (matches.due_ms - 1) // width_ms == slots[matches.name_index]
        meant |= timers.records.read(matches.offsets)["origin"] >= 0
        decided = pending.cancel(np.ascontiguousarray(matches.offsets[meant]))
        verdicts = matches.verdicts.copy()
        verdicts[verdicts == Verdict.DONE] = Verdict.UNKNOWN  # pending at another time
        names = matches.name_index[meant]
        np.minimum.at(verdicts, names, decided.verdicts)
        verdicts[names[decided.verdicts == Verdict.REFUSED]] = Verdict.REFUSED
        remarks = {int(names[index]): text for index, text in decided.remarks.items()}
        log_end = timers.store.max_offset
        return [
            (verdict, remarks.get(index, ""), log_end)
            for index, verdict in enumerate(verdicts.tolist())
        ]
