"""Waits for other processes, each with a condition and a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


class WaitedTooLong(AssertionError):
    """Condition that did not become true in time."""


def now_ms() -> int:
    """Return the wall-clock time in ms since the epoch, as used in messages."""
    return int(time.time() * 1_000)


def until(probe: Callable[[], T | None], *, seconds: float, what: str, poll_s: float = POLL_S) -> T:
    """Call `probe` repeatedly and return its first true result.

    Raises:
        WaitedTooLong: No true result within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        response = probe()
        if response:
            return response
        if time.monotonic() > deadline:
            raise WaitedTooLong(f"{what}: not within {seconds:g} s")
        time.sleep(poll_s)


class Stopwatch:
    """Measurement of elapsed time."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation of the stopwatch."""
        return time.monotonic() - self._start
