"""Phases that measure a filled store, most with its broker running. Each says what it changes.

| phase | leaves in the store |
|---|---|
| audit | nothing; no broker runs |
| start | up to 200,000 more pending timers |
| put | 300,000 delivered timers |
| trickle | 30,000 delivered timers |
| deliver | the old timers of 20 s, for which it waits up to five minutes |
| spike | 1,000,000 delivered timers, and warm-up |
| search | nothing |
| cancel | 3,000 cancelled timers |
| compact | one of the first log files less |
| migrate | at the first run 10^7 level messages; afterwards they belong to their level again |
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Metric, delivery_faults
from benchmarks.fill import far, key
from benchmarks.fill_levels import fill_levels
from benchmarks.loads.migration import migrate
from benchmarks.loads.ready import start_s
from benchmarks.loads.timer_engine import Engine, probe
from benchmarks.loads.timers import spike as send_spike
from benchmarks.loads.timers import trickled
from benchmarks.scale.audit import audit
from benchmarks.scale.filling import FAR_MS, WINDOW_EVERY_MS, WINDOW_MS
from benchmarks.scale.scale_store import (
    LEVELS,
    TOPIC,
    ScaleStore,
    less,
    more,
    wait_until_quiet,
)
from benchmarks.watch import watching
from delayed_delivery.level_delays import parse_levels
from duemq.client.admin import Admin
from duemq.client.decisions import PendingDecisions
from duemq.client.message import milliseconds
from duemq.client.pull_consumer import PullConsumer
from duemq.client.routes import json_object
from duemq_common.codes import RequestCode
from tests.support.wait_until import Stopwatch, now_ms, until

MB = 1_000_000
TAIL = 200_000  # sent right before the first kill
STARTS = 3
BASE = 10_000  # pending timers of the store that costs are compared with
SPIKE = 1_000_000
LEVEL_MESSAGES = 10_000_000
LEVEL_MESSAGE_BYTES = 400
LEVEL = parse_levels(LEVELS).size - 1
SEARCHES, CANCELS = 100, 1_000
PAGE, PAGE_MAX = 20, 1_000
LIST_VIEW, FORECAST_VIEW = "timer_store.list", "timer_store.forecast"
SUMMARY_VIEW = "timer_store.summary"
HOUR_MS = 3_600_000
LINGER_MS = 2_000
TIMEOUT_S = 600.0
COMPACT_PERCENT = "10", "30", "60"  # of each run: it includes one more of the first log files


def start(scale_store: ScaleStore) -> list[Metric]:
    """Measure memory, and starts after `kill -9`, with and without sends right before."""
    with scale_store.bench() as bench:
        tail = bench.count(TAIL)
        options = {"delay": FAR_MS[0], "spread": FAR_MS[1] - FAR_MS[0]}
        bench.send(TOPIC, tail, **options)
        scale_store.state.sent += tail
        scale_store.save()
        sending = bench.server.broker.memory_bytes()
        bench.server.kill()
        after_sends = start_s(bench)
        cpu_s = bench.server.broker.cpu_seconds()
        ready_s, idle = [], bench.server.broker.memory_bytes()
        for _ in range(STARTS - 1):
            wait_until_quiet(bench)
            idle = bench.server.broker.memory_bytes()
            bench.server.kill()
            ready_s.append(start_s(bench))
        bench.server.stop_broker()
        after_stop = start_s(bench)
    return [
        less("anonymous memory", idle["anonymous"] / MB, "MB"),
        less("anonymous memory while sends arrive", sending["anonymous"] / MB, "MB"),
        less("resident memory, page cache included", idle["rss"] / MB, "MB"),
        less("ready after kill -9 during sends", after_sends, "s"),
        less("the same, processor time", cpu_s, "s"),
        less("ready after kill -9, best", min(ready_s), "s"),
        less("ready after kill -9, worst", max(ready_s), "s"),
        less("ready after stop", after_stop, "s"),
    ]


def put(scale_store: ScaleStore) -> list[Metric]:
    """Measure put and delivery of a timer by the engine, here and with BASE pending timers."""
    scale_store.must_have_room()
    file_bytes = scale_store.state.file_bytes
    with (
        TemporaryDirectory(dir=scale_store.root) as directory,
        Engine(Path(directory), now_ms(), file_bytes) as engine,
    ):
        engine.filler.fill(BASE, far(engine.clock.now_ms()))
        engine.work()
        base = probe(engine)
    with Engine(scale_store.directory, now_ms(), file_bytes) as engine:
        here = probe(engine)
        end_ms = engine.clock.now_ms()
    until(lambda: now_ms() > end_ms, seconds=60, what="the time at the end of the probe")
    metrics = []
    for name, spent in here.items():
        metrics += [
            less(f"{name} one", spent.loop_ns, "ns"),
            less(f"{name} one, {BASE:,} pending", base[name].loop_ns, "ns"),
            less(f"{name}, times", spent.loop_ns / base[name].loop_ns, "x"),
        ]
    return metrics


def trickle(scale_store: ScaleStore) -> list[Metric]:
    """Measure the lateness of 500 timers a second for a minute."""
    with scale_store.bench() as bench:
        wait_until_quiet(bench)
        received, sent = trickled(bench)
    return [*_late("late", received), _faults("trickle", received, sent)]


def deliver(scale_store: ScaleStore) -> list[Metric]:
    """Measure the lateness of old timers, whose records are spread over the log."""
    with scale_store.bench() as bench:
        wait_until_quiet(bench)
        late = asyncio.run(_old_delivered(bench))
    if not late:
        raise SystemExit("deliver: no old timer was due")
    quantiles = np.percentile(late, [50, 99, 99.9, 100])
    names = ("p50", "p99", "p999", "max")
    metrics = [less(f"late {n}", float(q), "ms") for n, q in zip(names, quantiles, strict=True)]
    return [
        *metrics,
        more("old timers delivered", len(late), "messages"),
        less("early", sum(ms < 0 for ms in late), "messages"),
    ]


async def _old_delivered(bench: Bench) -> list[int]:
    """Return how late, in ms, the timers of the next window were stored in their topic."""
    late: list[int] = []
    async with PullConsumer(broker=bench.server.broker_address, group="g_scale") as consumer:
        queues = await consumer.queues(TOPIC)
        begin_ms = -(-now_ms() // WINDOW_EVERY_MS) * WINDOW_EVERY_MS
        await asyncio.sleep((begin_ms - now_ms()) / 1_000)
        offsets = [await consumer.max_offset(queue) for queue in queues]
        await asyncio.sleep((WINDOW_MS + LINGER_MS) / 1_000)
        for queue, first in zip(queues, offsets, strict=True):
            offset, end = first, await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                late += [
                    milliseconds(message.stored_at) - int(message.properties["TIMER_DELIVER_MS"])
                    for message in pulled.messages
                ]
                offset = pulled.next_offset
    return late


def spike(scale_store: ScaleStore) -> list[Metric]:
    """Send 10^6 timers that are due in one millisecond."""
    with scale_store.bench() as bench:
        wait_until_quiet(bench)
        return send_spike(bench, messages=SPIKE)


def search(scale_store: ScaleStore) -> list[Metric]:
    """Measure list, forecast, lookup by key, and the summary."""
    with scale_store.bench() as bench:
        wait_until_quiet(bench)
        return asyncio.run(_searched(bench, scale_store.state.filled))


async def _searched(bench: Bench, filled: int) -> list[Metric]:
    address = bench.server.broker_address
    numbers = random.sample(range(filled), min(2 * SEARCHES, filled))
    metrics = []
    async with Admin(broker=address, timeout_s=TIMEOUT_S) as admin:
        view = partial(admin.view, address)
        middle_ms = now_ms() + sum(FAR_MS) // 2
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "list, first page of 20": lambda: view(LIST_VIEW, limit=PAGE),
            "list, first page of 1,000": lambda: view(LIST_VIEW, limit=PAGE_MAX),
            "list, a page in the middle": lambda: view(LIST_VIEW, from_ms=middle_ms, limit=PAGE),
            "summary": lambda: view(SUMMARY_VIEW),
            "forecast, first answer": lambda: view(FORECAST_VIEW, width_ms=HOUR_MS, count=48),
        }
        for name, work in works.items():
            times = await _times_ms(work, 5)
            metrics.append(less(name, float(np.median(times)), "ms"))
        pieces = await _forecast_ms(view)
        metrics.append(less("forecast, all pieces", sum(pieces) / 1_000, "s"))
        metrics.append(less("forecast, longest piece", max(pieces), "ms"))
        names = iter([key(n) for n in numbers])
        times = await _times_ms(lambda: view(LIST_VIEW, key=next(names)), SEARCHES)
        metrics += _quantiles("list by key", times)
        times = await _times_ms(lambda: admin.message_history(next(names)), SEARCHES)
        metrics += _quantiles("history by id", times)
    return metrics


async def _forecast_ms(view: Any) -> list[float]:
    """Return the times of all pieces of a forecast."""
    pieces, fields = [], {"width_ms": HOUR_MS, "count": 48, "from_ms": now_ms()}
    position: int | None = None
    while True:
        begin = time.perf_counter()
        more_fields = {} if position is None else {"pos": position}
        answer = await view(FORECAST_VIEW, **fields, **more_fields)
        pieces.append((time.perf_counter() - begin) * 1_000)
        position = answer["pos"]
        if position is None:
            return pieces


def cancel(scale_store: ScaleStore) -> list[Metric]:
    """Cancel timers by their unique keys: one at a time, and 1,000 at once."""
    with scale_store.bench() as bench:
        wait_until_quiet(bench)
        return asyncio.run(_cancelled(bench, scale_store.state.filled))


async def _cancelled(bench: Bench, filled: int) -> list[Metric]:
    names = [key(n) for n in random.sample(range(filled), min(2 * CANCELS, filled))]
    singles, together = names[: len(names) // 2], names[len(names) // 2 :]
    done = 0
    async with PendingDecisions(broker=bench.server.broker_address) as decisions:
        one = iter(singles)
        times = []
        for name in one:
            begin = time.perf_counter()
            results = await decisions.cancel(ids=[name])
            times.append((time.perf_counter() - begin) * 1_000)
            done += results[0].messages
        begin = time.perf_counter()
        results = await decisions.cancel(ids=together)
        seconds = time.perf_counter() - begin
        done += sum(result.messages for result in results)
    return [
        *_quantiles("cancel one", times),
        more("cancel many at once", len(together) / seconds, "msg/s"),
        less("not cancelled", len(names) - done, "messages"),
    ]


def compact(scale_store: ScaleStore) -> list[Metric]:
    """Copy the timers out of one of the first log files, with a trickle meanwhile."""
    runs = len(scale_store.state.phases.get("compact", ()))
    keys = {"fileReservedTime": "0", "timerCompactRatio": COMPACT_PERCENT[min(runs, 2)]}
    with scale_store.bench(**keys) as bench, ThreadPoolExecutor(1) as pool:
        wait_until_quiet(bench)
        with watching(bench.server.broker) as watch:
            traffic = pool.submit(trickled, bench)
            first_ms = now_ms()
            plan, plan_s, whole_s = asyncio.run(_compact(bench))
            end_ms = now_ms()
            received, sent = traffic.result()
        peak = watch.peak_bytes(first_ms, end_ms)
    return [
        less("plan: all units read", plan_s, "s"),
        less("plan and copies", whole_s, "s"),
        more("copied", plan["messages"], "messages"),
        more("log bytes freed", plan["frees"], "bytes"),
        less("log bytes copied", plan["bytes"], "bytes"),
        less("anonymous memory, peak", peak / MB, "MB"),
        *_late("late meanwhile", received),
        _faults("trickle", received, sent),
    ]


async def _compact(bench: Bench) -> tuple[dict[str, Any], float, float]:
    """Run a compaction; return its plan, and the seconds of the plan and of everything."""
    address, watch = bench.server.broker_address, Stopwatch()
    async with Admin(broker=address, timeout_s=TIMEOUT_S) as admin:
        response = await admin.ask_broker(
            address, RequestCode.COMPACT_TIMERS, timeout_s=TIMEOUT_S, feature="timers"
        )
        plan_s, running = watch.seconds, True
        while running:
            await asyncio.sleep(0.1)
            running = (await admin.view(address, SUMMARY_VIEW))["compaction"]["running"]
    return json_object(response), plan_s, watch.seconds


def migrate_level(scale_store: ScaleStore) -> list[Metric]:
    """Migrate the messages of a level to timers and back, during a trickle each."""
    state = scale_store.state
    count = int(LEVEL_MESSAGES * scale_store.scale)
    scale_store.must_have_room((count - state.level) * LEVEL_MESSAGE_BYTES)
    if state.level < count:
        fill_levels(
            scale_store.directory,
            count - state.level,
            TOPIC,
            level=LEVEL,
            text=LEVELS,
            file_bytes=state.file_bytes,
        )
        state.level = count
        scale_store.save()
    metrics = []
    with scale_store.bench() as bench, ThreadPoolExecutor(1) as pool:
        wait_until_quiet(bench)
        for name, action in (("migrate", "start"), ("rollback", "rollback")):
            with watching(bench.server.broker) as watch:
                traffic = pool.submit(trickled, bench)
                done = migrate(bench.server, action, LEVEL)
                received, sent = traffic.result()
            peak = watch.peak_bytes(done.whole.first_ms, done.whole.end_ms)
            metrics += [
                more(name, done.moved / done.whole.seconds, "msg/s"),
                more(f"{name}, messages", done.moved, "messages"),
                less(f"{name}, whole command", done.whole.seconds, "s"),
                less(f"{name}, anonymous memory, peak", peak / MB, "MB"),
                *_late(f"{name}, late meanwhile", received),
                _faults(name, received, sent),
            ]
    return metrics


def disk(scale_store: ScaleStore) -> list[Metric]:
    """Measure the allocated bytes by kind of file."""
    state, sizes = scale_store.state, scale_store.disk_bytes()
    pending = state.filled + state.sent
    metrics = [less(name, size / MB, "MB") for name, size in sizes.items()]
    return [*metrics, more("timers put", pending, "messages")]


async def _times_ms(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        await work()
        times.append((time.perf_counter() - begin) * 1_000)
    return times


def _quantiles(name: str, times_ms: list[float]) -> list[Metric]:
    middle, high = np.percentile(times_ms, [50, 99])
    return [less(f"{name}, p50", float(middle), "ms"), less(f"{name}, p99", float(high), "ms")]


def _late(name: str, received: dict[str, Any]) -> list[Metric]:
    late = received["late_at_store_ms"]
    return [less(f"{name} {q}", late[q], "ms") for q in ("p50", "p99", "p999", "max")]


def _faults(name: str, received: dict[str, Any], sent: dict[str, Any]) -> Metric:
    count = sum(metric.value for metric in delivery_faults(received, sent))
    return less(f"{name}: lost, duplicated, early, damaged", count, "messages")


PHASES: dict[str, Callable[[ScaleStore], list[Metric]]] = {
    "disk": disk,
    "audit": audit,
    "start": start,
    "put": put,
    "trickle": trickle,
    "deliver": deliver,
    "spike": spike,
    "search": search,
    "cancel": cancel,
    "compact": compact,
    "migrate": migrate_level,
}
