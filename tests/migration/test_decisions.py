"""Decisions on transferred messages, which are timers and no longer belong to their level."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from message_store.log.batch import PutBatch
from tests.migration.steps.test_drain import fill, seen
from tests.support.failing_disk import Disk
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message
from timer_store.pending.listing import list_by_key
from timer_store.pending.walk import Query


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = MigrationRig(tmp_path).open()
    for number in range(20):
        keys = {"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"}
        rig.send([(4, "TU"[number % 2], 0, b"%d" % number)], **keys)
    rig.drain.step(4, 10)
    yield rig
    rig.close()


def test_each_service_finds_its_own_messages(rig: MigrationRig) -> None:
    keys = [f"u{number}" for number in range(20)]
    timers = rig.pending_timers.by_key("", keys, unique=True)
    levels = rig.pending_levels.by_key("", keys, unique=True)
    assert timers.name_index.tolist() == list(range(10))
    assert levels.name_index.tolist() == list(range(10, 20))
    assert (timers.verdicts[10:] == Verdict.UNKNOWN).all()
    assert (levels.verdicts[:10] == Verdict.UNKNOWN).all()
    found = [
        rig.pending_timers.pieces("T"),
        rig.pending_levels.pieces("T"),
    ]
    assert [sum(part.offsets.size for part in parts) for parts in found] == [5, 5]
    assert rig.pending_timers.pieces("T", 0, 5) == []


def test_a_list_by_key_contains_transferred_messages(rig: MigrationRig) -> None:
    for key in ("k3", "u3"):
        [found] = asyncio.run(list_by_key(rig.timers, Query(key=key))).timers
        assert (found["keys"], found["unique_key"], found["topic"]) == ("k3", "u3", "U")
        assert found["due_ms"] == rig.queues.units(4, 3, 1)[0]["tags_code"]
    assert not asyncio.run(list_by_key(rig.timers, Query(key="k12"))).timers  # still with its level
    offset = np.array([found["commit_log_offset"]])
    assert rig.pending_timers.cancel(offset).verdicts.tolist() == [Verdict.DONE]
    assert not asyncio.run(list_by_key(rig.timers, Query(key="k3"))).timers


def test_the_last_unit_of_the_timer_log_is_no_timer(tmp_path: Path) -> None:
    """It refers to the last record of the timers' queue, for Apache's broker (`queue_end`)."""
    rig = MigrationRig(tmp_path, precision_ms=100).open()
    fill(rig, 10, (4,))
    batch = PutBatch(1)
    times = {"TIMER_DELIVER_MS": str(rig.clock.now_ms() + 1)}
    add_message(rig.store, batch, "T", 0, b"near", properties=times)
    offset = np.array([int(rig.put(batch).rows[0]["phys_offset"])])
    rig.work()
    rig.drain.step(4, 10)
    rig.persist_timers(last=True)
    rig.advance(1)
    assert [record.body for record in rig.delivered()] == [b"near"]
    assert rig.pending_timers.cancel(offset).verdicts.tolist() == [Verdict.DELIVERED]
    assert rig.timers.counts.total == 10
    rig.close()


def test_cancelled_moved_fired(rig: MigrationRig) -> None:
    timers, now_ms = rig.pending_timers, rig.clock.now_ms()
    found = timers.by_key("", ["k0", "k1", "k2"], unique=False)
    assert timers.cancel(found.offsets[:1]).verdicts.tolist() == [Verdict.DONE]
    later = np.array([now_ms + 500])
    assert timers.move(found.offsets[1:2], later, rig.run_hooks).verdicts.tolist() == [Verdict.DONE]
    assert timers.fire(found.offsets[2:]).verdicts.tolist() == [Verdict.DONE]
    again = timers.by_key("", ["u0", "u1", "u2"], unique=True)
    assert again.verdicts.tolist() == [Verdict.CANCELLED, Verdict.DONE, Verdict.DELIVERED]
    rig.advance(500)
    came = {record.body: record for record in rig.delivered()}
    assert came.keys() == {b"1", b"2"}
    assert came[b"1"].store_ms == now_ms + 500
    assert "DELAY" not in came[b"1"].properties  # as after a move of a level message
    assert "DELAy" not in came[b"1"].properties
    assert came[b"2"].properties["DELAY"] == "4"
    rig.advance(60_000)
    assert len(rig.delivered()) == 19
    assert (rig.level_pending, rig.timers.counts.total) == (0, 0)


def test_settled_messages_are_not_transferred(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 30, (4,))
    rows = [rig.queues.units(4, number, 1)[0] for number in (3, 4, 9)]
    offsets = np.array([row["phys_offset"] for row in rows])
    assert (rig.pending_levels.cancel(offsets).verdicts == Verdict.DONE).all()
    assert rig.drain.step(4, 20).moved == 17
    assert rig.timers.counts.total == 17
    rig.kill()
    rig.open()
    assert (rig.level_pending, rig.timers.counts.total) == (10, 17)
    assert rig.return_units.step(4, 100).moved == 17
    assert rig.verify(4).is_right
    rig.advance(61_000)
    assert len(rig.delivered()) == len(due) - 3
    rig.close()


def test_a_full_disk_delays_the_timers_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 40, (4,))
    disk = Disk(monkeypatch, tmp_path)
    disk.full = ("timerlog",)
    assert rig.drain.step(4, 20).moved == 20  # the record is in the log, so the timers own them
    assert (rig.level_pending, rig.timers.counts.total) == (20, 0)
    assert "cannot be written" in rig.drain.step(4, 20).blocked_by
    offset = int(rig.queues.units(4, 5, 1)[0]["phys_offset"])
    for port in (rig.pending_timers, rig.pending_levels):  # called in any order
        assert port.promised(np.array([offset, 1 << 40])).tolist() == [due[b"4/5"], -1]
    found = rig.pending_timers.by_offset(np.array([offset]))
    assert rig.pending_timers.cancel(found.offsets).verdicts.tolist() == [Verdict.DONE]
    rig.persist_timers()
    disk.full = ()
    rig.kill()
    rig.open()
    assert (rig.level_pending, rig.timers.counts.total) == (20, 19)
    rig.advance(61_000)
    assert len(rig.delivered()) == len(due) - 1
    rig.close()


def test_a_compacted_copy_can_return_to_its_level(tmp_path: Path) -> None:
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    due = fill(rig, 12, (4,))
    fill(plain, 12, (4,))
    rig.drain.step(4, 12)
    rows, _ = rig.timers.transfers.owned_rows(4, 0, 12)
    places = rig.timers.decisions.locate(rows)
    timed, taken = rig.timers.state.copies.put(rows, rig.clock.now_ms())
    assert taken.all()
    rig.timers.decisions.settle(timed, places)
    assert rig.timers.counts.total == 12
    rig.kill()
    rig.open()
    assert (rig.level_pending, rig.timers.counts.total) == (0, 12)
    assert rig.return_units.step(4, 100).moved == 0  # its original record is not pending
    assert rig.routed_return.step(4, 5).moved == 5
    assert (rig.level_pending, rig.timers.counts.total) == (5, 7)
    for one in (rig, plain):
        one.advance(61_000)
    assert {r.body: r.store_ms for r in rig.delivered()} == due
    assert seen(rig.delivered()) == seen(plain.delivered())
    for one in (rig, plain):
        one.close()
