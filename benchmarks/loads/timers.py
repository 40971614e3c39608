"""Messages with a time of their own: a trickle, many at the same moment, others meanwhile."""

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
SURELY = 0.5  # of the rate that was seen: sending is done by then
LEAD_MS = 4_000  # between the end of the sends at that rate and the moment
MIDDLE_MS = 500  # of a second: where the moment lies, so that all runs are alike
LATEST_S = 60
ORDINARY_PER_S = 1_000
ORDINARY_S = 6
BEFORE_MS = 1_500  # ordinary traffic begins so long before the moment


def trickle(bench: Bench) -> list[Metric]:
    """Send timers at a low rate and see how late each is; the first ones too."""
    received, sent = trickled(bench)
    late = received["late_at_store_ms"]
    return [*_late(late, "p50", "p99", "p999", "max"), *delivery_faults(received, sent)]


def trickled(bench: Bench, seconds: int = TRICKLE_S) -> tuple[Found, Found]:
    """Send timers at a low rate; return what was received, and what was sent."""
    count = int(TRICKLE_PER_S * max(TRICKLE_S_MIN, seconds * bench.scale))
    topic = bench.topic()
    with bench.receiving(topic, count, counts=True) as result:
        sent = bench.send(topic, count, delay=DELAY_MS, rate=TRICKLE_PER_S, conns=1)
        return result(), sent


def spike(bench: Bench, *, messages: int) -> list[Metric]:
    """Send timers that are all due at the same moment; they are read when all have left."""
    rate = bench.warm_up_timers()
    count, topic = bench.count(messages), bench.topic()
    sent, due_ms = _send_for_a_moment(bench, topic, count, rate)
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


def manners(bench: Bench, *, messages: int) -> list[Metric]:
    """See what ordinary sends and pulls notice of a full second that leaves."""
    rate = bench.warm_up_timers()
    quiet = _ordinary(bench)
    count, topic = bench.count(messages), bench.topic()
    sent, due_ms = _send_for_a_moment(bench, topic, count, rate)
    _wait_until(due_ms - BEFORE_MS)
    meanwhile = _ordinary(bench)
    received = bench.recv(topic, count - sent["rejected"], idle=30)
    return [
        *_ordinary_metrics("quiet", quiet),
        *_ordinary_metrics("meanwhile", meanwhile),
        _last(received),
        *delivery_faults(received, sent),
    ]


def _send_for_a_moment(
    bench: Bench, topic: str, count: int, rate_per_s: float
) -> tuple[Found, int]:
    """Send timers for one moment; return what was sent, and the moment."""
    earliest_ms = now_ms() + LEAD_MS + int(count * 1_000 / (rate_per_s * SURELY))
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


def _wait_until(moment_ms: int) -> None:
    left_s = max(moment_ms - now_ms(), 0) / 1_000
    until(lambda: now_ms() >= moment_ms, seconds=left_s + LATEST_S, what="the moment")


def _ordinary(bench: Bench) -> tuple[Found, Found]:
    """Send plain messages at a low rate and receive them; return what was sent and received."""
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


def _ordinary_metrics(name: str, found: tuple[Found, Found]) -> list[Metric]:
    sent, received = found
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
        what="500 k timers due at one moment",
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
        run=partial(manners, messages=500_000),
        default=False,
        timers=True,
    ),
]
