"""Messages with a time of their own: a trickle, and many in the same second."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric, books
from tests.interop.waiting import now_ms

TRICKLE_PER_S = 500
TRICKLE_S = 20
TRICKLE_S_MIN = 4
DELAY_MS = 3_000
SPIKE_MESSAGES = 100_000
SLOWEST_SENDS_PER_S = 5_000


def trickle(bench: Bench) -> list[Metric]:
    """Send timers at a low rate and see how late each is."""
    count = int(TRICKLE_PER_S * max(TRICKLE_S_MIN, TRICKLE_S * bench.scale))
    topic = bench.topic()
    with bench.receiving(topic, count) as result:
        sent = bench.send(topic, count, delay=DELAY_MS, rate=TRICKLE_PER_S, conns=1)
        received = result()
    late = received["late_at_store_ms"]
    return [
        *(
            Metric(name=f"late {name}", value=late[name], unit="ms", better="less")
            for name in ("p50", "p99", "max")
        ),
        *books(received, sent),
    ]


def spike(bench: Bench) -> list[Metric]:
    """Send timers that are all due at the same moment."""
    count = bench.count(SPIKE_MESSAGES)
    topic = bench.topic()
    due_ms = now_ms() + DELAY_MS + int(count / SLOWEST_SENDS_PER_S * 1_000)
    sent = bench.send(topic, count, due=due_ms)
    received = bench.recv(topic, count - sent["rejected"], idle=30)
    late = received["late_at_store_ms"]
    return [
        Metric(name="late p50", value=late["p50"], unit="ms", better="less"),
        Metric(name="last stored after", value=late["max"], unit="ms", better="less"),
        *books(received, sent),
    ]


LOADS = [
    Load(name="timer-trickle", what="timers at 500/s", run=trickle, default=False, timers=True),
    Load(
        name="timer-spike", what="100 k timers due at once", run=spike, default=False, timers=True
    ),
]
