"""Measurements that every system takes, each with an empty store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.bench import Metric, delivery_faults
from benchmarks.peers.system import System
from tests.support.wait_until import Stopwatch, now_ms, until

MIB = 1 << 20
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
TRICKLE_PER_S, DELAY_MS = 500, 3_000
LEAD_MS = 5_000  # between the estimated end of sending and the due time
SAFE_RATE = 0.5  # share of the measured rate, so that sending ends before messages are due
WARM = 20_000
WARM_DELAY_MS = 1_000
SPREAD_MS = 10_000
IDLE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measurement.

    Attributes:
        messages: Number of messages at scale 1.
        run: Function of a warmed-up system and the number of messages.
    """

    name: str
    description: str
    messages: int
    run: Callable[[System, int], list[Metric]]


def warm_up(system: System, count: int) -> float:
    """Send and receive delayed messages; return sends a second."""
    with system.receiving(count, idle=IDLE_S) as received:
        sent = system.send(count, delay=WARM_DELAY_MS)
        received()
    return float(sent["per_second"])


def trickle(system: System, count: int) -> list[Metric]:
    """Lateness at the consumer of 500 messages a second."""
    warm_up(system, WARM)
    system.setup()
    with system.receiving(count, idle=IDLE_S) as received:
        sent = system.send(count, delay=DELAY_MS, rate=TRICKLE_PER_S, conns=1)
        report = received()
    late = report["late_at_client_ms"]
    names = ("p50", "p99", "p999", "max")
    return [
        *(Metric(name=f"late {n}", value=late[n], unit="ms", better="less") for n in names),
        *delivery_faults(report, sent),
    ]


def spike(system: System, count: int) -> list[Metric]:
    """Messages due in one millisecond, and a consumer that receives them meanwhile."""
    rate = warm_up(system, min(WARM, count))
    system.setup()
    due_ms = now_ms() + LEAD_MS + int(count * 1_000 / (rate * SAFE_RATE))
    with system.receiving(count, idle=IDLE_S + (due_ms - now_ms()) / 1_000) as received:
        sent = system.send(count, due=due_ms)
        if sent["end_ms"] > due_ms:
            raise RuntimeError(f"sent at {sent['per_second']:.0f}/s: not done before they are due")
        report = received()
    late = report["late_at_client_ms"]
    return [
        Metric(name="accepted", value=sent["per_second"], unit="msg/s", better="more"),
        Metric(name="half received after", value=late["p50"], unit="ms", better="less"),
        Metric(name="last received after", value=late["max"], unit="ms", better="less"),
        *delivery_faults(report, sent),
    ]


def pending(system: System, count: int) -> list[Metric]:
    """Memory of pending messages, and the start after `kill -9`."""
    before = system.process.memory_bytes()
    sent = system.send(count, delay=HOUR_MS, spread=DAY_MS)
    after = system.process.memory_bytes()
    system.kill()
    watch = Stopwatch()
    system.start()
    system.wait_until_accepting()
    ready_s = watch.seconds
    grown = max(0, after["anonymous"] - before["anonymous"]) / count
    return [
        Metric(name="accepted", value=sent["per_second"], unit="msg/s", better="more"),
        Metric(name="send p99", value=sent["ack_ms"]["p99"], unit="ms", better="less"),
        Metric(name="anonymous", value=after["anonymous"] / MIB, unit="MiB", better="less"),
        Metric(name="anonymous growth", value=grown, unit="B/msg", better="less"),
        Metric(name="ready after kill -9", value=ready_s, unit="s", better="less"),
    ]


def crash(system: System, count: int) -> list[Metric]:
    """`kill -9` in the middle of a delivery that takes 10 s; consumers reconnect."""
    rate = warm_up(system, min(WARM, count))
    system.setup()
    due_ms = now_ms() + LEAD_MS + int(count * 1_000 / (rate * SAFE_RATE))
    idle_s = IDLE_S + (due_ms - now_ms()) / 1_000
    with system.receiving(count, idle=idle_s, linger=10_000) as received:
        sent = system.send(count, due=due_ms, spread=SPREAD_MS)
        middle_ms = due_ms + SPREAD_MS // 3
        until(lambda: now_ms() >= middle_ms, seconds=IDLE_S * 60, what="the middle", poll_s=0.001)
        system.kill()
        system.start()
        report = received()
    return [
        *delivery_faults(report, sent),
        Metric(name="late max", value=report["late_at_client_ms"]["max"], unit="ms", better="less"),
    ]


def cancel(system: System, count: int) -> list[Metric]:
    """Cancels of pending messages, one request each."""
    rate = system.cancel(count, now_ms() + HOUR_MS)
    return [] if rate is None else [Metric(name="cancels", value=rate, unit="1/s", better="more")]


MEASURES = [
    Measure(name="pending", description="1 M pending", messages=1_000_000, run=pending),
    Measure(name="trickle", description="500/s for a minute", messages=30_000, run=trickle),
    Measure(name="spike", description="500 k due in one millisecond", messages=500_000, run=spike),
    Measure(
        name="crash", description="kill -9 while 100 k are delivered", messages=100_000, run=crash
    ),
    Measure(
        name="cancel", description="cancel of 10 k, one request each", messages=10_000, run=cancel
    ),
]
