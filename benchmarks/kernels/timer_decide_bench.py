"""Batches of decisions (cancel, move, fire) about timers, among many pending ones.

python -m benchmarks.kernels.timer_decide_bench [pending] [batch]

No timer is decided twice, so `pending` must be at least 12 times `batch`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

from benchmarks.kernels.timer_put_bench import LOOPBACK
from delayed_delivery.pending import Verdict
from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

DAY_MS = 86_400_000
FILL_ROWS = 10_000
ROUNDS, BATCHES = 3, 4  # a round has a batch for each of: cancel, cancel by offset, move, fire


def fill(store: MessageStore, timers: TimerStore, clock: FakeClock, pending: int) -> Any:
    """Put timers at random times of the next day; return their unique keys and log offsets."""
    random = np.random.default_rng(4)
    hook = TimerHook(store.topics, timers.config, timers.units.wheel.num)
    topic = store.topics.add("bench")
    offsets = np.empty(pending, np.int64)
    batch = PutBatch(FILL_ROWS)
    for first in range(0, pending, FILL_ROWS):
        batch.clear()
        for number in range(first, min(first + FILL_ROWS, pending)):
            due_ms = clock.now_ms() + 60_000 + int(random.integers(DAY_MS))
            batch.add(
                topic_index=topic,
                queue_id=0,
                body=b"x" * 100,
                properties=encode_properties(
                    {"UNIQ_KEY": f"K{number}", "TIMER_DELIVER_MS": str(due_ms)}
                ),
                born_ms=clock.now_ms(),
                born_host=LOOPBACK,
                store_host=LOOPBACK,
            )
        hook(batch, clock.now_ms())
        store.put(batch)
        offsets[first : first + batch.count] = batch.filled["phys_offset"]
    while timers.turn(clock.now_ms()):
        pass
    return offsets


def measure(name: str, count: int, work: Callable[[], Any]) -> Any:
    """Print the processor time of one call on this thread, and the rate per second."""
    begin = thread_time()
    result = work()
    took = thread_time() - begin
    print(f"{name:40s} {took * 1e3:8.1f} ms  {count / took / 1e3:8.1f} k/s")
    return result


def check_counts(pending: int, batch: int) -> None:
    """Exit with the reason if there are too few timers for all batches."""
    needed = ROUNDS * BATCHES * batch
    if not 0 < needed <= pending:
        sys.exit(
            f"{ROUNDS * BATCHES} batches of {batch} need {needed} pending timers, not {pending}: "
            "give more pending timers, or a smaller batch of at least 1"
        )


def main(pending: int, batch: int) -> None:
    """Measure all decisions on one store."""
    check_counts(pending, batch)
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as directory:
        config = StoreConfig(root_text=str(Path(directory)), commitlog_file_bytes=1 << 28)
        with MessageStore(config, clock) as store:
            for name in (TIMER_TOPIC, "bench"):
                store.topics.set_routing(name, write_queues=1, read_queues=1, perm=6)
            timers = TimerStore(store, clock, TimerConfig())
            timers.open()
            store.add_dispatcher(timers.on_put)
            offsets = fill(store, timers, clock, pending)
            while store.index.lag_bytes:
                store.index.catch_up()
            run(store, timers, clock, offsets, batch)
            timers.close()


def run(store: MessageStore, timers: TimerStore, clock: FakeClock, offsets: Any, size: int) -> None:
    """Measure three rounds of one batch per kind of decision, on random timers."""
    decide = PendingTimers(timers)
    order = np.random.default_rng(5).permutation(offsets.size)
    later = np.full(size, clock.now_ms() + DAY_MS)
    print(f"{timers.counts.total} pending, {size} a batch")
    for number in range(ROUNDS):
        batches = [order[(BATCHES * number + k) * size :][:size] for k in range(BATCHES)]
        keys = [f"K{chosen}" for chosen in batches[0].tolist()]
        timers_found = measure(
            "find by unique key",
            size,
            lambda keys=keys: asyncio.run(decide.by_key("bench", keys, unique=True)),  # type: ignore[misc]
        )
        assert timers_found.offsets.size == size
        while store.index.lag_bytes:
            store.index.catch_up()
        measure(
            "find by offset",
            size,
            lambda part=batches[1]: asyncio.run(decide.by_offset(offsets[part])),  # type: ignore[misc]
        )
        done = [
            measure("cancel", size, lambda part=timers_found.offsets: decide.cancel(part)),  # type: ignore[misc]
            measure("cancel by offset", size, lambda part=batches[1]: decide.cancel(offsets[part])),  # type: ignore[misc]
            measure(
                "move",
                size,
                lambda part=batches[2]: decide.move(offsets[part], later, lambda *_: None),  # type: ignore[misc]
            ),
            measure("fire", size, lambda part=batches[3]: decide.fire(offsets[part])),  # type: ignore[misc]
        ]
        assert all((one.verdicts == Verdict.DONE).all() for one in done)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [1_000_000, 10_000][len(numbers) :]))
