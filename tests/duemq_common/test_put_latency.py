"""Put latency: the statistics equal those of a sorted list."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.clock import FakeClock
from duemq_common.put_latency import CLASSES, MS_MAX, PutLatency
from tests.support.running_broker import running, small

puts = st.lists(st.tuples(st.integers(-5, MS_MAX), st.integers(1, 50)), min_size=1, max_size=30)


@given(puts, st.sampled_from([0.5, 0.99, 0.999]))
def test_percentiles_equal_those_of_the_sorted_list(
    noted: list[tuple[int, int]], share: float
) -> None:
    latency, naive = PutLatency(), list[int]()
    for took_ms, count in noted:
        latency.add(took_ms, count)
        naive += [max(took_ms, 0)] * count
    naive.sort()
    found = latency.percentile_ms(share)
    assert sum(ms <= found for ms in naive) >= share * len(naive)
    assert sum(ms < found for ms in naive) < share * len(naive)
    assert latency.figures()["putMessageEntireTimeMax"] == str(naive[-1])


def test_each_put_is_counted_in_one_class() -> None:
    latency = PutLatency()
    for took_ms in (0, 1, 10, 11, 1_000, 9_999, 10_000, 10_001, 99_999):
        latency.add(took_ms, 1)
    counts = dict(
        part.rsplit(":", 1) for part in latency.figures()["putMessageDistributeTime"].split()
    )
    assert list(counts) == [name for name, _ in CLASSES]
    wanted = {
        "[<=0ms]": 1,
        "[0~10ms]": 2,
        "[10~50ms]": 1,
        "[500ms~1s]": 1,
        "[5~10s]": 2,
        "[10s~]": 2,
    }
    assert counts == {name: str(wanted.get(name, 0)) for name, _ in CLASSES}
    assert PutLatency().figures()["putLatency99"] == "0.00"


@pytest.mark.finding("D5")
def test_runtime_info_shows_the_latency_of_sends(tmp_path: Path) -> None:
    clock = FakeClock()

    async def scene() -> dict[str, str]:
        async with running(small(tmp_path), clock=clock) as (broker, client):
            put = broker.store.put

            def slow(batch: object) -> None:
                clock.advance(30)
                put(batch)

            broker.store.put = slow
            for _ in range(3):
                assert (await client.send("T", b"x")).code == 0
            return dict(json.loads((await client.call(28)).body)["table"])

    table = asyncio.run(scene())
    assert "[10~50ms]:3 " in table["putMessageDistributeTime"]
    assert (table["putLatency99"], table["putMessageEntireTimeMax"]) == ("30.00", "30")
