"""State of a store: owners of level messages, and whether their time has passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.layout import SCANNED
from spark_reconciliation.audit.unit_times import NONE, QueueFiles, UnitTimes
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import plan_log
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.store_state import (
    AHEAD,
    PASSED,
    UNKNOWN,
    OwnedRange,
    Progress,
    read_progress,
)
from tests.support.migration_rig import MigrationRig
from tests.support.read_tables import read_rows

HOUR_MS = 3_600_000
LEVEL, QUEUE = 4, 3  # "1m"
BLOCKED_MS = 5_000


def passed(root: Path) -> list[int | None]:
    """Return `passed` of the level's messages in the order of their queue."""
    rows = read_rows(root, "messages", "role", "queue_offset", "queue_id", "passed")
    mine = [row for row in rows if row["role"] == Role.LEVEL and row["queue_id"] == QUEUE]
    return [row["passed"] for row in sorted(mine, key=lambda row: row["queue_offset"])]


def rig_with(root: Path, count: int) -> MigrationRig:
    rig = MigrationRig(root).open()
    for n in range(count):
        rig.send([(LEVEL, "T", 0, b"body")], UNIQ_KEY=f"key-{n}")
    return rig


def test_delivered_messages_are_passed(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 3)
    rig.advance(61_000)
    rig.send([(LEVEL, "T", 0, b"later")] * 2)
    rig.close()
    assert passed(tmp_path) == [1, 1, 1, 0, 0]


def test_without_an_offset_nothing_is_known(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 2)
    rig.close()
    for path in (tmp_path / "config").glob("delayOffset.json*"):
        path.unlink()
    assert passed(tmp_path) == [None, None]


def test_the_levels_offset_does_not_apply_to_messages_of_timers(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 6)
    assert rig.drain.step(LEVEL, 4, migration="run").moved == 4
    rig.work()
    rig.close()
    assert passed(tmp_path) == [0] * 6


def test_messages_transferred_late_are_still_pending(tmp_path: Path) -> None:
    """Its own slot was delivered before the transfer, so it is in the current slot."""
    rig = rig_with(tmp_path, 4)
    rig.work()
    rig.close()
    now_ms = rig.clock.now_ms() + HOUR_MS
    owned = {QUEUE: (OwnedRange(0, 4, True),)}
    due_ms = np.full(4, now_ms - HOUR_MS + 60_000)
    offsets, at = np.arange(4), np.arange(4) * 100
    for read_ms, late, reported in (
        (None, [], [UNKNOWN] * 4),
        (now_ms, [100, 300], [PASSED, AHEAD, PASSED, AHEAD]),
        (int(due_ms[0]) - 1, [], [AHEAD] * 4),
        (int(due_ms[0]), [], [PASSED] * 4),
    ):
        progress = Progress(0, {QUEUE: ((0, 4),)}, owned, {}, read_ms, 0, np.array(late, int))
        assert progress.of_level(QUEUE, offsets, due_ms, at).tolist() == reported


@pytest.mark.parametrize("taken", [False, True])
def test_timers_enqueued_late_are_still_pending(tmp_path: Path, taken: bool) -> None:
    """Their own slot was delivered before they were enqueued, so they are in the current slot."""
    rig = MigrationRig(tmp_path, stop_enqueue=not taken).open()
    rig.send([(0, "T", 0, b"first")], TIMER_DELAY_MS="900000")
    rig.work()
    rig.advance(BLOCKED_MS)
    stored_ms = rig.clock.now_ms()
    rig.clock.set_ms(stored_ms - BLOCKED_MS)  # messages stored while the broker was blocked
    rig.send([(0, "T", 0, b"late")] * 3, TIMER_DELAY_MS="30")
    rig.clock.set_ms(stored_ms)
    assert rig.persist_timers(last=True)
    rig.kill()
    rows = read_rows(tmp_path, "messages", "role", "passed", "out_ms")
    read_ms = rig.timers.position.read_ms
    reported = [
        (row["out_ms"] < read_ms, row["passed"]) for row in rows if row["role"] == Role.TIMER
    ]
    assert reported == [(False, 0), *[(True, 0)] * 3]


