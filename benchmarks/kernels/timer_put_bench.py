"""Kernels that detect timers at the put and fetch them from the log, in the page cache.

python -m benchmarks.kernels.timer_put_bench [messages per call]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.kernels.ingest_bench import measure
from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from timer_store.config import TimerConfig
from timer_store.enqueue.enqueue_service import TimerFetcher
from timer_store.enqueue.put_hook import TimerHook

NOW_MS = 1_700_000_000_000
LOOPBACK = (b"\x7f\0\0\1", 10_911)
BODY = b"x" * 100


def fill(batch: PutBatch, topic_index: int, count: int, *, timers: bool) -> None:
    """Add messages with the properties that a Java client sends."""
    for n in range(count):
        properties = {
            "UNIQ_KEY": f"7F000001{n:024X}",
            "WAIT": "true",
            "MSG_REGION": "DefaultRegion",
            "CLUSTER": "DefaultCluster",
            "TRACE_ON": "true",
        }
        if timers:
            properties["TIMER_DELAY_MS"] = str(10_000 + n)
        batch.add(
            topic_index=topic_index,
            queue_id=0,
            body=BODY,
            properties=encode_properties(properties),
            born_ms=NOW_MS,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )


def measure_fetch(store: MessageStore, count: int) -> None:
    """Measure the fetch stage, with both implementations."""
    fetcher, batch = TimerFetcher(store, TimerConfig()), PutBatch(count)
    timer, real = store.topics.add(TIMER_TOPIC), store.topics.add("bench")
    fill(batch, timer, count, timers=True)
    rows = batch.filled
    rows["out_ms"], rows["real_topic_index"] = NOW_MS + 10_000, real
    store.put(batch)
    assert fetcher.fetch_batch(batch).size == count
    measure(f"fetch_batch, {count} timers", count, lambda: fetcher.fetch_batch(batch))
    units = store.units(TIMER_TOPIC, 0, 0, count)
    timed = np.zeros(count, fetcher.fetch_batch(batch).dtype)
    measure(f"from_records, {count} a call", count, lambda: fetcher.read(units, 0, timed))
    measure(f"fetch_queue, {count} a call", count, lambda: fetcher.fetch_queue(0, count))


def measure_hook(store: MessageStore, count: int) -> None:
    """Measure the put hook on ordinary messages and on timers."""
    hook, real = (
        TimerHook(store.topics, TimerConfig(), lambda time_ms: 0),
        store.topics.add("bench"),
    )
    plain, timed = PutBatch(count), PutBatch(count)
    fill(plain, real, count, timers=False)
    fill(timed, real, count, timers=True)
    before = timed.rows.copy()

    def hold() -> None:
        timed.rows[:] = before
        hook(timed, NOW_MS)

    measure(f"hook, {count} without a time", count, lambda: hook(plain, NOW_MS))
    measure(f"hook and a copy, {count} timers", count, hold)


def main(count: int) -> None:
    """Measure with `count` messages per call."""
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(root_text=str(Path(directory)), commitlog_file_bytes=64 << 20)
        with MessageStore(config, FakeClock(NOW_MS)) as store:
            measure_hook(store, count)
            measure_fetch(store, count)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_048)
