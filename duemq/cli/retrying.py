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
    """Retries with pauses; report once that a server is away and once that it is back.

    Args:
        name: the server, for the reports.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pause_s = 0.0

    async def pause(self, error: ConnectionError) -> None:
        """Wait before the next attempt, longer each time."""
        if not self._pause_s:
            notice(f"{error}; trying again until Ctrl-C")
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX) or PAUSE_FIRST_S
        await asyncio.sleep(self._pause_s)

    async def attempt(self, ask: Callable[[], Awaitable[Value]]) -> Value | None:
        """Return the result of `ask`; None after a pause if the server does not answer."""
        try:
            value = await ask()
        except ConnectionError as error:
            await self.pause(error)
            return None
        self.answered()
        return value

    def answered(self) -> None:
        """Note that the server answers."""
        if self._pause_s:
            notice(f"{self._name} answers again")
            self._pause_s = 0.0
