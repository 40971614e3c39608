"""Load: time of a broker start until clients can send."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric
from tests.support.wait_until import Stopwatch

MESSAGES = 200_000
LEVEL_LATER = 17


def start_s(bench: Bench) -> float:
    """Start the broker and return the seconds until it listens and is routable."""
    watch = Stopwatch()
    bench.server.start()
    return watch.seconds


def ready(bench: Bench) -> list[Metric]:
    """Start after an orderly stop and after `kill -9`, with some pending messages."""
    bench.server.stop_broker()
    after_stop = start_s(bench)
    topic = bench.topic()
    bench.send(topic, bench.count(MESSAGES), level=LEVEL_LATER)
    bench.server.kill()
    after_kill = start_s(bench)
    return [
        Metric(name="ready after stop", value=after_stop, unit="s", better="less"),
        Metric(name="ready after kill", value=after_kill, unit="s", better="less"),
    ]


LOADS = [Load(name="ready", what="start after a stop, and after kill -9 with 200 k", run=ready)]
