"""Loads: timers at a low rate, many timers due at once, and ordinary traffic meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from benchmarks.bench import Bench, Found, Load, Metric, delivery_faults
from tests.support.wait_until import now_ms, until

TRICKLE_PER_S = 500
TRICKLE_S = 60
TRICKLE_S_MIN = 4
DELAY_MS = 3_000
SECOND_MS = 1_000
SAFE_RATE = 0.5  # share of the measured rate, so that sending ends before the timers are due
LEAD_MS = 4_000  # between the estimated end of sending and the delivery time
MIDDLE_MS = 500  # of a second: delivery time within its second, the same in all runs
LATEST_S = 60
ORDINARY_PER_S = 1_000
ORDINARY_S = 6
BEFORE_MS = 1_500  # start of ordinary traffic, before the delivery time


def trickle(bench: Bench) -> list[Metric]:
    """Measure the lateness of timers at a low rate, including the first ones."""
    received, sent = trickled(bench)
    late = received["late_at_store_ms"]
    return [*_late(late, "p50", "p99", "p999", "max"), *delivery_faults(received, sent)]


def trickled(bench: Bench, seconds: int = TRICKLE_S) -> tuple[Found, Found]:
    """Send timers at a low rate; return the reports of receiver and sender."""
    count = int(TRICKLE_PER_S * max(TRICKLE_S_MIN, seconds * bench.scale))
    topic = bench.topic()
    with bench.receiving(topic, count, counts=True) as result:
        sent = bench.send(topic, count, delay=DELAY_MS, rate=TRICKLE_PER_S, conns=1)
        return result(), sent


def spike(bench: Bench, *, messages: int) -> list[Metric]:
    """Send timers that are all due at the same time; receive them after all are delivered."""
    rate = bench.warm_up_timers()
    count, topic = bench.count(messages), bench.topic()
    sent, due_ms = _send_due_at_once(bench, topic, count, rate)
    with bench.cpu() as cpu_seconds:
        _wait_until_left(bench, topic, count - sent["rejected"], due_ms)
    received = bench.recv(topic, count - sent["rejected"], idle=30)
    return [
        *_late(received["late_at_store_ms"], "p50"),
        _last(received),
        Metric(name="broker cpu", value=cpu_seconds[0] / count * 1e6, unit="us/msg", better="less"),
        Metric(name="ingest", value=sent["per_second"], unit="msg/s", better="more"),
        *delivery_faults(received, sent),
    ]


def ordinary_traffic(bench: Bench, *, messages: int) -> list[Metric]:
    """Measure ordinary sends and pulls before and during the delivery of many timers."""
    rate = bench.warm_up_timers()
    quiet = _ordinary(bench)
    count, topic = bench.count(messages), bench.topic()
    sent, due_ms = _send_due_at_once(bench, topic, count, rate)
    _wait_until(due_ms - BEFORE_MS)
    meanwhile = _ordinary(bench)
    received = bench.recv(topic, count - sent["rejected"], idle=30)
    return [
        *_ordinary_metrics("quiet", quiet),
        *_ordinary_metrics("meanwhile", meanwhile),
        _last(received),
        *delivery_faults(received, sent),
    ]


def _send_due_at_once(bench: Bench, topic: str, count: int, rate_per_s: float) -> tuple[Found, int]:
    """Send timers due at the same time; return the sender's report and the delivery time."""
    earliest_ms = now_ms() + LEAD_MS + int(count * 1_000 / (rate_per_s * SAFE_RATE))
    due_ms = earliest_ms // SECOND_MS * SECOND_MS + SECOND_MS + MIDDLE_MS
    sent = bench.send(topic, count, due=due_ms)
    if sent["end_ms"] > due_ms - BEFORE_MS:
        raise RuntimeError(f"sent at {sent['per_second']:.0f}/s: not done before they are due")
    return sent, due_ms


def _wait_until_left(bench: Bench, topic: str, count: int, due_ms: int) -> None:
    _wait_until(due_ms)
    until(
        lambda: bench.delivered(topic) >= count, seconds=LATEST_S, what="all delivered", poll_s=0.1
    )


def _wait_until(time_ms: int) -> None:
    left_s = max(time_ms - now_ms(), 0) / 1_000
    until(lambda: now_ms() >= time_ms, seconds=left_s + LATEST_S, what="the delivery time")


def _ordinary(bench: Bench) -> tuple[Found, Found]:
    """Send and receive ordinary messages at a low rate; return the reports of both."""
    count, topic = ORDINARY_PER_S * ORDINARY_S, bench.topic()
    with (
        bench.receiving(topic, count) as result,
        _in_background(partial(bench.send, topic, count, rate=ORDINARY_PER_S, conns=2)) as sending,
    ):
        return sending.result(), result()


@contextmanager
def _in_background(work: partial[Found]) -> Iterator[Future[Found]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def _ordinary_metrics(name: str, reports: tuple[Found, Found]) -> list[Metric]:
    sent, received = reports
    ack, late = sent["ack_ms"], received["late_at_client_ms"]
    return [
        *(
            Metric(name=f"{name}: send {q}", value=ack[q], unit="ms", better="less")
            for q in ("p50", "p99", "max")
        ),
        *(
            Metric(name=f"{name}: pull {q}", value=late[q], unit="ms", better="less")
            for q in ("p50", "p99", "max")
        ),
    ]


def _late(late: Found, *names: str) -> list[Metric]:
    return [Metric(name=f"late {q}", value=late[q], unit="ms", better="less") for q in names]


def _last(received: Found) -> Metric:
    late_ms = received["late_at_store_ms"]["max"]
    return Metric(name="last stored after", value=late_ms, unit="ms", better="less")


LOADS = [
    Load(name="timer-trickle", what="timers at 500/s", run=trickle, default=False, timers=True),
    Load(
        name="timer-spike",
        what="500 k timers due at one time",
        run=partial(spike, messages=500_000),
        default=False,
        timers=True,
    ),
    Load(
        name="timer-spike-1m",
        what="1 M timers due in one millisecond",
        run=partial(spike, messages=1_000_000),
        default=False,
        timers=True,
    ),
    Load(
        name="timer-manners",
        what="ordinary messages at 1 k/s while 500 k timers leave",
        run=partial(ordinary_traffic, messages=500_000),
        default=False,
        timers=True,
    ),
]
