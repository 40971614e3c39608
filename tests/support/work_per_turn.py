"""Work that is done in one turn of the event loop, as a number of calls or rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from delayed_delivery import steps

T = TypeVar("T")


class WorkPerTurn:
    """Counter of the calls of a function between two turns of the event loop.

    Args:
        owner, name: Class, module or object, and the function in it.
        amount: Work of a call, given its arguments.
    Attributes:
        most: Maximum in one turn.
        total: All work.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: object,
        name: str,
        amount: Callable[..., int] = lambda *args, **named: 1,
    ) -> None:
        # otherwise a turn has as many steps as a tenth of its processor time allows
        monkeypatch.setattr(steps, "thread_processor_s", lambda: 0.0)
        self.most = self.total = self._count = 0
        function = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            self._count += amount(*args, **named)
            return function(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    async def during(self, work: Awaitable[T]) -> T:
        """Return the result of the work; count until it ends."""
        ticks = asyncio.create_task(self._tick())
        try:
            return await work
        finally:
            self._end_turn()
            ticks.cancel()

    async def _tick(self) -> None:
        while True:
            self._end_turn()
            await asyncio.sleep(0)

    def _end_turn(self) -> None:
        self.most, self.total = max(self.most, self._count), self.total + self._count
        self._count = 0
