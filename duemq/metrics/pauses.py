"""Pauses of the event loop: garbage collections, and turns that delay everything else.

A collection stops all threads of the process. A turn of the event loop is measured by a timer: it
fires as much too late as the turn before it still lasts.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from duemq_common.clock import SystemClock

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TIMER_S: Final = 0.05  # a shorter turn may be missed


class PauseCounts:
    """Durations by range. It takes no lock: a collection may begin within any call."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the durations as a histogram."""
        buckets, total = [], 0
        for bound, count in zip((*BOUNDS_S, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_s)


class PauseCollector(Collector):
    """Collector of the pauses of this process.

    Args:
        time_s: Returns seconds of a monotonic clock.
    """

    def __init__(self, time_s: Callable[[], float] | None = None) -> None:
        self._time_s = time_s or SystemClock().monotonic_s
        self._collections, self._full, self._turns = PauseCounts(), PauseCounts(), PauseCounts()
        self._began_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def collect(self) -> Iterable[Metric]:
        """Return the histograms."""
        return (
            self._collections.family(
                "duemq_gc_pause_seconds", "Garbage collections of recent objects."
            ),
            self._full.family("duemq_gc_full_pause_seconds", "Garbage collections of all objects."),
            self._turns.family(
                "duemq_loop_delay_seconds", "Delay of the event loop, at 20 times a second."
            ),
        )

    @contextmanager
    def measuring(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Measure while the block is active."""
        gc.callbacks.append(self.on_collection)
        self._await_timer(loop)
        try:
            yield
        finally:
            gc.callbacks.remove(self.on_collection)
            if self._timer is not None:
                self._timer.cancel()

    def on_collection(self, phase: str, facts: dict[str, int]) -> None:
        """Count a collection; called by the collector at its start and its end."""
        if phase == "start":
            self._began_s = self._time_s()
            return
        counts = self._full if facts["generation"] == 2 else self._collections
        counts.add(self._time_s() - self._began_s)

    def _await_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = self._time_s() + TIMER_S

        def fired() -> None:
            self._turns.add(max(self._time_s() - due_s, 0.0))
            self._await_timer(loop)

        self._timer = loop.call_later(TIMER_S, fired)
