"""The one place of the interop tests and benchmarks that waits for other processes.

Nothing here guesses how long something takes: each wait has a condition and a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_S = 0.02


class WaitedTooLong(AssertionError):
    """A process did not do in time what it was expected to do."""


def now_ms() -> int:
    """Return the wall clock in ms since the epoch: brokers and clients stamp messages with it."""
    return int(time.time() * 1_000)


def until(probe: Callable[[], T | None], *, seconds: float, what: str, poll_s: float = POLL_S) -> T:
    """Return the first true answer of `probe`, asked again and again.

    Raises:
        WaitedTooLong: No true answer within `seconds`.
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
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the watch was made."""
        return time.monotonic() - self._start
