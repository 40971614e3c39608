"""Loads: migration of level messages to timers and back; live, under traffic, offline, by hand.

What a step took is read off the marks in the log: each state mark has its store time. Processor
time, memory and writes are of the broker, looked at every 50 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bench import Bench, Found, Load, Metric, delivery_faults
from benchmarks.fill_levels import LEVEL, fill_apache_store, fill_levels
from benchmarks.loads.ready import start_s
from benchmarks.watch import Watch, watching
from delayed_delivery.level_delays import DEFAULT_LEVELS, parse_levels
from duemq_common.topics import OWNERSHIP_TOPIC
from tests.interop.store_work import stored_queue
from tests.support.child_process import Child
from tests.support.duemq_server import ROOT
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.wait_until import Stopwatch, now_ms, until

MIB = 1 << 20
MESSAGES = 5_000_000
RESENT = 300_000
WARM = 2_000
TRAFFIC_PER_S, TRAFFIC_LEVEL = 5_000, 1
QUIET_S = 8  # of traffic before, between and after the two directions
SENDS_MAX = TRAFFIC_PER_S * 900
IDLE_S = 60
LINGER_MS = 2_000
COMMAND_S = 1_800
RUNTIME_INFO = 28


class Span(NamedTuple):
    """Time span, in ms since the epoch."""

    first_ms: int
    end_ms: int

    @property
    def seconds(self) -> float:
        """Length of the span in seconds, at least one clock tick."""
        return max(self.end_ms - self.first_ms, 1) / 1_000


class Done(NamedTuple):
    """Completed command: its time span, and the spans of its states by the log's state marks."""

    whole: Span
    states: dict[str, Span]
    mark_bytes: int
    moved: int


# -- live ---------------------------------------------------------------------------------------


def live(bench: Bench, *, messages: int) -> list[Metric]:
    """Drain a level of an idle broker, and roll the migration back."""
    count, _ = _filled(bench, messages)
    with watching(bench.server.broker) as watch:
        quiet = now_ms()
        there = migrate(bench.server, "start")
        back = migrate(bench.server, "rollback")
    _all_moved(there, count)
    _all_moved(back, count)
    drain, giving = there.states["draining"], back.states["rolling_back"]
    verify = there.states["verifying"]
    calm_bytes = watch.at(quiet).anonymous_bytes
    peak_bytes = watch.peak_bytes(there.whole.first_ms, back.whole.end_ms)
    return [
        *_rates("drain", count, drain, watch),
        *_rates("rollback", count, giving, watch),
        _seconds("start: whole command", there.whole.seconds),
        _seconds("start: plan", (drain.first_ms - there.whole.first_ms) / 1_000),
        _seconds("start: verify", verify.seconds),
        _seconds("rollback: whole command", back.whole.seconds),
        _less("timer log", _unit_bytes(bench.server) / count, "B/msg"),
        _less("marks", there.mark_bytes / count, "B/msg"),
        _less("pages made dirty, drain", _written(watch, drain) / count, "B/msg"),
        _less("pages made dirty, rollback", _written(watch, giving) / count, "B/msg"),
        _less("anonymous before", calm_bytes / MIB, "MiB"),
        _less("anonymous growth", (peak_bytes - calm_bytes) / MIB, "MiB"),
    ]


