"""How fast one group pops and acknowledges, and how late unacknowledged messages come again."""

from __future__ import annotations

from benchmarks.bench import Bench, Found, Load, Metric

MESSAGES, LEFT = 200_000, 5_000
INVISIBLE_MS = 3_000


def pop_and_acknowledge(bench: Bench) -> list[Metric]:
    """Fill a topic, pop all of it; each message is acknowledged with a request of its own."""
    _popped(bench, bench.count(MESSAGES))  # warm: code that is compiled at run time
    cpu_us, found = _popped(bench, bench.count(MESSAGES))
    return [
        Metric(name="popped, acked", value=found["per_second"], unit="msg/s", better="more"),
        Metric(name="broker", value=cpu_us, unit="us/msg", better="less"),
        *_latencies(found),
        *_faults(found, found["duplicates"]),
    ]  # fmt: skip


def visible_again(bench: Bench) -> list[Metric]:
    """Pop messages without acknowledging; acknowledge them when they come again."""
    count = bench.count(LEFT)
    _, found = _popped(bench, count, leave=True, invisible=INVISIBLE_MS)
    late = found["late_visible_ms"]
    return [
        *(
            Metric(name=f"visible again, {at}", value=late[at], unit="ms late", better="less")
            for at in ("min", "p50", "p99", "max")
        ),
        *_faults(found, found["duplicates"] - count),
    ]


def _popped(bench: Bench, count: int, **options: object) -> tuple[float, Found]:
    """Return the broker's processor time per message in us, and what the client found."""
    topic = bench.topic()
    bench.send(topic, count)
    with bench.cpu() as seconds:
        found = bench.pop(topic, count, **options)
    return seconds[0] / count * 1e6, found


def _latencies(found: Found) -> list[Metric]:
    return [
        Metric(name=f"{what}, p99", value=found[key]["p99"], unit="ms", better="less")
        for what, key in (("pop", "pop_ms"), ("acknowledgement", "ack_ms"))
    ]


def _faults(found: Found, duplicates: int) -> list[Metric]:
    counts = {
        "lost": found["lost"],
        "duplicates": duplicates,
        "damaged": found["corrupt"],
        "refused": found["rejected"],
    }
    return [Metric(name=n, value=v, unit="messages", better="less") for n, v in counts.items()]


LOADS = [
    Load(
        name="pop",
        what="4 connections pop 32 at a time, 200 k messages, each acknowledged alone",
        run=pop_and_acknowledge,
        default=False,
    ),
    Load(
        name="pop-visible",
        what="5 k messages popped, left for 3 s, popped again and acknowledged",
        run=visible_again,
        default=False,
    ),
]
