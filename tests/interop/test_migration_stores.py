"""Apache 5.3.3 on stores with levels migrated to timers, routed to timers, or rolled back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from duemq_common.clock import SystemClock
from tests.interop import timer_work
from tests.interop.apache import Apache
from tests.interop.store_work import KEYS, LEVEL_MS, TOPIC, Ledger, pull_topic, verify
from tests.support.duemq_server import DueMQ
from tests.support.migration_rig import MigrationRig
from tests.support.wait_until import now_ms, until
from timer_store.checkpoint.snapshot import CHECK_FILE, decode_check, write_check

VERSION = "5.3.3"
ALL_KEYS = timer_work.KEYS | KEYS | {"timerRollWindowSlot": "3600"}
PAST_S = 120.0
LATE_MS = 10_000  # after the due time or after Apache's start: its wheel takes up to two seconds


def opened(root: Path) -> MigrationRig:
    """Open a stopped broker's store as the offline migration does."""
    rig = MigrationRig(root, SystemClock(), levels=KEYS["messageDelayLevel"])
    rig.topics = [TOPIC]
    rig.store_changes = {
        "queue_file_bytes": int(KEYS["mappedFileSizeConsumeQueue"]),
        "index_slots_max": int(KEYS["maxHashSlotNum"]),
        "index_entries_max": int(KEYS["maxIndexNum"]),
    }
    return rig.open()


def fill(root: Path, ledger: Ledger) -> tuple[Path, dict[str, int]]:
    """Create a stopped store with pending levels; return its directory, and due times by body."""
    ours = DueMQ(root, keys=ALL_KEYS)
    with ours:
        ours.create_topic(TOPIC)
        ledger.send(ours, "soon", 5, level=1)
        ledger.wait(ours)
        ledger.send(ours, "overdue", 30, level=2)
        ledger.send(ours, "pending", 30, level=3)
    rig = opened(ours.store_dir)
    due = {}
    for level in (2, 3):
        for row in _level_rows(rig, level):
            body = rig.store.read_record(int(row["phys_offset"])).body.decode()
            due[body] = int(row["tags_code"])
    rig.close()
    return ours.store_dir, due


def _level_rows(rig: MigrationRig, level: int) -> list[object]:
    first, end = rig.queues.bounds(level)
    found: list[object] = []
    while first < end:
        units = rig.queues.units(level, first, end - first)
        found += list(units)
        first += int(units.size)
    return found


def check(store_dir: Path, home: Path, ledger: Ledger, due: dict[str, int]) -> None:
    """Check that Apache delivers each message once, not early and not much too late."""
    with Apache(VERSION, home, store_dir=store_dir, keys=ALL_KEYS) as apache:
        up_ms = now_ms()
        ledger.wait(apache)
        end_ms = max(due.values()) + 4_000
        until(lambda: now_ms() > end_ms, seconds=PAST_S, what="all due", poll_s=0.2)
        came = pull_topic(apache)
        counts = Counter(record.body.decode() for record in came)
        assert counts == dict.fromkeys(ledger.levels, 1)
        for record in came:
            body = record.body.decode()
            assert record.store_ms >= due.get(body, 0), f"{body} was delivered early"
            assert record.store_ms <= max(due.get(body, 0), up_ms) + LATE_MS, (
                f"{body} was delivered late"
            )
            assert record.properties["KEYS"] == body
        apache.stop()
    check_nothing_pending(store_dir, len(came))


def check_nothing_pending(store_dir: Path, count: int) -> None:
    """Check that DueMQ finds all deliveries of Apache, whatever its `timercheck` contains."""
    path = store_dir / "config" / CHECK_FILE
    found = decode_check(path.read_bytes())
    assert found is not None
    write_check(path, found._replace(read_ms=1, queue_offset=0, counter=99))
    rig = opened(store_dir)
    assert (rig.timers.counts.total, len(rig.delivered())) == (0, count)
    rig.close()


@pytest.mark.extended
def test_apache_delivers_drained_and_routed_messages(tmp_path: Path) -> None:
    ledger = Ledger()
    store_dir, due = fill(tmp_path / "ours", ledger)
    rig = opened(store_dir)
    while rig.drain.step(3, 20).processed:
        pass
    rig.drain.step(2, 10)
    rig.route(3)
    for number in range(12):
        body = f"routed-{number}"
        batch = rig.send([(3, TOPIC, number % 4, body.encode())], KEYS=body, UNIQ_KEY=body)
        due[body] = int(batch.rows[0]["store_ms"]) + LEVEL_MS[3]
        ledger.levels[body] = 3
    assert rig.timers.counts.total >= 42
    rig.close()
    verify(store_dir)
    check(store_dir, tmp_path / "apache", ledger, due)


@pytest.mark.extended
def test_apache_delivers_returned_messages(tmp_path: Path) -> None:
    ledger = Ledger()
    store_dir, due = fill(tmp_path / "ours", ledger)
    rig = opened(store_dir)
    rig.route(3)
    for number in range(12):
        body = f"routed-{number}"
        batch = rig.send([(3, TOPIC, number % 4, body.encode())], KEYS=body, UNIQ_KEY=body)
        due[body] = int(batch.rows[0]["store_ms"]) + LEVEL_MS[3]
        ledger.levels[body] = 3
    while rig.drain.step(3, 20).processed:
        pass
    rig.close()  # writes the units to the disk
    rig = opened(store_dir)
    assert rig.timers.counts.total == 42
    while rig.return_units.step(3, 20).processed:
        pass
    while not rig.routed_return.is_finished(3):
        rig.routed_return.step(3, 5)
    assert rig.timers.counts.total == 0
    assert rig.level_pending >= 42
    rig.close()
    verify(store_dir)
    check(store_dir, tmp_path / "apache", ledger, due)