def under_traffic(bench: Bench, *, messages: int) -> list[Metric]:
    """Measure the lateness of short levels during a migration."""
    count, _ = _filled(bench, messages)
    topic, delay_ms = bench.topic(), _delay_ms(TRAFFIC_LEVEL)
    waiting = {"level_delay": delay_ms, "moments": True, "idle": IDLE_S}
    sending = {"level": TRAFFIC_LEVEL, "rate": TRAFFIC_PER_S, "conns": 2}
    with (
        bench.receiving(topic, SENDS_MAX, **waiting) as receiver,
        bench.sending(topic, SENDS_MAX, **sending) as sender,
        watching(bench.server.broker) as watch,
    ):
        begun = now_ms() + 2 * delay_ms
        _wait_until(begun + QUIET_S * 1_000)
        there = migrate(bench.server, "start")
        _wait_until(there.whole.end_ms + QUIET_S * 1_000)
        back = migrate(bench.server, "rollback")
        _wait_until(back.whole.end_ms + QUIET_S * 1_000)
        over = now_ms()
        sent = sender.stop()
        all_there = partial(_is_delivered, bench, topic, sent["sent"])
        until(all_there, seconds=IDLE_S, what="the last messages", poll_s=0.1)
        _wait_until(now_ms() + LINGER_MS)  # for late pulls and possible duplicates
        received = receiver.stop()
    _all_moved(there, count)
    _all_moved(back, count)
    late = np.array(received["moments"], np.int64)
    spans = {
        "before": Span(begun, there.whole.first_ms),
        "plan": Span(there.whole.first_ms, there.states["draining"].first_ms),
        "drain": there.states["draining"],
        "verify": there.states["verifying"],
        "after": Span(there.whole.end_ms, back.whole.first_ms),
        "rollback": back.states["rolling_back"],
        "after rollback": Span(back.whole.end_ms, over),
    }
    p99 = {name: quantile_ms(late, span, 0.99) for name, span in spans.items()}
    both = Span(there.whole.first_ms, back.whole.end_ms)
    best = max(p99["before"], 1.0)
    return [
        *(_less(f"late p99, {name}", value, "ms") for name, value in p99.items()),
        _less("late p99, drain / before", p99["drain"] / best, "ratio"),
        _less("late p99, rollback / before", p99["rollback"] / best, "ratio"),
        _less("late p99.9, before", quantile_ms(late, spans["before"], 0.999), "ms"),
        _less("late p99.9, both migrations", quantile_ms(late, both, 0.999), "ms"),
        _less("late max, drain", quantile_ms(late, spans["drain"], 1.0), "ms"),
        _less("late max, before", quantile_ms(late, spans["before"], 1.0), "ms"),
        *_rates("drain", count, spans["drain"], watch),
        *_rates("rollback", count, spans["rollback"], watch),
        _less("lost", sent["sent"] - received["distinct"], "messages"),
        *delivery_faults(received, sent)[1:],
    ]


def _is_delivered(bench: Bench, topic: str, count: int) -> bool:
    return bench.delivered(topic) >= count


def quantile_ms(late: Any, span: Span, share: float) -> float:
    """Return a quantile of the lateness of messages stored in a span, in ms.

    Args:
        late: (n, 3) i8: time of store, lateness in ms, number of messages.
    """
    inside = late[(late[:, 0] >= span.first_ms) & (late[:, 0] <= span.end_ms)]
    if not inside.size:
        raise RuntimeError(f"no traffic between {span.first_ms} and {span.end_ms}")
    inside = inside[np.argsort(inside[:, 1])]
    counts = np.cumsum(inside[:, 2])
    return float(inside[np.searchsorted(counts, share * counts[-1]), 1])


# -- offline ------------------------------------------------------------------------------------


def offline(home: Path, scale: float, *, messages: int) -> list[Metric]:
    """Drain a store in the state in which Apache RocketMQ 4.9.7 leaves it."""
    count = max(16, int(messages * scale))
    for name, size in (("warm", WARM), ("store", count)):
        fill_apache_store(home / name, size, "bench")
    os.sync()
    _offline(home / "warm", WARM)
    return _offline(home / "store", count)


def _offline(root: Path, count: int) -> list[Metric]:
    out = root.parent / f"{root.name}.json"
    words = ["offline", str(root), "--json"]
    child = Child("duemq migrate offline", _command(words), log_path=out, env=_env())
    stopwatch = Stopwatch()
    with watching(child) as watch:
        until(lambda: not child.running, seconds=COMMAND_S, what="the command", poll_s=0.01)
        seconds = stopwatch.seconds
    text = out.read_text()
    start = text.find("\n{") + 1 if not text.startswith("{") else 0
    if not text[start:].startswith("{"):
        raise RuntimeError(f"migrate offline: {text.strip()}")
    report = json.loads(text[start:])
    moved = sum(report["moved"].values())
    if moved != count:
        raise RuntimeError(f"{moved} of {count} messages moved")
    last = watch.samples[-1]
    return [
        _seconds("whole command", seconds),
        _seconds("whole command, cpu", last.cpu_s),
        Metric(name="rate", value=count / seconds, unit="msg/s", better="more"),
        _less("anonymous peak", watch.peak_bytes(0, last.at_ms) / MIB, "MiB"),
    ]


# -- by hand ------------------------------------------------------------------------------------


def by_hand(bench: Bench, *, messages: int) -> list[Metric]:
    """Pull a level's pending messages with a client and send them as timers, without migration."""
    count, topic = bench.count(messages), bench.topic()
    bench.warm_up_timers()
    bench.send(topic, count, level=LEVEL)
    before = _log_end(bench.server)
    with watching(bench.server.broker) as watch, bench.cpu() as cpu_s:
        first = watch.samples[0]
        report = bench.resend(LEVEL, _delay_ms(LEVEL), count)
    if report["sent"] != count:
        raise RuntimeError(f"{report['sent']} of {count} were sent again: {report}")
    grown = _log_end(bench.server) - before
    written = watch.samples[-1].written_bytes - first.written_bytes
    return [
        Metric(name="read and sent", value=report["per_second"], unit="msg/s", better="more"),
        Metric(name="cpu", value=count / cpu_s[0], unit="msg/s of cpu", better="more"),
        _less("commit log", grown / count, "B/msg"),
        _less("pages made dirty", written / count, "B/msg"),
    ]


