"""Load: memory use of pending messages, and start time with them."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric
from benchmarks.loads.ready import start_s

MESSAGES = 5_000_000
MIB = 1 << 20
LEVEL_LATER = 18


def memory(bench: Bench) -> list[Metric]:
    """Measure resident memory before and after many messages were accepted."""
    before = bench.server.broker.memory_bytes()
    topic = bench.topic()
    count = bench.count(MESSAGES)
    sent = bench.send(topic, count, level=LEVEL_LATER)
    after = bench.server.broker.memory_bytes()
    bench.server.kill()
    ready_s = start_s(bench)
    restarted = bench.server.broker.memory_bytes()
    grown = max(0, after["anonymous"] - before["anonymous"]) / max(1, sent["sent"])
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
        Metric(name="accepted", value=sent["per_second"], unit="msg/s", better="more"),
    ]


LOADS = [Load(name="memory", what="5 M pending level messages", run=memory)]
