"""Clock of a test: the machine's time and what the test has added to it."""

from __future__ import annotations

import asyncio

from duemq_common.clock import SystemClock


class AdvancedClock(SystemClock):
    """Clock that runs with the machine's clock, and can be advanced.

    A message that the application sends with a due time of its own clock is therefore due when the
    test has advanced by the same time. `steady_ms` is not advanced: connections, locks and
    registrations do not expire. Used by one event loop.
    """

    def __init__(self) -> None:
        self._added_ms = 0
        self._advanced = asyncio.Event()

    def now_ms(self) -> int:
        return super().now_ms() + self._added_ms

    def advance(self, step_ms: int) -> None:
        """Add time, and end the waits that are due."""
        self._added_ms += step_ms
        self._advanced.set()
        self._advanced = asyncio.Event()

    async def wait(self, event: asyncio.Event, *, until_ms: int | None) -> None:
        if until_ms is None:
            await event.wait()
            return
        while not event.is_set() and (left_ms := until_ms - self.now_ms()) > 0:
            waits = [
                asyncio.ensure_future(event.wait()),
                asyncio.ensure_future(self._advanced.wait()),
            ]
            try:
                await asyncio.wait(
                    waits, timeout=left_ms / 1_000, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for each in waits:
                    each.cancel()
