"""Durations of the steps of a start and of a stop, for the log.

A step that was entered last is left first:

    done(store)   done(services)   ...      stop: leaves ..., services, store     finished()
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

log = logging.getLogger(__name__)
LONG_MS: Final = 1_000  # a step of a stop that takes longer is logged when it ends


class StepTimes:
    """Times of the steps of one start, and then of one stop.

    Args:
        steady_ms: Returns ms of a clock that is never set.
    """

    def __init__(self, steady_ms: Callable[[], int]) -> None:
        self._steady_ms, self._since_ms = steady_ms, steady_ms()
        self._times: list[tuple[str, int]] = []
        self._left = ""  # step that is being left

    def done(self, name: str, stack: AsyncExitStack) -> None:
        """Record that a step of the start is complete, and its stop when the stack is left."""
        self._times.append((name, self._lap_ms()))
        stack.callback(self._leave, name)

    def stopping(self) -> None:
        """Record that the stop begins."""
        self._times, self._left = [], ""
        self._lap_ms()

    def finished(self) -> str:
        """Return the times since the start or the stop began, as text."""
        self._end_step()
        return ", ".join(f"{name} {ms} ms" for name, ms in self._times)

    def _leave(self, name: str) -> None:
        self._end_step()
        self._left = name

    def _end_step(self) -> None:
        if not self._left:
            return
        ms = self._lap_ms()
        self._times.append((self._left, ms))
        if ms >= LONG_MS:
            log.warning("stop: %s took %d ms", self._left, ms)
        self._left = ""

    def _lap_ms(self) -> int:
        before_ms, self._since_ms = self._since_ms, self._steady_ms()
        return self._since_ms - before_ms
