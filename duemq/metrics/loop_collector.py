"""Collector that reads its values on the event loop's thread, for any serving thread.

Cursors, queues and tables may be used on that thread only: reading can correct them, or open and
close files. Other work may run between two families, and after each None that the method `steps` of
a collector yields. The serving thread encodes the metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from delayed_delivery.steps import Pauses

COLLECT_S: Final = 10.0
T = TypeVar("T")


def read_on(loop: asyncio.AbstractEventLoop, reading: Coroutine[object, object, T]) -> T:
    """Return the values that a coroutine reads on an event loop of another thread.

    Raises:
        TimeoutError: The loop did not read them in time; it is too busy. The reading ends.
    """
    future = asyncio.run_coroutine_threadsafe(reading, loop)
    try:
        return future.result(COLLECT_S)
    except TimeoutError:
        future.cancel()  # otherwise it goes on in addition to that of the next scrape
        raise


class LoopCollector(Collector):
    """Collector that reads another collector on an event loop."""

    def __init__(self, collector: Collector, loop: asyncio.AbstractEventLoop) -> None:
        self._collector, self._loop = collector, loop

    def describe(self) -> Iterable[Metric]:
        """Return the description of the other collector; empty if that requires reading values."""
        describe: Callable[[], Iterable[Metric]] | None = getattr(self._collector, "describe", None)
        return describe() if describe is not None else []

    def collect(self) -> Iterable[Metric]:
        """Return all families of the other collector.

        Raises:
            TimeoutError: The event loop did not read the values in time.
        """
        if _running_loop() is self._loop or not self._loop.is_running():
            return list(self._collector.collect())
        return read_on(self._loop, self._read())

    async def _read(self) -> list[Metric]:
        families: list[Metric] = []
        steps: Callable[[], Iterable[Metric | None]]
        steps = getattr(self._collector, "steps", self._collector.collect)
        pauses = Pauses()
        for family in steps():
            families += [] if family is None else [family]
            await pauses.after_step()
        return families


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
