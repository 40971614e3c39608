"""Loads: the timer store as a library, without a broker and sockets.

Figures with `loop` in their name are processor times of the thread that runs the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Self

import numpy as np

from benchmarks.bench import Load, Metric
from benchmarks.fill import ROWS, Filler, far
from delayed_delivery.pending import Decided, Verdict
from duemq_common.clock import FakeClock
from message_store.config import StoreConfig
from message_store.store import MessageStore
from timer_store import layout
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.log.timer_log import TimerLog
from timer_store.log.units import TimerUnits
from timer_store.log.wheel import TimerWheel
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

GIB = 1 << 30
SECOND_MS, DAY_MS = 1_000, 86_400_000
LINKED = 4_000_000
DUE = 1_000_000
LINK_ROWS = 2_048
RECORD_BYTES = 354
ROUNDS = 3
SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 20_000_000)
PROBE_BATCHES = 24
DECIDED_AMONG = 10_000_000
DECIDED = 10_000


@dataclass
class Spent:
    """Wall time, processor time and count of some work."""

    wall_s: float = 0.0
    loop_s: float = 0.0
    count: int = 0

    @contextmanager
    def spending(self, count: int) -> Iterator[None]:
        """Add the times of the block."""
        wall, loop = perf_counter(), thread_time()
        yield
        self.wall_s += perf_counter() - wall
        self.loop_s += thread_time() - loop
        self.count += count

    @property
    def loop_ns(self) -> float:
        """Processor time per message, in ns."""
        return self.loop_s / self.count * 1e9

    def metrics(self, name: str) -> list[Metric]:
        """Return the rates per second of wall time and of processor time."""
        return [
            Metric(name=name, value=self.count / self.wall_s, unit="msg/s", better="more"),
            Metric(
                name=f"{name}, loop", value=self.count / self.loop_s, unit="msg/s", better="more"
            ),
        ]


class Engine:
    """Timer store on a fake clock; a context manager."""

    def __init__(self, root: Path, start_ms: int | None = None, file_bytes: int = GIB) -> None:
        self.clock = FakeClock() if start_ms is None else FakeClock(start_ms)
        config = StoreConfig(root_text=str(root), commitlog_file_bytes=file_bytes)
        self.store = MessageStore(config, self.clock)

    def __enter__(self) -> Self:
        self.store.__enter__()
        self.timers = TimerStore(self.store, self.clock, TimerConfig())
        self.timers.open()
        self.filler = Filler(self.timers, ("bench0", "bench1", "bench2", "bench3"))
        self.store.add_dispatcher(self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        asyncio.run(CheckpointWriter(self.timers).persist(last=True))
        self.timers.close()
        self.store.__exit__(None, None, None)

    def _note(self, batch: Any) -> None:
        self.timers.on_put(batch)

    def work(self) -> None:
        """Run turns until none has any work."""
        while self.timers.turn(self.clock.now_ms()):
            pass


def link(folder: Path, scale: float) -> list[Metric]:
    """Link timers into timer log and wheel, on new pages, without a commit log."""
    count, now_ms = max(LINK_ROWS, int(LINKED * scale)), FakeClock().now_ms()
    rows = np.zeros(count, layout.TIMED)
    rows["due_ms"] = now_ms + 1 + np.random.default_rng(1).integers(0, DAY_MS, count)
    rows["slot_ms"] = rows["due_ms"] - 1
    rows["phys_offset"], rows["record_size"] = np.arange(count) * RECORD_BYTES, RECORD_BYTES
    log, spent = TimerLog(folder / "timerlog"), Spent()
    log.load()
    units = TimerUnits(log, TimerWheel(folder / "timerwheel", SECOND_MS))
    with spent.spending(count):
        for first in range(0, count, LINK_ROWS):
            units.add(rows[first : first + LINK_ROWS], write_ms=now_ms, read_ms=now_ms)
    units.close()
    return spent.metrics("linked")


def due(folder: Path, scale: float) -> list[Metric]:
    """Deliver timers that are all due within one millisecond, and within one second."""
    count, metrics = max(ROWS, int(DUE * scale)), []
    for span_ms, name in ((1, "one ms"), (SECOND_MS, "one second")):
        best = Spent(wall_s=1e9, count=1)
        for number in range(ROUNDS):
            with Engine(folder / f"{span_ms}-{number}") as engine:
                spent = _deliver(engine, count, span_ms)
            best = min(best, spent, key=lambda each: each.wall_s)
        metrics += best.metrics(f"due to appended, {name}")
    return metrics


def _deliver(engine: Engine, count: int, span_ms: int) -> Spent:
    start_ms = engine.clock.now_ms() + 10 * SECOND_MS
    start_ms -= start_ms % SECOND_MS
    random, spent = np.random.default_rng(2), Spent()
    engine.filler.fill(count, lambda n: start_ms + 1 + random.integers(0, span_ms, n.size))
    engine.clock.set_ms(start_ms)
    engine.work()  # the slot is loaded before it begins
    while engine.store.index.lag_bytes:
        engine.store.index.catch_up()
    engine.clock.set_ms(start_ms + span_ms)
    with spent.spending(count):
        engine.work()
    assert engine.timers.stats.delivered == count
    return spent


def grow(folder: Path, scale: float) -> list[Metric]:
    """Put and deliver timers at growing numbers of pending timers; compare with the first size."""
    metrics: list[Metric] = []
    first: dict[str, float] = {}
    with Engine(folder) as engine:
        times = far(engine.clock.now_ms())
        for size in SIZES:
            size = int(size * scale)
            engine.filler.fill(max(size - engine.timers.counts.total, 0), times)
            engine.work()
            for name, spent in probe(engine).items():
                first.setdefault(name, spent.loop_ns)
                ratio = spent.loop_ns / first[name]
                title = f"{name}, {engine.timers.counts.total:,} wait"
                metrics += [
                    Metric(name=title, value=spent.loop_ns, unit="ns/msg", better="less"),
                    Metric(name=f"{title}: times", value=ratio, unit="x", better="less"),
                ]
    return metrics


def probe(engine: Engine) -> dict[str, Spent]:
    """Put and deliver timers of the next seconds; return the best of several rounds."""
    random = np.random.default_rng(3)
    best: dict[str, Spent] = {}
    for _ in range(ROUNDS):
        spent = {"put": Spent(), "deliver": Spent()}
        now_ms = engine.clock.now_ms()
        for _ in range(PROBE_BATCHES):
            engine.filler.make(now_ms + 2_000 + random.integers(0, 5_000, ROWS))
            with spent["put"].spending(ROWS):
                engine.filler.append()
        before = engine.timers.stats.delivered
        for _ in range(80):
            engine.clock.advance(100)
            with spent["deliver"].spending(0):
                engine.work()
        spent["deliver"].count = engine.timers.stats.delivered - before
        assert spent["deliver"].count == PROBE_BATCHES * ROWS
        best = {k: min(best.get(k, v), v, key=lambda each: each.loop_s) for k, v in spent.items()}
    return best


def decide(folder: Path, scale: float) -> list[Metric]:
    """Cancel, move and fire random timers, in batches."""
    spent = {name: Spent() for name in ("cancel", "move", "fire")}
    with Engine(folder) as engine:
        held: list[Any] = []
        count = max(ROUNDS * 3 * DECIDED, int(DECIDED_AMONG * scale))
        engine.filler.fill(count, far(engine.clock.now_ms()), held.append)
        engine.work()
        while engine.store.index.lag_bytes:
            engine.store.index.catch_up()
        offsets = np.random.default_rng(5).permutation(np.concatenate(held))
        pending = PendingTimers(engine.timers)
        later = np.full(DECIDED, engine.clock.now_ms() + DAY_MS)
        ways: dict[str, Callable[[Any], Decided]] = {
            "cancel": pending.cancel,
            "move": lambda some: pending.move(some, later, lambda *_: None),
            "fire": pending.fire,
        }
        for number in range(ROUNDS * len(ways)):
            some = offsets[number * DECIDED :][:DECIDED]
            name = list(ways)[number % len(ways)]
            with spent[name].spending(DECIDED):
                decided = ways[name](some)
            assert (decided.verdicts == Verdict.DONE).all()
    return [metric for name, each in spent.items() for metric in each.metrics(name)]


make = partial(Load, default=False, timers=True, ours_only=True)
LOADS = [
    make(name="timer-link", what="engine alone: into timer log and wheel", alone=link),
    make(name="timer-due", what="engine alone: due to appended, 1 M", alone=due),
    make(name="timer-grow", what="cost of one as pending grows from 10 k to 20 M", alone=grow),
    make(name="timer-decide", what="cancel, move, fire 10 k among 10 M", alone=decide),
]
