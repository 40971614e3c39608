"""DueMQ on stores of Apache's brokers, and Apache on them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.apache import NEWEST, Apache
from tests.interop.store_work import (
    KEYS,
    SCHEDULE_TOPIC,
    TOPIC,
    Bounds,
    Ledger,
    all_queues,
    bounds,
    cursors_of_running,
    verify,
)
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.server import Server
from tests.support.wait_until import until

PERSISTED_S = 120.0  # Apache writes its progress 10 s after its start


def fill(apache: Apache, ledger: Ledger, *, is_persisted: bool = False) -> Bounds:
    """Create a store with plain, delivered and pending messages; return the bounds of its queues.

    Args:
        is_persisted: Wait until Apache has written the progress of its deliveries.
    """
    apache.create_topic(TOPIC)
    ledger.send(apache, "plain", 200)
    ledger.send(apache, "soon", 30, level=1)
    ledger.wait(apache)
    if is_persisted:
        delivered = len(ledger.of_level(1))
        until(
            lambda: cursors_of_running(apache.store_dir).get(1) == delivered,
            seconds=PERSISTED_S,
            what="progress written",
        )
    ledger.send(apache, "overdue", 30, level=2)
    ledger.send(apache, "pending", 30, level=3)
    ledger.wait_queued(apache)
    return bounds(apache, all_queues())


def assert_same_place(before: Bounds, server: Server) -> None:
    """Check that level queues are unchanged, and that no other queue is shorter than before."""
    after = bounds(server, list(before))
    for (topic, queue_id), (first, last) in before.items():
        found_first, found_last = after[topic, queue_id]
        assert found_first == first
        assert found_last == last if topic == SCHEDULE_TOPIC else found_last >= last


@pytest.mark.parametrize("version", ["4.9.7", extended("5.3.3"), NEWEST])
def test_a_store_changes_from_apache_to_us_and_back(version: str, tmp_path: Path) -> None:
    ledger = Ledger()
    apache = Apache(version, tmp_path / "apache", keys=KEYS, with_namesrv=False)
    with apache:
        before = fill(apache, ledger)
        apache.stop()
    assert set(ledger.of_level(3)) <= set(ledger.undelivered(apache.store_dir))
    verify(apache.store_dir)
    ours = DueMQ(tmp_path / "ours", store_dir=apache.store_dir, keys=KEYS)
    with ours:
        assert_same_place(before, ours)
        ledger.send(ours, "ours", 20)
        ledger.send(ours, "oursoon", 8, level=1)
        ledger.wait(ours)
        ledger.check(ours)
        ledger.send(ours, "again", 8, level=2)
        before = bounds(ours, all_queues())
    verify(apache.store_dir)
    with apache:
        assert_same_place(before, apache)
        ledger.send(apache, "last", 8, level=1)
        ledger.wait(apache)
        ledger.check(apache)
        apache.stop()
    verify(apache.store_dir)


@pytest.mark.extended
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", NEWEST])
def test_we_deliver_pending_messages_after_apache_was_killed(version: str, tmp_path: Path) -> None:
    ledger = Ledger()
    with Apache(version, tmp_path / "apache", keys=KEYS, with_namesrv=False) as apache:
        before = fill(apache, ledger, is_persisted=True)
        apache.kill()
    may_repeat = ledger.undelivered(apache.store_dir)
    assert set(ledger.of_level(3)) <= set(may_repeat)
    assert not set(ledger.of_level(1)) & set(may_repeat)
    ours = DueMQ(tmp_path / "ours", store_dir=apache.store_dir, keys=KEYS)
    with ours:
        assert_same_place(before, ours)
        ledger.send(ours, "ours", 20)
        ledger.send(ours, "oursoon", 8, level=1)
        ledger.wait(ours)
        ledger.check(ours, may_repeat=may_repeat)
    verify(apache.store_dir)
