"""Delivery of due timers: near stage, gather, and delivery into a store.

python -m benchmarks.kernels.timer_deliver_bench [timers] [timers per batch]

`wall` needs idle cores; `loop` is the processor time of the thread that runs the event loop.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.kernels.ingest_bench import measure
from duemq_common.clock import FakeClock
from duemq_common.text import java_hash
from duemq_common.topics import TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from timer_store import layout
from timer_store.dequeue.deliverer import Gatherer, TimerDeliverer
from timer_store.dequeue.near_stage import NearStage, sorted_run

PRECISION_MS = 1_000
DUE_MS = 1_700_000_100_000
LOOPBACK = (b"\x7f\0\0\1", 10_911)
BODY = b"x" * 100
TOPICS = 4
ROUNDS = 5
FILL_ROWS = 4_096
BYTES_MAX = 1 << 30
Rows = npt.NDArray[np.void]


def staged(count: int, span_ms: int, topics: int) -> Rows:
    """Return timers in log order, due at random in `span_ms` milliseconds."""
    random = np.random.default_rng(1)
    rows = np.zeros(count, layout.STAGED)
    rows["due_ms"] = DUE_MS + random.integers(0, span_ms, count)
    rows["phys_offset"] = np.arange(count) * 360
    rows["topic_hash"] = random.integers(0, topics, count) * 7_919
    rows["record_size"], rows["magic"] = 360, layout.MAGIC_DEFAULT
    return rows


def drain(stage: NearStage, batch_rows: int, work: Callable[[Rows], object]) -> tuple[int, float]:
    """Take all timers; return their number, and the time of the longest `take`, in ms."""
    count, worst_s = 0, 0.0
    while True:
        before = time.perf_counter()
        rows = stage.take(DUE_MS + 10**9, batch_rows, BYTES_MAX)
        worst_s = max(worst_s, time.perf_counter() - before)
        if not rows.size:
            return count, worst_s * 1e3
        work(rows)
        count += rows.size


def measure_stage(count: int, batch_rows: int) -> None:
    """Measure load and take, with timers due within one millisecond, one second, a long outage."""
    for span_ms, topics in ((1, 1), (1, 1_000), (1_000, 4), (10**9, 4)):
        rows = staged(count, span_ms, topics)
        name = f"{span_ms} ms, {topics} topics"
        measure(f"sort, {name}", count, lambda rows=rows: sorted_run(rows))  # type: ignore[misc]
        worst = []

        def take(rows: Rows = rows, worst: list[float] = worst) -> None:
            stage = NearStage(count)
            stage.add(rows)
            taken, worst_ms = drain(stage, batch_rows, lambda rows: None)
            assert taken == count
            worst.append(worst_ms)

        measure(f"sort and take, {name}", count, take)
        print(f"{'':<28} longest take {min(worst):.1f} ms")


def measure_cancel(count: int) -> None:
    """Measure lookup and settlement of single timers among many."""
    rows = staged(count, 1_000, 4)
    stage = NearStage(count)
    stage.add(rows)
    some = np.random.default_rng(2).permutation(count)[:10_000]
    offsets, due_ms = rows["phys_offset"][some].copy(), rows["due_ms"][some].copy()
    measure(f"contains, among {count}", some.size, lambda: stage.contains(offsets, due_ms))


def fill(store: MessageStore, count: int) -> Rows:
    """Append timers that are all due in one millisecond; return their rows."""
    timer = store.topics.add(TIMER_TOPIC)
    names = [f"bench{n}" for n in range(TOPICS)]
    for name in names:
        store.topics.set_routing(name, write_queues=4, read_queues=4, perm=6)
    batch, rows = PutBatch(FILL_ROWS), np.zeros(count, layout.STAGED)
    for n in range(FILL_ROWS):
        properties = {
            "UNIQ_KEY": f"7F000001{n:024X}",
            "WAIT": "true",
            "TAGS": "TagA",
            "TIMER_DELIVER_MS": str(DUE_MS),
            "TIMER_OUT_MS": str(DUE_MS - 1_000),
            "REAL_TOPIC": names[n % TOPICS],
            "REAL_QID": str(n // TOPICS % 4),
        }
        batch.add(
            topic_index=timer,
            queue_id=0,
            body=BODY,
            properties=encode_properties(properties),
            born_ms=DUE_MS,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
        )
    hashes = np.array([java_hash(names[n % TOPICS]) for n in range(FILL_ROWS)])
    for first in range(0, count, FILL_ROWS):
        some = rows[first : first + FILL_ROWS]
        batch.count = int(some.size)
        store.put(batch)
        some["phys_offset"] = batch.filled["phys_offset"]
        some["record_size"] = batch.filled["record_size"]
        some["topic_hash"] = hashes[: some.size]
    rows["due_ms"], rows["write_ms"], rows["magic"] = DUE_MS, DUE_MS - 100_000, 1
    return rows


def measure_gather(store: MessageStore, rows: Rows, batch_rows: int) -> None:
    """Measure the gather stage, batch by batch."""
    gatherer, batch = Gatherer(store, PRECISION_MS), PutBatch(batch_rows)

    def gather() -> None:
        for first in range(0, rows.size, batch_rows):
            load = gatherer.plan(rows[first : first + batch_rows], batch, DUE_MS)
            load.read()
            assert not load.is_malformed.any()

    measure(f"gather, {batch_rows} a call", int(rows.size), gather)


def measure_chain(store: MessageStore, rows: Rows, batch_rows: int) -> None:
    """Measure take, gather and put in sequence."""
    deliverer, times = TimerDeliverer(store, PRECISION_MS), []
    for _ in range(ROUNDS):
        stage = NearStage(int(rows.size))
        wall, loop, all_s = time.perf_counter(), time.thread_time(), time.process_time()
        stage.add(rows)
        count, _ = drain(stage, batch_rows, lambda rows: deliverer.deliver_batch(rows, DUE_MS))
        assert count == rows.size
        ends = (time.perf_counter() - wall, time.thread_time() - loop, time.process_time() - all_s)
        times.append([1e9 * end / count for end in ends])
    wall_ns, loop_ns, all_ns = np.min(times, axis=0)
    print(
        f"{'due to appended':<28} wall {wall_ns:.0f} ns ({1e3 / wall_ns:.2f} M/s), "
        f"loop {loop_ns:.0f} ns ({1e3 / loop_ns:.2f} M/s), all threads {all_ns:.0f} ns"
    )


def main(count: int, batch_rows: int) -> None:
    """Measure all stages with `count` timers, in batches of `batch_rows`."""
    measure_stage(count, batch_rows)
    measure_cancel(count)
    with (
        tempfile.TemporaryDirectory() as directory,
        MessageStore(StoreConfig(root_text=directory), FakeClock(DUE_MS)) as store,
    ):
        rows = fill(store, min(count, 300_000))
        measure_gather(store, rows, batch_rows)
        measure_chain(store, rows, batch_rows)


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    main(*(arguments + [1_000_000, 2_048][len(arguments) :]))
