"""Stores with timers used by Apache 5.3.3 and DueMQ in turn: each timer is delivered once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from duemq_common.codes import RequestCode
from tests.interop.apache import NEWEST, Apache
from tests.interop.store_work import TOPIC, Ledger
from tests.interop.timer_work import KEYS, TimerLedger
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.wait_until import until

VERSION = "5.3.3"
KINDS = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
FILLER = "x" * 2_000
# An Apache broker that is not killed writes its progress at its end.
STOPPED_KEYS = {key: value for key, value in KEYS.items() if key != "timerFlushIntervalMs"}
End = Callable[[Server], None]


def fill(server: Server, ledger: TimerLedger) -> None:
    """Create a store with delivered, pending (some that roll) and recalled timers."""
    server.create_topic(TOPIC)
    ledger.send(server, "soon", 12, delay_ms=1_500, kind="TIMER_DELIVER_MS")
    for kind in KINDS:
        ledger.send(server, f"late-{kind}", 12, delay_ms=24_000, kind=kind)
    ledger.send(server, "taken", 12, delay_ms=25_000, kind="TIMER_DELIVER_MS")
    ledger.send(server, "next", 40, delay_ms=9_000, kind="TIMER_DELIVER_MS")
    ledger.recall(server, ledger.named("taken"))
    ledger.wait(server, ledger.named("soon"))


def end_in_order(server: Server) -> None:
    server.stop()


def end_by_kill(server: Server) -> None:
    server.kill()


def end_by_kill_while_delivering(server: Server) -> None:
    """Kill the broker while it delivers the timers of a second."""
    ledger = TimerLedger()
    ledger.wait(server, ["next-0"])
    server.kill()


@pytest.mark.parametrize(
    ("version", "end"),
    [
        extended(VERSION, end_in_order),
        extended(VERSION, end_by_kill),
        extended(VERSION, end_by_kill_while_delivering),
        (NEWEST, end_in_order),
    ],
)
def test_we_deliver_pending_messages_of_apaches_store(
    version: str, end: End, tmp_path: Path
) -> None:
    ledger, keys = TimerLedger(), KEYS if end is not end_in_order else STOPPED_KEYS
    with Apache(version, tmp_path / "apache", keys=keys, with_namesrv=False) as apache:
        fill(apache, ledger)
        end(apache)
        apache.stop()
    ours = DueMQ(tmp_path / "ours", store_dir=apache.store_dir, keys=KEYS)
    with ours:
        ledger.send(ours, "ours", 8, delay_ms=1_000, kind="TIMER_DELAY_MS")
        ledger.wait(ours)
        ledger.wait_past()
        ledger.check(ours)


@pytest.mark.parametrize(
    ("version", "end"),
    [
        extended(VERSION, end_in_order),
        extended(VERSION, end_by_kill),
        (NEWEST, end_in_order),
    ],
)
def test_apache_delivers_pending_messages_of_our_store(
    version: str, end: End, tmp_path: Path
) -> None:
    ledger = TimerLedger()
    ours = DueMQ(tmp_path / "ours", keys=KEYS)
    with ours:
        fill(ours, ledger)
        end(ours)
        if end is end_by_kill:
            ours.start()
            ours.stop()
    home, store_dir, keys = tmp_path / "apache", ours.store_dir, STOPPED_KEYS
    with Apache(version, home, store_dir=store_dir, keys=keys, with_namesrv=False) as apache:
        ledger.send(apache, "apache", 8, delay_ms=2_000, kind="TIMER_DELIVER_MS")
        ledger.wait(apache)
        ledger.wait_past()
        ledger.check(apache)


@pytest.mark.extended
def test_apache_repeats_no_delivery_of_the_second_in_which_we_stopped(tmp_path: Path) -> None:
    """Some of its timers are delivered, others were rolled from a loaded slot."""
    ledger = TimerLedger()
    ours = DueMQ(tmp_path / "ours", keys=KEYS)
    with ours:
        ours.create_topic(TOPIC)
        for second in range(5, 15):  # 120 timers, 7 ms apart: 10 s without a gap
            ledger.send(ours, f"in-{second}", 120, delay_ms=second * 1_000, kind="TIMER_DELIVER_MS")
        ledger.wait(ours, ["in-6-60"])
        assert len(ledger.delivered_counts(ours)) < len(ledger.expected), (
            "all timers were delivered before the stop"
        )
    with Apache(VERSION, tmp_path / "apache", store_dir=ours.store_dir, keys=KEYS) as apache:
        ledger.wait(apache)
        ledger.wait_past()
        ledger.check(apache)


@pytest.mark.extended
def test_a_store_with_timers_changes_its_broker_three_times(tmp_path: Path) -> None:
    ledger = TimerLedger()
    apache = Apache(VERSION, tmp_path / "apache", keys=KEYS)
    with apache:
        fill(apache, ledger)
        apache.stop()
    ours = DueMQ(tmp_path / "ours", store_dir=apache.store_dir, keys=KEYS)
    with ours:
        ledger.send(ours, "ours", 12, delay_ms=30_000, kind="TIMER_DELIVER_MS")
        ledger.send(ours, "ourstaken", 6, delay_ms=31_000, kind="TIMER_DELIVER_MS")
        ledger.recall(ours, ledger.named("ourstaken"))
    with apache:
        ledger.send(apache, "again", 8, delay_ms=33_000, kind="TIMER_DELAY_MS")
        apache.stop()
    with ours:
        ledger.wait(ours)
        ledger.wait_past()
        ledger.check(ours)


@pytest.mark.extended
def test_apache_delivers_timers_that_compaction_copied(tmp_path: Path) -> None:
    """Half of the pending timers were copied, and the files of their old records are removed."""
    ledger = TimerLedger()
    keys = KEYS | {"cleanResourceInterval": "1000"}
    ours = DueMQ(tmp_path / "ours", keys=keys)
    with ours:
        ours.create_topic(TOPIC)
        for kind in KINDS:
            ledger.send(ours, f"old-{kind}", 6, delay_ms=45_000, kind=kind)
        ledger.send(ours, "taken", 6, delay_ms=46_000, kind="TIMER_DELIVER_MS")
        Ledger().send(ours, FILLER, 40)
        ledger.send(ours, "young", 6, delay_ms=40_000, kind="TIMER_DELAY_MS")
        first = compact(ours)
        ledger.recall(ours, ledger.named("taken"))
        until(lambda: log_files(ours)[0] > first, seconds=120, what="files gone", poll_s=0.2)
    with Apache(VERSION, tmp_path / "apache", store_dir=ours.store_dir, keys=keys) as apache:
        ledger.send(apache, "apache", 8, delay_ms=2_000, kind="TIMER_DELIVER_MS")
        ledger.wait(apache)
        ledger.wait_past()
        came = ledger.delivered_counts(apache)
        mine = {body: count for body, count in came.items() if FILLER not in body}
        assert mine == dict.fromkeys(ledger.expected, 1)


def log_files(server: Server) -> list[int]:
    """Return the first offsets of the files of the commit log."""
    return sorted(int(path.name) for path in (server.store_dir / "commitlog").iterdir())


def compact(server: DueMQ) -> int:
    """Run compaction of old files; return the offset of the first file before it."""
    files = log_files(server)
    for number in files[:-1]:
        os.utime(server.store_dir / "commitlog" / f"{number:020d}", (0, 0))
    response = call(server.broker_port, RequestCode.COMPACT_TIMERS, {})
    plan = json.loads(response.body)
    assert plan["started"], plan
    assert plan["messages"] == 24
    return files[0]
