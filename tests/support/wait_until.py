"""Waiting for other processes, for interop tests and benchmarks.

Each wait has a condition and a deadline; none has a guessed duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


class WaitedTooLong(AssertionError):
    """A process did not do the expected in time."""


def now_ms() -> int:
    """Return the wall clock in ms since the epoch, as in the messages of brokers and clients."""
    return int(time.time() * 1_000)


def until(probe: Callable[[], T | None], *, seconds: float, what: str, poll_s: float = POLL_S) -> T:
    """Return the first true result of `probe`, which is called repeatedly.

    Raises:
        WaitedTooLong: No true result within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise WaitedTooLong(f"{what}: not within {seconds:g} s")
        time.sleep(poll_s)


class Stopwatch:
    """A measurement of elapsed time."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation."""
        return time.monotonic() - self._start
