"""Collectors that are read on the event loop's thread, whichever thread serves /metrics.

What they read (cursors, queues, tables) belongs to that thread: reading may correct it, or open and
close the files behind it. Encoding the figures stays in the thread that serves them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

COLLECT_S: Final = 10.0


class Readable(Protocol):
    """What a plugin or a metric of prometheus-client offers."""

    def collect(self) -> Iterable[Metric]:
        """Return all families."""
        ...


class LoopCollector(Collector):
    """A collector that has another one read on an event loop."""

    def __init__(self, collector: Readable, loop: asyncio.AbstractEventLoop) -> None:
        self._collector, self._loop = collector, loop

    def describe(self) -> Iterable[Metric]:
        """Return the description of the other collector, if it has one without reading values."""
        describe: Any = getattr(self._collector, "describe", None)
        return describe() if describe is not None else []

    def collect(self) -> Iterable[Metric]:
        """Return all families of the other collector.

        Raises:
            TimeoutError: The event loop did not read the values in time.
        """
        if _running_loop() is self._loop or not self._loop.is_running():
            return list(self._collector.collect())
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(COLLECT_S)

    async def _read(self) -> list[Metric]:
        return list(self._collector.collect())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
