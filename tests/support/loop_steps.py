"""Processor time of the steps of the running event loop, for tests of costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class LoopSteps:
    """Processor time of the steps of an event loop.

    Attributes:
        longest_s, total_s: Processor time of the longest step, and of all.
    """

    def __init__(self) -> None:
        self.longest_s = self.total_s = 0.0

    def add(self, took_s: float) -> None:
        """Count a step."""
        self.longest_s = max(self.longest_s, took_s)
        self.total_s += took_s


@contextmanager
def loop_steps() -> Iterator[LoopSteps]:
    """Measure the steps of asyncio's own event loop inside the block."""
    steps, run = LoopSteps(), vars(asyncio.Handle)["_run"]

    def measured(handle: asyncio.Handle) -> None:
        begin_s = time.thread_time()
        try:
            run(handle)
        finally:
            steps.add(time.thread_time() - begin_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield steps
