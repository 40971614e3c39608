"""Pauses are counted by their length; a collection by what it examined."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest

from duemq.metrics.pauses import TIMER_S, PauseCollector


def clock_of(*times_s: float) -> Callable[[], float]:
    times: Iterator[float] = iter(times_s)
    return lambda: next(times)


def values(collector: PauseCollector) -> dict[str, float]:
    samples = [sample for family in collector.collect() for sample in family.samples]
    return {
        sample.name.removeprefix("duemq_") + sample.labels.get("le", ""): sample.value
        for sample in samples
    }


@pytest.mark.parametrize(
    ("generation", "name"), [(0, "gc_pause"), (1, "gc_pause"), (2, "gc_full_pause")]
)
def test_a_collection_is_counted_with_its_duration(generation: int, name: str) -> None:
    collector = PauseCollector(clock_of(10.0, 10.125))
    collector.on_collection("start", {"generation": generation})
    collector.on_collection("stop", {"generation": generation})
    found = values(collector)
    assert [found[f"{name}_seconds_bucket{le}"] for le in ("0.1", "0.2", "+Inf")] == [0, 1, 1]
    assert found[f"{name}_seconds_sum"] == 0.125
    assert sum(value for key, value in found.items() if key.endswith("_count")) == 1


def test_collections_are_measured_only_within_the_block() -> None:
    collector = PauseCollector()

    async def main() -> None:
        with collector.measuring(asyncio.get_running_loop()):
            gc.collect()
        gc.collect()

    asyncio.run(main())
    assert values(collector)["gc_full_pause_seconds_count"] == 1


def test_a_long_turn_delays_the_timer() -> None:
    now_s = [5.0]
    collector = PauseCollector(lambda: now_s[0])
    timers: list[Callable[[], None]] = []

    class Loop(asyncio.BaseEventLoop):
        def call_later(self, delay: float, callback: object, *args: object, **_: object) -> object:  # type: ignore[override]
            assert callable(callback)
            timers.append(callback)
            return asyncio.TimerHandle(0, callback, args, self)

    loop = Loop()
    with collector.measuring(loop):
        for late_s in (0.0, 0.3):
            now_s[0] += TIMER_S + late_s
            timers.pop()()
    loop.close()
    found = values(collector)
    assert [found[f"loop_delay_seconds_bucket{le}"] for le in ("0.001", "0.2", "0.5")] == [1, 1, 2]
