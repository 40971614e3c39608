"""Loads: rate of pops with acknowledgements, work after the invisible time, redelivery."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Found, Load, Metric

MESSAGES, LEFT = 200_000, 5_000
INVISIBLE_MS = 3_000
SETTLED_S = 4  # after the invisible time, until the broker has settled every checkpoint


def pop_and_acknowledge(bench: Bench) -> list[Metric]:
    """Fill a topic, pop all messages, and acknowledge each with a separate request."""
    _popped(bench, bench.count(MESSAGES))  # warm up JIT compilers
    cpu_us, report = _popped(bench, bench.count(MESSAGES))
    return [
        Metric(name="popped, acked", value=report["per_second"], unit="msg/s", better="more"),
        Metric(name="broker", value=cpu_us, unit="us/msg", better="less"),
        *_latencies(report),
        *_faults(report, report["duplicates"]),
    ]


def settled(bench: Bench) -> list[Metric]:
    """Pop and acknowledge; measure the broker's work then, and until checkpoints are settled."""
    count = bench.count(MESSAGES)
    for _ in range(2):  # the first time warms up JIT compilers
        cpu_us, _ = _popped(bench, count, invisible=INVISIBLE_MS)
        with bench.cpu() as seconds:
            time.sleep(INVISIBLE_MS / 1_000 + SETTLED_S)
    afterwards_us = seconds[0] / count * 1e6
    return [
        Metric(name=name, value=value, unit="us/msg", better="less")
        for name, value in (("broker, pop and ack", cpu_us), ("broker, later", afterwards_us))
    ]


def visible_again(bench: Bench) -> list[Metric]:
    """Pop messages without acknowledging them; acknowledge them at their redelivery."""
    count = bench.count(LEFT)
    _, report = _popped(bench, count, leave=True, invisible=INVISIBLE_MS)
    late = report["late_visible_ms"]
    return [
        *(
            Metric(
                name=f"visible again, {quantile}",
                value=late[quantile],
                unit="ms late",
                better="less",
            )
            for quantile in ("min", "p50", "p99", "max")
        ),
        *_faults(report, report["duplicates"] - count),
    ]


def _popped(bench: Bench, count: int, **options: object) -> tuple[float, Found]:
    """Return the broker's processor time per message in us, and the load generator's report."""
    topic = bench.topic()
    bench.send(topic, count)
    with bench.cpu() as seconds:
        report = bench.pop(topic, count, **options)
    return seconds[0] / count * 1e6, report


def _latencies(report: Found) -> list[Metric]:
    return [
        Metric(name=f"{action}, p99", value=report[key]["p99"], unit="ms", better="less")
        for action, key in (("pop", "pop_ms"), ("acknowledgement", "ack_ms"))
    ]


def _faults(report: Found, duplicates: int) -> list[Metric]:
    counts = {
        "lost": report["lost"],
        "duplicates": duplicates,
        "damaged": report["corrupt"],
        "refused": report["rejected"],
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
        name="pop-settled",
        what="200 k messages popped and acknowledged, work during and after their invisible time",
        run=settled,
        default=False,
    ),
    Load(
        name="pop-visible",
        what="5 k messages popped, left for 3 s, popped again and acknowledged",
        run=visible_again,
        default=False,
    ),
]
