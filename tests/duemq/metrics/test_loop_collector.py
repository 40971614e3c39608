"""Figures are read on the event loop's thread, whichever thread reads them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily

from duemq.broker.collectors.native_registry import NativeRegistry
from duemq.metrics import loop_collector
from message_store.queues.consume_queue import FileCache
from schedule_service.delivery import LevelService
from tests.duemq.broker.collectors.test_native_metrics import scrape
from tests.support.raw_connection import WAIT_S
from tests.support.running_broker import running, small


class CountedReads:
    """A collector that notes which thread reads it."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def collect(self) -> Iterator[Any]:
        self.threads.append(threading.current_thread())
        yield GaugeMetricFamily("requested", "How often.", value=len(self.threads))


def test_any_collector_is_read_on_the_loop() -> None:
    requested = CountedReads()

    async def main() -> None:
        registry = NativeRegistry("c", "b")
        registry.register(requested)
        Counter("counted", "A metric of prometheus-client.", registry=registry).inc(3)
        text = (await asyncio.to_thread(generate_latest, registry)).decode()
        assert "requested 1.0" in text
        assert "counted_total 3.0" in text
        assert "requested 2.0" in generate_latest(registry).decode()  # on the loop itself
        with pytest.raises(ValueError, match="Duplicated"):
            Counter("counted", "Again.", registry=registry)
        registry.unregister(requested)
        assert b"requested" not in await asyncio.to_thread(generate_latest, registry)

    asyncio.run(main())
    assert {*requested.threads} == {threading.main_thread()}


def test_a_reading_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the readings of successive scrapes run together."""
    monkeypatch.setattr(loop_collector, "COLLECT_S", 0.0)

    async def never() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(loop_collector.read_on, loop, never())
        readings = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if readings:
            _, unfinished = await asyncio.wait(readings, timeout=WAIT_S)
            assert not unfinished

    asyncio.run(main())


def test_the_files_of_the_kernel_are_not_read_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of thousands of descriptors takes milliseconds."""
    readers = list[threading.Thread]()
    collect = ProcessCollector.collect

    def noted(self: ProcessCollector) -> Any:
        readers.append(threading.current_thread())
        return collect(self)

    async def main() -> None:
        registry = NativeRegistry("c", "b")
        ProcessCollector(registry=registry)
        monkeypatch.setattr(ProcessCollector, "collect", noted)
        text = await asyncio.to_thread(generate_latest, registry)
        assert b"process_open_fds" in text

    asyncio.run(main())
    assert readers
    assert threading.main_thread() not in readers


@pytest.mark.finding("P:metrics-thread")
def test_a_scrape_neither_corrects_cursors_nor_opens_queues_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[threading.Thread]] = {}
    others = {*threading.enumerate()} - {threading.main_thread()}  # of brokers of other tests

    def noted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(self: Any, *values: Any, **more: Any) -> Any:
            if threading.current_thread() not in others:
                seen.setdefault(name, set()).add(threading.current_thread())
            return real(self, *values, **more)

        monkeypatch.setattr(owner, name, call)

    async def main() -> None:
        changes = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
        async with running(small(tmp_path, **changes)) as (broker, remote):
            for delay in ({"DELAY": "17"}, {"TIMER_DELAY_SEC": "3600"}):
                assert (await remote.send("T", b"pending", **delay)).code == 0
            noted(LevelService, "correct_heads")
            noted(FileCache, "get")
            found = await scrape(broker.metrics_port)
            assert found

    asyncio.run(main())
    assert seen["correct_heads"] == {threading.main_thread()}
    assert seen.get("get", {threading.main_thread()}) == {threading.main_thread()}
