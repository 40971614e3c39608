"""Load: delivery rate of overdue messages after an outage."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric, delivery_faults, level_of_at_least
from tests.support.wait_until import Stopwatch, now_ms, until

MESSAGES = 200_000
SLOWEST_SENDS_PER_S = 8_000
STOP_S = 20  # maximum time of a clean stop; no message is due before its end


def drain(bench: Bench) -> list[Metric]:
    """Send level messages, stop the broker until all are overdue, restart it, and receive them."""
    count = bench.count(MESSAGES)
    level, delay_ms = level_of_at_least(STOP_S + count / SLOWEST_SENDS_PER_S)
    topic = bench.topic()
    sent = bench.send(topic, count, level=level)
    bench.server.stop_broker()
    due_ms = sent["end_ms"] + delay_ms
    until(lambda: now_ms() > due_ms, seconds=delay_ms / 1_000 + 10, what="all overdue")
    watch = Stopwatch()
    start_ms = now_ms()
    bench.server.start()
    ready_s = watch.seconds
    received = bench.recv(topic, count - sent["rejected"], level_delay=delay_ms, idle=15)
    seconds = (received["last_store_ms"] - start_ms) / 1_000
    return [
        Metric(name="drained", value=received["per_second"], unit="msg/s", better="more"),
        Metric(name="best second", value=received["best_second"], unit="msg/s", better="more"),
        Metric(name="start to last", value=seconds, unit="s", better="less"),
        Metric(name="ready", value=ready_s, unit="s", better="less"),
        *delivery_faults(received, sent),
    ]


LOADS = [Load(name="drain", what="one level, 200 k overdue after an outage", run=drain)]
