"""Migration of level messages to timers, and its rollback, without a broker.

python -m benchmarks.kernels.migration_bench [messages] [units per step]

The program fills one level of a store through the put path with messages of 200 bytes. It prints
wall time, processor time, and the growth of anonymous memory.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from duemq_common.clock import SystemClock
from duemq_common.topics import OWNERSHIP_TOPIC
from duemq_migration.steps.drain import Drain, DrainStep
from duemq_migration.steps.return_units import UnitReturn
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.store import MessageStore
from schedule_service.config import ScheduleConfig
from schedule_service.delivery import LevelService
from schedule_service.levels import LevelHistory, LevelText
from schedule_service.put_hook import LevelHook
from schedule_service.queues import ScheduleQueues
from schedule_service.recovery import Saved, Start, restore
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

LEVEL, BATCH = 2, 4_096
LEVELS = "1s 2h"
HOST = (b"\x7f\x00\x00\x01", 10911)


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    return 0


def fill(store: MessageStore, levels: LevelService, hook: LevelHook, count: int) -> None:
    """Put level messages."""
    topic = store.topics.add("T")
    properties = encode_properties({"UNIQ_KEY": "7F0000010000000000000001", "DELAY": str(LEVEL)})
    batch = PutBatch(BATCH)
    for first in range(0, count, BATCH):
        batch.clear()
        for number in range(min(BATCH, count - first)):
            batch.add(
                topic_index=topic,
                queue_id=number % 4,
                body=b"x" * 100,
                properties=properties,
                born_ms=store.clock.now_ms(),
                born_host=HOST,
                store_host=HOST,
            )
        hook(batch, store.clock.now_ms())
        store.put(batch)
        levels.on_put(batch)


def timed(name: str, step: Callable[[], DrainStep]) -> int:
    """Run steps until no message moves; print the rate; return the number of moved messages."""
    moved, longest, memory = 0, 0.0, anonymous_bytes()
    start, cpu = time.perf_counter(), time.process_time()
    while True:
        before = time.perf_counter()
        done = step()
        longest = max(longest, time.perf_counter() - before)
        if not done.processed:
            assert not done.blocked_by, done.blocked_by
            break
        moved += done.moved
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(
        f"{name:<12} {moved:>9} messages  {moved / wall / 1e6:5.2f} M/s wall  "
        f"{moved / cpu / 1e6:5.2f} M/s processor  longest step {longest * 1e3:.1f} ms  "
        f"anonymous memory {(anonymous_bytes() - memory) / 1e6:+.0f} MB"
    )
    return moved


def run(root: Path, count: int, units: int) -> None:
    """Fill a store, migrate its level, and roll the migration back."""
    config = StoreConfig(root_text=str(root), commitlog_file_bytes=1 << 28, index_enable=False)
    clock = SystemClock()
    with MessageStore(config, clock) as store:
        store.topics.set_routing("T", write_queues=4, read_queues=4, perm=6)
        history = LevelHistory([LevelText(0, LEVELS)])
        queues = ScheduleQueues(store, history)
        cursors = restore(store, queues, Start(Saved(), 0))
        levels = LevelService(
            store, queues, clock, ScheduleConfig(levels=LEVELS), cursors, on_failure=print
        )
        timers = TimerStore(store, clock, TimerConfig())
        timers.open()
        keeper = CheckpointWriter(timers)
        fill(store, levels, LevelHook(store.topics, history), count)
        drain = Drain(levels, timers, store, clock, wake=lambda: None)
        back = UnitReturn(levels, timers, store, clock)
        for turn in ("first", "again"):  # the first turn compiles, and writes to new pages
            print(f"{turn}: {count} messages, {units} units a step")
            before = timers.units.log.end
            timed("drain", lambda: drain.step(LEVEL, units))
            used = (timers.units.log.end - before) / count
            marked = store.queue_bounds(OWNERSHIP_TOPIC, 0)[1]
            print(f"{used:.1f} bytes a message in the timer log, {marked} marks in all")
            timed("give back", lambda: back.step(LEVEL, units))
            asyncio.run(keeper.persist(last=True))
        timers.close()
        assert levels.levels[LEVEL].cursor.pending == count


def main() -> None:
    """Parse the command line and run the benchmark."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    units = int(sys.argv[2]) if len(sys.argv) > 2 else 65_536
    with tempfile.TemporaryDirectory(prefix="migration-bench-") as directory:
        run(Path(directory), count, units)


if __name__ == "__main__":
    main()
