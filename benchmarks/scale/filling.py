"""Phase `fill`: timers through the engine's public API, the last of them through sockets.

The first log files hold few pending timers between messages that are not pending, as in a broker
that has delivered for days; the phase `compact` copies the timers out of them.

    log   | few pending | few pending | few pending | all pending ............ | from sockets |
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from benchmarks.bench import Metric
from benchmarks.fill import ROWS, Filler, Times, catch_up_index
from benchmarks.scale.scale_store import GIB, SMALL, SMALL_FILE_BYTES, TOPIC, ScaleStore, more
from duemq_common.clock import SystemClock
from message_store.config import StoreConfig
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

BODY_BYTES = 16
BYTES_A_TIMER = 380  # record, queue unit, timer log unit, index entry
HOUR_MS = 3_600_000
FAR_MS = (8 * HOUR_MS, 47 * HOUR_MS)  # no delivery and no roll during the measurement
NEAR_SHARE = 0.05  # timers due within short windows that begin every five minutes
NEAR_MS = (15 * 60_000, 47 * HOUR_MS)
WINDOW_MS, WINDOW_EVERY_MS = 20_000, 300_000
SENT_SHARE = 0.02
ENGINE_MAX = 10_000_000  # timers put through the engine before some are sent
FRONT_PERCENT = 5, 20, 50  # pending part of each of the first log files
RECORD_BYTES = 280
ORDINARY, ORDINARY_BYTES = "ordinary", 4_096  # messages that are due at once
ORDINARY_KEYS = 0xF0000000  # number of the first one's key
STEP = ROWS * 256  # timers between two progress reports


def fill(scale_store: ScaleStore, pending: int) -> list[Metric]:
    """Fill the store up to a number of pending timers; continue if it has some."""
    state = scale_store.state
    if not state.filled:
        state.file_bytes = GIB if pending >= SMALL else SMALL_FILE_BYTES
    state.pending = pending
    scale_store.save()
    scale_store.must_have_room((pending - state.filled) * BYTES_A_TIMER)
    if not state.filled:
        with scale_store.bench() as bench:  # creates the topic
            bench.server.create_topic(TOPIC)
    metrics: list[Metric] = []
    while state.filled + state.sent < pending:  # a start reads what the engine has put
        goal = min(state.filled + state.sent + ENGINE_MAX, pending)
        sent = max(int(goal * SENT_SHARE) - state.sent, 1)
        metrics = _through_engine(scale_store, goal - sent - state.sent - state.filled)
        metrics += _through_sockets(scale_store, sent)
    return metrics


def _through_engine(scale_store: ScaleStore, count: int) -> list[Metric]:
    state, clock = scale_store.state, SystemClock()
    config = StoreConfig(
        root_text=str(scale_store.directory), commitlog_file_bytes=state.file_bytes
    )
    with MessageStore(config, clock) as store:
        timers = TimerStore(store, clock, TimerConfig())
        timers.open()
        store.add_dispatcher(lambda batch: _note(timers, batch))
        filler = Filler(timers, (TOPIC,), BODY_BYTES)
        filler.count = state.filled
        due_ms = _due_times(clock, np.random.default_rng(4 + state.filled))
        start = perf_counter()
        if not state.filled:
            state.front = _fill_front(filler, timers, due_ms, count)
        left = count - filler.count + state.filled
        while left > 0:
            filler.fill(min(left, STEP), due_ms)
            left = count - filler.count + state.filled
            _work(timers, clock)
            print(f"{filler.count:,} timers, {perf_counter() - start:.0f} s", file=sys.stderr)
        seconds = perf_counter() - start
        catch_up_index(store)
        indexed_s = perf_counter() - start
        assert asyncio.run(CheckpointWriter(timers).persist(last=True))
        state.filled = filler.count
        timers.close()
    scale_store.save()
    return [
        more("engine: accepted", count / seconds, "msg/s"),
        more("engine: accepted and indexed", count / indexed_s, "msg/s"),
    ]


def _due_times(clock: SystemClock, random: np.random.Generator) -> Callable[[Times], Times]:
    """Return a function of random delivery times: most of them far, the others in windows."""

    def due_ms(numbers: Times) -> Times:
        now_ms, size = clock.now_ms(), numbers.size
        far = now_ms + random.integers(*FAR_MS, size)
        windows = (now_ms + random.integers(*NEAR_MS, size)) // WINDOW_EVERY_MS
        near = windows * WINDOW_EVERY_MS + random.integers(0, WINDOW_MS, size)
        return np.where(random.random(size) < NEAR_SHARE, near, far)

    return due_ms


def _fill_front(
    filler: Filler, timers: TimerStore, due_ms: Callable[[Times], Times], count: int
) -> int:
    """Fill the first log files, with few timers in each; return their number."""
    store, clock = timers.store, timers.clock
    ordinary = Filler(timers, (ORDINARY,), ORDINARY_BYTES)
    ordinary.count = ORDINARY_KEYS
    file_bytes = store.config.commitlog_file_bytes
    for number, percent in enumerate(FRONT_PERCENT, 1):
        end = number * file_bytes
        filler.fill(min(file_bytes * percent // 100 // RECORD_BYTES, count // 10), due_ms)
        while store.max_offset < end:
            rows = (end - store.max_offset) // (2 * ORDINARY_BYTES)
            ordinary.put(np.full(min(max(rows, 1), ROWS), clock.now_ms()))
    return len(FRONT_PERCENT)


def _note(timers: TimerStore, batch: PutBatch) -> None:
    timers.on_put(batch)


def _work(timers: TimerStore, clock: SystemClock) -> None:
    while timers.turn(clock.now_ms()):
        pass


def _through_sockets(scale_store: ScaleStore, count: int) -> list[Metric]:
    options = {"delay": FAR_MS[0], "spread": FAR_MS[1] - FAR_MS[0], "size": BODY_BYTES}
    with scale_store.bench() as bench:
        sent = bench.send(TOPIC, count, **options)
    scale_store.state.sent += sent["sent"] - sent["rejected"]
    scale_store.save()
    return [
        more("sockets: accepted", sent["per_second"], "msg/s"),
    ]
