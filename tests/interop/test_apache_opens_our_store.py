"""Apache's brokers on a DueMQ store with pending messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from duemq_common import json_dialect
from duemq_common.topics import TABLES_TOPIC
from tests.interop.apache import NEWEST, Apache
from tests.interop.store_work import KEYS, TOPIC, Ledger, all_queues, bounds, verify
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended

End = Callable[[DueMQ], None]


def fill(ours: DueMQ, ledger: Ledger) -> None:
    """Create a store with plain, delivered and pending messages."""
    ours.create_topic(TOPIC)
    ledger.send(ours, "plain", 200)
    ledger.send(ours, "soon", 30, level=1)
    ledger.wait(ours)
    ledger.send(ours, "overdue", 30, level=2)
    ledger.send(ours, "pending", 30, level=3)


def end_in_order(ours: DueMQ) -> None:
    ours.stop()


def end_by_kill(ours: DueMQ) -> None:
    """Kill the broker, start it again, stop it."""
    ours.kill()
    ours.start()
    ours.stop()


def end_by_kill_only(ours: DueMQ) -> None:
    ours.kill()


@pytest.mark.parametrize(
    ("version", "end"),
    [
        extended("4.9.7", end_in_order),
        extended("4.9.7", end_by_kill),
        extended("4.9.7", end_by_kill_only),
        extended("5.3.3", end_in_order),
        extended("5.3.3", end_by_kill),
        extended("5.3.3", end_by_kill_only),
        extended(NEWEST, end_in_order),
        (NEWEST, end_by_kill),
        extended(NEWEST, end_by_kill_only),
    ],
)
def test_apache_delivers_pending_messages_of_our_store(
    version: str, end: End, tmp_path: Path
) -> None:
    ledger = Ledger()
    ours = DueMQ(tmp_path / "ours", keys=KEYS)
    with ours:
        fill(ours, ledger)
        before = bounds(ours, all_queues())
        end(ours)
    undelivered = ledger.undelivered(ours.store_dir)
    assert set(ledger.of_level(3)) <= set(undelivered)
    verify(ours.store_dir)
    assert len(list((ours.store_dir / "commitlog").glob("0*"))) > 1
    home, store_dir = tmp_path / "apache", ours.store_dir
    with Apache(version, home, store_dir=store_dir, keys=KEYS, with_namesrv=False) as apache:
        after = bounds(apache, all_queues())
        for place, (first, last) in before.items():
            assert after[place][0] == first
            assert after[place][1] >= last
        ledger.send(apache, "new", 20)
        ledger.send(apache, "newlevel", 8, level=1)
        ledger.wait(apache)
        ledger.check(apache, may_repeat=undelivered if end is end_by_kill_only else ())
        apache.stop()
    verify(ours.store_dir)


@pytest.mark.extended
def test_apache_serves_a_store_with_a_table_journal(tmp_path: Path) -> None:
    ledger = Ledger()
    copied = {"brokerRole": "SYNC_MASTER", "enableAutoInSyncReplicas": "true"}
    ours = DueMQ(tmp_path / "ours", keys=KEYS | copied)
    with ours:
        fill(ours, ledger)
        end_in_order(ours)
    assert (ours.store_dir / "consumequeue" / TABLES_TOPIC / "0").is_dir()
    verify(ours.store_dir)
    with Apache("5.3.3", tmp_path / "apache", store_dir=ours.store_dir, keys=KEYS) as apache:
        apache.create_topic("OfApache")
        ledger.send(apache, "new", 20)
        ledger.wait(apache)
        ledger.check(apache)
        apache.stop()
    verify(ours.store_dir)
    with DueMQ(tmp_path / "ours", keys=KEYS | copied) as again:
        again.create_topic("Last")
        names = json_dialect.loads((again.store_dir / "config" / "topics.json").read_text())
        assert {TOPIC, TABLES_TOPIC, "OfApache", "Last"} <= names["topicConfigTable"].keys()
