"""Durations of the steps of a start and a stop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq.broker.step_times import LONG_MS, StepTimes
from duemq_common.clock import FakeClock
from tests.support.running_broker import small


def test_each_step_has_its_duration_in_both_directions(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = FakeClock()
        times = StepTimes(clock.steady_ms)
        async with AsyncExitStack() as stack:
            for name, start_ms, stop_ms in (("store", 1, 2), ("services", 30, LONG_MS)):
                stack.callback(clock.advance, stop_ms)
                clock.advance(start_ms)
                times.done(name, stack)
            assert times.finished() == "store 1 ms, services 30 ms"
            clock.advance(10_000)
            times.stopping()
        assert times.finished() == "services 1000 ms, store 2 ms"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.messages == ["stop: services took 1000 ms"]


@pytest.mark.finding("3D6")
def test_a_broker_logs_the_steps_of_its_start_and_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        async with Broker(small(tmp_path)) as broker:
            return list(broker.plugins.plugins)

    with caplog.at_level(logging.INFO):
        plugins = asyncio.run(main())
    start = next(text for text in caplog.messages if " serves at " in text)
    stop = next(text for text in caplog.messages if " has stopped " in text)
    assert len(plugins) > 2
    steps = ["store", "tables", *plugins, "services", "ports", "registration", "jobs"]
    assert [step.split()[0] for step in start.split(" (")[1].split(", ")] == steps
    assert [step.split()[0] for step in stop.split(" (")[1].split(", ")] == steps[::-1]