# -- helpers ------------------------------------------------------------------------------------


def _filled(bench: Bench, messages: int) -> tuple[int, str]:
    """Send level messages and restart the broker; return the count and the topic."""
    count, topic = bench.count(messages), bench.topic()
    bench.server.stop_broker()
    fill_levels(bench.server.store_dir, count, topic)
    os.sync()
    start_s(bench)
    bench.warm_up()
    return count, topic


def migrate(server: Server, action: str, level: int = LEVEL) -> Done:
    """Run `duemq migrate` on a level to its end; return the time spans."""
    before = len(stored_queue(server.store_dir, OWNERSHIP_TOPIC, 0)) if action != "start" else 0
    first_ms = now_ms()
    words = [action, "--level", str(level), "--broker", server.broker_address, "--json"]
    done = subprocess.run(
        _command(words), capture_output=True, text=True, timeout=COMMAND_S, env=_env(), check=False
    )
    whole = Span(first_ms, now_ms())
    if done.returncode:
        raise RuntimeError(f"migrate {action}: {done.stderr.strip()} {done.stdout.strip()}")
    records = stored_queue(server.store_dir, OWNERSHIP_TOPIC, 0)[before:]
    marks = [json.loads(record.body) for record in records]
    moved = sum(mark["count"] for mark in marks if mark["kind"] in ("handover", "giveback"))
    into = [
        (record.store_ms, mark["target"])
        for record, mark in zip(records, marks, strict=True)
        if mark["kind"] == "state" and mark["source"] != mark["target"]
    ]
    ends = [at_ms for at_ms, _ in into[1:]] + [whole.end_ms]
    states = {name: Span(start_ms, end) for (start_ms, name), end in zip(into, ends, strict=True)}
    return Done(whole, states, sum(record.total_size for record in records), moved)


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "duemq", "migrate", *words]


def _env() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _all_moved(done: Done, count: int) -> None:
    if done.moved != count:
        raise RuntimeError(f"{done.moved} of {count} messages moved")


def _delay_ms(level: int) -> int:
    return int(parse_levels(DEFAULT_LEVELS)[level])


def _wait_until(time_ms: int) -> None:
    left_s = max(time_ms - now_ms(), 0) / 1_000
    until(lambda: now_ms() >= time_ms, seconds=left_s + 60, what="a fixed time")


def _unit_bytes(server: Server) -> int:
    """Return the bytes of the timer log, from the checkpoint of a stopped broker."""
    server.stop_broker()
    text = (server.store_dir / "config" / "duemq.timers.json").read_text()
    return int(json.loads(text)["check"]["lastTimerLogFlushPos"])


def _log_end(server: Server) -> int:
    response = call(server.broker_port, RUNTIME_INFO, {})
    answer: Found = json.loads(response.body)
    return int(answer["table"]["commitLogMaxOffset"])


def _written(watch: Watch, span: Span) -> int:
    return watch.at(span.end_ms).written_bytes - watch.at(span.first_ms).written_bytes


def _rates(name: str, count: int, span: Span, watch: Watch) -> list[Metric]:
    cpu_s = max(watch.cpu_s(*span), 1e-2)
    return [
        Metric(name=name, value=count / span.seconds, unit="msg/s", better="more"),
        Metric(name=f"{name}, cpu", value=count / cpu_s, unit="msg/s of cpu", better="more"),
    ]


def _seconds(name: str, value: float) -> Metric:
    return _less(name, value, "s")


def _less(name: str, value: float, unit: str) -> Metric:
    return Metric(name=name, value=value, unit=unit, better="less")


LOADS = [
    Load(
        name="migrate-live",
        what="5 M pending messages of a level become timers on an idle broker, and go back",
        run=partial(live, messages=MESSAGES),
        default=False,
        migration=True,
        ours_only=True,
    ),
    Load(
        name="migrate-traffic",
        what="the same with 5 k/s of short levels",
        run=partial(under_traffic, messages=MESSAGES),
        default=False,
        migration=True,
        ours_only=True,
    ),
    Load(
        name="migrate-offline",
        what="5 M pending messages in a stopped store of Apache's 4.9.7",
        alone=partial(offline, messages=MESSAGES),
        default=False,
        migration=True,
        ours_only=True,
    ),
    Load(
        name="migrate-by-hand",
        what="300 k pending messages read by a client and sent again as timers",
        run=partial(by_hand, messages=RESENT),
        default=False,
        migration=True,
        apaches_only=True,  # clients cannot pull a level of ours
    ),
]
