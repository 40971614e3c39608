"""Loads: memory use of pending timers, and start time after `kill -9`."""

from __future__ import annotations

from functools import partial

from benchmarks.bench import Bench, Load, Metric
from benchmarks.fill import fill_store
from benchmarks.loads.ready import start_s
from tests.support.wait_until import until

MIB = 1 << 20
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TAIL = 200_000  # sent right before the kill
QUIET_S = 60
STARTS = 3


def pending(bench: Bench, *, messages: int) -> list[Metric]:
    """Send many timers, measure memory, kill the broker, and restart it."""
    count, topic = bench.count(messages), bench.topic()
    before = bench.server.broker.memory_bytes()
    sent = bench.send(topic, count, delay=HOUR_MS, spread=DAY_MS)
    return [
        *_memory_and_start(bench, before["anonymous"], count),
        Metric(name="accepted", value=sent["per_second"], unit="msg/s", better="more"),
        Metric(name="rejected", value=sent["rejected"], unit="messages", better="less"),
    ]


def pending_filled(bench: Bench, *, messages: int) -> list[Metric]:
    """Measure like `pending`, with timers that the library puts into the store."""
    count, topic = bench.count(messages), bench.topic()
    bench.server.stop_broker()
    fill_store(bench.server.store_dir, count, topic)
    adopted_s = start_s(bench)  # the first start reads the whole log once
    bench.server.stop_broker()
    after_stop = start_s(bench)
    before = bench.server.broker.memory_bytes()
    bench.send(topic, bench.count(TAIL), delay=HOUR_MS, spread=DAY_MS)
    return [
        *_memory_and_start(bench, before["anonymous"], bench.count(TAIL)),
        Metric(name="ready after stop", value=after_stop, unit="s", better="less"),
        Metric(name="ready with another's log", value=adopted_s, unit="s", better="less"),
    ]


def _memory_and_start(bench: Bench, before_bytes: int, count: int) -> list[Metric]:
    after = bench.server.broker.memory_bytes()
    bench.server.kill()
    ready_s = start_s(bench)
    restarted = bench.server.broker.memory_bytes()
    cpu_s = bench.server.broker.cpu_seconds()
    starts_s = [ready_s]
    for _ in range(STARTS - 1):
        _wait_until_quiet(bench)
        bench.server.kill()
        starts_s.append(start_s(bench))
    grown = max(0, after["anonymous"] - before_bytes) / max(1, count)
    return [
        Metric(name="resident", value=after["rss"] / MIB, unit="MiB", better="less"),
        Metric(name="anonymous", value=after["anonymous"] / MIB, unit="MiB", better="less"),
        Metric(name="anonymous growth", value=grown, unit="B/msg", better="less"),
        Metric(
            name="anonymous restarted",
            value=restarted["anonymous"] / MIB,
            unit="MiB",
            better="less",
        ),
        Metric(name="ready after kill", value=ready_s, unit="s", better="less"),
        Metric(name="ready after kill, cpu", value=cpu_s, unit="s", better="less"),
        Metric(name="ready after kill, idle", value=min(starts_s[1:]), unit="s", better="less"),
    ]


def _wait_until_quiet(bench: Bench) -> None:
    """Wait until the broker uses almost no processor time."""
    seen = [0.0, bench.server.broker.cpu_seconds()]

    def quiet() -> bool:
        seen[:] = seen[1], bench.server.broker.cpu_seconds()
        return seen[1] - seen[0] < 0.1

    until(quiet, seconds=QUIET_S, what="the broker quiet", poll_s=1.0)


LOADS = [
    Load(
        name="timer-pending-2m",
        what="2 M pending timers: memory, start after kill -9",
        run=partial(pending, messages=2_000_000),
        default=False,
        timers=True,
    ),
    Load(
        name="timer-pending-20m",
        what="20 M pending timers: memory, start after kill -9",
        run=partial(pending_filled, messages=20_000_000),
        default=False,
        timers=True,
        ours_only=True,
    ),
]
