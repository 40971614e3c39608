"""Load: lateness of level messages at a steady, moderate rate."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric, delivery_faults, level_of_at_least

RATE_PER_S = 20_000
SECONDS = 20
SECONDS_MIN = 3


def steady(bench: Bench) -> list[Metric]:
    """Send level messages at a fixed rate, and receive them when they are delivered."""
    count = int(RATE_PER_S * max(SECONDS_MIN, SECONDS * bench.scale))
    level, delay_ms = level_of_at_least(1)
    topic = bench.topic()
    with bench.cpu() as cpu_seconds, bench.receiving(topic, count, level_delay=delay_ms) as result:
        sent = bench.send(topic, count, level=level, rate=RATE_PER_S)
        received = result()
    late = received["late_at_store_ms"]
    return [
        *(
            Metric(name=f"late {name}", value=late[name], unit="ms", better="less")
            for name in ("p50", "p99", "max")
        ),
        Metric(name="sent", value=sent["per_second"], unit="msg/s", better="more"),
        Metric(name="broker cpu", value=cpu_seconds[0] / count * 1e6, unit="us/msg", better="less"),
        *delivery_faults(received, sent),
    ]


LOADS = [Load(name="steady", what="level messages at 20 k/s, sent and received", run=steady)]
