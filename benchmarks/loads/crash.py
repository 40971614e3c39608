"""Load: `kill -9` of the broker during a delivery."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric, delivery_faults, level_of_at_least
from tests.support.wait_until import Stopwatch, until

MESSAGES = 300_000
SLOWEST_SENDS_PER_S = 8_000
KILL_AT = 1 / 3


def crash(bench: Bench) -> list[Metric]:
    """Kill the broker when a third is delivered, restart it, and check every message."""
    count = bench.count(MESSAGES)
    level, delay_ms = level_of_at_least(max(5, count / SLOWEST_SENDS_PER_S))
    topic = bench.topic()
    sent = bench.send(topic, count, level=level)
    until(
        lambda: bench.delivered(topic) >= count * KILL_AT,
        seconds=delay_ms / 1_000 + 60,
        what="a third delivered",
        poll_s=0.005,
    )
    at_kill = bench.delivered(topic)
    bench.server.kill()
    watch = Stopwatch()
    bench.server.start()
    ready_s = watch.seconds
    received = bench.recv(
        topic, count - sent["rejected"], level_delay=delay_ms, idle=15, linger=10_000
    )
    return [
        *delivery_faults(received, sent),
        Metric(name="ready", value=ready_s, unit="s", better="less"),
        Metric(
            name="late max", value=received["late_at_store_ms"]["max"], unit="ms", better="less"
        ),
        Metric(name="delivered at kill", value=at_kill, unit="messages", better="more"),
    ]


LOADS = [Load(name="crash", what="kill -9 while 300 k are delivered", run=crash)]
