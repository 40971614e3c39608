"""Loads: rate of accepted messages."""

from __future__ import annotations

from benchmarks.bench import Bench, Load, Metric

HOUR_MS = 3_600_000
LEVEL_LATER = 17  # one hour: no delivery during the measurement


def ingest(bench: Bench, *, messages: int, conns: int, depth: int, **kind: object) -> list[Metric]:
    """Send at full speed over `conns` connections with `depth` requests in flight each."""
    count = bench.count(messages)
    topic = bench.topic()
    with bench.cpu() as cpu_seconds:
        sent = bench.send(topic, count, conns=conns, depth=depth, **kind)
    accepted = max(1, sent["sent"])
    return [
        Metric(name="accepted", value=sent["per_second"], unit="msg/s", better="more"),
        Metric(name="ack p99", value=sent["ack_ms"]["p99"], unit="ms", better="less"),
        Metric(
            name="broker cpu", value=cpu_seconds[0] / accepted * 1e6, unit="us/msg", better="less"
        ),
        Metric(name="rejected", value=sent["rejected"], unit="messages", better="less"),
    ]


def make(name: str, what: str, *, signed: bool = False, **options: int) -> Load:
    """Return an ingest load; loads with timers, TLS or accounts are not default."""
    timers = "delay" in options
    default = not timers and not signed and "tls" not in options

    def run(bench: Bench) -> list[Metric]:
        if timers:
            bench.warm_up_timers()
        return ingest(bench, **options)

    return Load(name=name, what=what, run=run, default=default, timers=timers, signed=signed)


WIDE = {"messages": 400_000, "conns": 4, "depth": 64}
LOADS = [
    make("ingest-level-4x64", "level messages, 4 connections x 64", level=LEVEL_LATER, **WIDE),
    make(
        "ingest-level-16x1",
        "level messages, 16 connections x 1",
        level=LEVEL_LATER,
        messages=150_000,
        conns=16,
        depth=1,
    ),
    make(
        "ingest-level-1x1",
        "level messages, 1 connection x 1",
        level=LEVEL_LATER,
        messages=50_000,
        conns=1,
        depth=1,
    ),
    make("ingest-plain-4x64", "plain messages, 4 connections x 64", **WIDE),
    make("ingest-plain-code10", "plain messages, SEND_MESSAGE instead of V2", code=10, **WIDE),
    make("ingest-signed-4x64", "plain messages, accounts on", signed=True, **WIDE),
    make("ingest-tls-4x64", "plain messages by TLS", tls=True, **WIDE),
    make("ingest-timer-4x64", "timers in an hour", delay=HOUR_MS, **WIDE),
]
