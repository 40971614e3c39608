"""Reconnects of long-running commands (`consume`, `timers follow`, `levels --watch`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from duemq.cli.output import notice

Value = TypeVar("Value")
PAUSE_FIRST_S: Final = 0.5
PAUSE_S_MAX: Final = 5.0


class Retrying:
    """Retries with growing pauses; reports when a server becomes unreachable and reachable again.

    Args:
        name: Name of the server in reports.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pause_s = 0.0

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt; each pause is longer."""
        if not self._pause_s:
            notice(f"{error}; retrying until Ctrl-C")
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX) or PAUSE_FIRST_S
        await asyncio.sleep(self._pause_s)

    async def attempt(self, fetch: Callable[[], Awaitable[Value]]) -> Value | None:
        """Return the result of `fetch`; if the server does not respond, pause and return None."""
        try:
            value = await fetch()
        except ConnectionError as error:
            await self.pause(error)
            return None
        self.succeeded()
        return value

    def succeeded(self) -> None:
        """Report that the server responds again, if it was unreachable."""
        if self._pause_s:
            notice(f"{self._name} responds again")
            self._pause_s = 0.0


async def watch(
    name: str,
    fetch: Callable[[], Awaitable[Value]],
    show: Callable[[Value], None],
    *,
    interval_s: float,
    count: int = 0,
) -> None:
    """Show `count` states, 0: until interrupted; survive restarts of brokers.

    Args:
        name: Addresses of the brokers, for notices.
    """
    retrying, done = Retrying(name), 0
    state: Value | None = await fetch()
    while True:
        if state is not None:
            show(state)
            done += 1
            if done == count:
                return
            await asyncio.sleep(interval_s)
        state = await retrying.attempt(fetch)