def test_timers_removed_from_the_timer_log_are_passed(tmp_path: Path) -> None:
    """As with an Apache broker that synced the read time before the messages."""
    rig = MigrationRig(tmp_path).open()
    rig.send([(0, "T", 0, b"body")] * 2, TIMER_DELAY_MS="30")
    rig.work()
    rig.advance(BLOCKED_MS)
    rig.close()
    rows = read_rows(tmp_path, "messages", "role", "passed")
    assert [row["passed"] for row in rows if row["role"] == Role.TIMER] == [1, 1]


def test_returned_messages_are_pending_with_their_level(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 6)
    assert rig.drain.step(LEVEL, 4, migration="run").moved == 4
    rig.work()
    assert rig.persist_levels()  # contains the transfer but not the return
    before = (tmp_path / "config" / "delayOffset.json").read_bytes()
    rig.return_units.step(LEVEL, 100, migration="run")
    rig.work()
    rig.close()
    (tmp_path / "config" / "delayOffset.json").write_bytes(before)
    root = Root(str(tmp_path))
    progress, findings = read_progress(0, root, plan_log(root))
    assert not findings
    assert not any(progress.owned.values())
    assert passed(tmp_path) == [0] * 6


@pytest.mark.parametrize("name", ["delayOffset.json", "duemq.timers.json"])
def test_a_malformed_json_file_is_a_finding(tmp_path: Path, name: str) -> None:
    rig = rig_with(tmp_path, 1)
    rig.close()
    for path in (tmp_path / "config").glob(f"{name}*"):
        path.write_text("{ no")
    reported = [row for row in read_rows(tmp_path, "findings") if row["file"].endswith(name)]
    assert [row["kind"] for row in reported] == ["unreadable"]


def test_units_contain_the_due_times(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 3)
    promised = [row["due_ms"] for row in read_rows(tmp_path, "schedule")]
    rig.close()
    rows = read_rows(tmp_path, "messages", "role", "unit_ms", "queue_offset", "phys_offset")
    assert [row["unit_ms"] for row in rows if row["role"] == Role.LEVEL] == promised
    times = UnitTimes(QueueFiles(Root(str(tmp_path))), "SCHEDULE_TOPIC_XXXX")
    records = np.zeros(5, SCANNED)
    records["queue_id"], records["queue_offset"] = [QUEUE, QUEUE, 9, QUEUE, QUEUE], [0, 99, 0, 0, 0]
    size = read_rows(tmp_path, "schedule")[0]["record_size"]
    records["phys_offset"], records["record_size"] = rows[0]["phys_offset"], size
    records["phys_offset"][3] += 1  # another record
    records["record_size"][4] += 1
    assert times.find(records).tolist() == [promised[0], NONE, NONE, NONE, NONE]


def test_a_unit_without_a_record_is_reported(tmp_path: Path) -> None:
    rig = rig_with(tmp_path, 3)
    rig.close()
    units = read_rows(tmp_path, "schedule")
    log = sorted((tmp_path / "commitlog").iterdir())[0]
    data = bytearray(log.read_bytes())
    data[units[1]["phys_offset"] + 4] ^= 0xFF  # its magic code
    log.write_bytes(bytes(data))
    rows = read_rows(tmp_path, "consume_queue", topics="SCHEDULE_TOPIC_XXXX")
    assert [row["fault"] is None for row in rows] == [True, False, True]
    assert rows[1]["fault"] == f"there is no record at log offset {units[1]['phys_offset']}"


def test_an_unreadable_queue_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig_with(tmp_path, 3)
    rig.close()
    read_file = Root.read

    def refuse(self: Root, path: str, start: int, end: int) -> Any:
        if path.startswith("consumequeue/SCHEDULE_TOPIC_XXXX"):
            raise OSError("input/output error")
        return read_file(self, path, start, end)

    monkeypatch.setattr(Root, "read", refuse)
    (row,) = read_rows(tmp_path, "consume_queue", topics="SCHEDULE_TOPIC_XXXX")
    assert (row["damage"], row["queue_offset"], row["phys_offset"]) == ("unreadable", 0, None)
    assert (
        read_rows(tmp_path, "messages", "unit_ms", roles=str(Role.LEVEL)) == [{"unit_ms": None}] * 3
    )
