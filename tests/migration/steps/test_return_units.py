"""Rollback: transferred messages return in place, routed ones by a copy, with their due times."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import Return, Route
from duemq_common.codes import ResponseCode
from duemq_common.topics import QUARANTINE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.layout import PRE_BLANK_SIZE
from message_store.log.batch import PutBatch
from message_store.log.block_sums import BlockSums
from schedule_service.put_hook import STALE_PROPERTIES
from tests.migration.steps.test_drain import fill, seen
from tests.support.bad_records import damage
from tests.support.indexed_files import forbid_visits
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message
from timer_store.names import DUE_NAMES, STALE_NAMES


def check(rig: MigrationRig, due: dict[bytes, int]) -> None:
    """Check that every message was delivered once, at its due time."""
    assert Counter(r.body for r in rig.delivered()) == Counter(due.keys())
    assert {r.body: r.store_ms for r in rig.delivered()} == due


def pending(rig: MigrationRig) -> tuple[int, int]:
    return rig.level_pending, rig.timers.counts.total


def test_returned_messages_are_delivered_by_their_level(tmp_path: Path) -> None:
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    due = fill(rig, 200, (4, 5))
    fill(plain, 200, (4, 5))
    for level in (4, 5):
        while rig.drain.step(level, 30).moved:
            pass
    assert pending(rig) == (0, 200)
    assert [rig.return_units.step(4, 40).moved for _ in range(4)] == [40, 40, 20, 0]
    assert pending(rig) == (100, 100)
    for one in (rig, plain):
        one.advance(130_000)
    check(rig, due)
    assert seen(rig.delivered()) == seen(plain.delivered())


def test_transfers_and_returns_visit_only_files_of_their_records(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 400, (4,))
    with forbid_visits(rig.store):
        while rig.drain.step(4, 1_000).moved:
            pass
        assert pending(rig) == (0, 400)
        assert rig.return_units.step(4, 1_000).moved == 400
    rig.advance(100_000)
    check(rig, due)


def test_repeated_migrations_and_rollbacks_with_kills(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 60, (4,))
    for turn in range(4):
        while not rig.drain.step(4, 25).blocked_by and rig.level_pending:
            pass
        assert pending(rig) == (0, 60)
        while rig.return_units.remaining(4):
            rig.return_units.step(4, 25)
        assert pending(rig) == (60, 0)
        if turn % 2:
            rig.kill()
            rig = MigrationRig(tmp_path, rig.clock).open()
            assert pending(rig) == (60, 0)
        else:
            assert "checkpoint" in rig.drain.step(4, 25).blocked_by
            assert rig.persist_timers()
    rig.advance(61_000)
    check(rig, due)


def test_messages_that_became_due_do_not_return(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 100, (4,))
    rig.drain.step(4, 80)
    rig.advance(59_993)  # some were delivered, a few are staged
    left = rig.timers.counts.total
    assert 0 < left < 50
    assert rig.return_units.step(4, 1_000).moved == left
    assert not rig.return_units.remaining(4)
    rig.advance(5_000)
    check(rig, due)


def refuse(*_: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_disk_that_keeps_the_letters_of_returned_messages_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The record of the return is in the log before: both owners apply it all the same."""
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    due = fill(rig, 40, (4,))
    fill(plain, 40, (4,))
    rig.drain.step(4, 40)
    monkeypatch.setattr(BlockSums, "rewriting", refuse)
    assert rig.return_units.step(4, 30).moved == 30
    assert pending(rig) == (30, 10)
    getattr(rig, end)()
    rig.open()
    assert pending(rig) == (30, 10)
    for one in (rig, plain):
        one.advance(61_000)
    check(rig, due)
    assert seen(rig.delivered()) == seen(plain.delivered())


def test_a_disk_that_keeps_the_letters_of_transferred_messages_delays_their_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name DELAY, an Apache broker would delay the messages once more."""
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 40, (4,))
    with monkeypatch.context() as disk:
        disk.setattr(BlockSums, "rewriting", refuse)
        assert rig.drain.step(4, 20).moved == 20
        assert pending(rig) == (20, 0)
        assert "cannot be changed" in rig.drain.step(4, 20).blocked_by
        rig.kill()
        rig.open()
        assert pending(rig) == (20, 0)
    rig.work()
    assert pending(rig) == (20, 20)
    rig.advance(61_000)
    check(rig, due)


def test_routed_messages_equal_those_of_the_level(tmp_path: Path) -> None:
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    rig.route(4)
    due = fill(rig, 100, (3, 4))
    fill(plain, 100, (3, 4))
    assert pending(rig) == (50, 50)
    for one in (rig, plain):
        one.advance(70_000)
    check(rig, due)
    assert seen(rig.delivered()) == seen(plain.delivered())


@pytest.mark.parametrize("lose", [(), ("consumequeue",), ("timerlog", "timerwheel")])
def test_routed_messages_return_with_their_due_times(lose: tuple[str, ...], tmp_path: Path) -> None:
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    rig.route(4)
    due = fill(rig, 100, (4, 5))
    fill(plain, 100, (4, 5))
    rig.advance(30_000)
    assert rig.routed_return.step(4, 30).moved == 30
    late = rig.send([(4, "T", 0, b"late")])  # still a timer
    assert pending(rig) == (80, 21)
    due[b"late"] = int(late.rows[0]["store_ms"]) + 60_000
    assert [rig.routed_return.step(4, 30).moved for _ in range(2)] == [21, 0]
    assert rig.routed_return.is_finished(4)
    assert pending(rig) == (101, 0)
    rig.send([(4, "T", 0, b"later")])
    due[b"later"] = rig.clock.now_ms() + 60_000
    assert pending(rig) == (102, 0)
    if lose:
        rig.kill()
        for name in lose:
            shutil.rmtree(rig.root / name) if (rig.root / name).is_dir() else (
                rig.root / name
            ).unlink()
        rig = MigrationRig(rig.root, rig.clock).open()
        assert pending(rig) == (102, 0)
    rig.advance(100_000)
    check(rig, due)
    plain.advance(130_000)
    mine = {b: v for b, v in seen(rig.delivered()).items() if b not in (b"late", b"later")}
    assert mine == seen(plain.delivered())


def test_routed_messages_return_from_all_files_of_the_log(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4)
    due = fill(rig, 400, (4,))
    with forbid_visits(rig.store):
        assert rig.routed_return.step(4, 1_000).moved == 400
    assert pending(rig) == (400, 0)
    rig.advance(100_000)
    check(rig, due)


def test_a_rule_gives_a_topic_another_delay(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4, U=7_000)
    now_ms = rig.clock.now_ms()
    rig.send([(4, "T", 0, b"t"), (4, "U", 0, b"u")])
    rig.advance(60_000)
    assert {r.body: r.store_ms - now_ms for r in rig.delivered()} == {b"t": 60_000, b"u": 7_000}


def test_a_message_sent_back_is_the_same_by_level_and_routed(tmp_path: Path) -> None:
    """A message sent back contains properties that brokers added at earlier deliveries."""
    rig, plain = MigrationRig(tmp_path / "a").open(), MigrationRig(tmp_path / "b").open()
    rig.route(4)
    assert set(STALE_PROPERTIES) == {*DUE_NAMES, *STALE_NAMES}
    for one in (rig, plain):
        for name in STALE_PROPERTIES:
            one.send([(4, "T", 0, name.encode())], KEYS="k", **{name: "7"})
    assert (pending(rig), pending(plain)) == ((0, 10), (10, 0))
    for one in (rig, plain):
        one.advance(61_000)
    assert len(rig.delivered()) == 10
    assert seen(rig.delivered()) == seen(plain.delivered())
    assert {r.property_text for r in rig.delivered()} == {
        b"DELAY\x014\x02WAIT\x01true\x02KEYS\x01k\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    }


def test_messages_that_cannot_be_routed_stay_with_the_level(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4)
    for name, value in (("DELAy", "x"), ("KEYS", "k" * 32_640), ("TIMER_DEL_UNIQKEY", "T+a")):
        rig.send([(4, "T", 0, name.encode())], **{name: value})
    assert pending(rig) == (3, 0)
    batch = PutBatch(2)
    stale = {"DELAY": "9", "TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "1", "DUEMQ_DUE_MS": "2"}
    add_message(rig.store, batch, "T", 0, b"stale", properties=stale)
    rig.route(5)
    rig.put(batch)  # the level has priority, and the highest is 5
    assert pending(rig) == (3, 1)
    rig.advance(120_000)
    [stale_one] = [r for r in rig.delivered() if r.body == b"stale"]
    assert stale_one.properties == {"DELAY": "5", "REAL_TOPIC": "T", "REAL_QID": "0"}


def test_a_level_is_not_done_before_it_was_read(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4)
    fill(rig, 10, (4,))
    ownership.append(rig.store, Route(migration="", level=4, on=False), rig.clock.now_ms())
    rig.kill()
    rig.open()  # the route has ended, its timers still exist
    assert 4 not in rig.router.levels
    assert not rig.routed_return.is_finished(4)
    assert rig.routed_return.step(4, 100).moved == 10
    assert rig.routed_return.is_finished(4)
    assert pending(rig) == (10, 0)
    rig.routed_return.forget(4)
    assert not rig.routed_return.is_finished(4)


@pytest.mark.finding("3D1")
def test_a_copy_that_cannot_be_stored_stays_a_timer_and_blocks_no_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4)
    due = fill(rig, 20, (4,))
    put = rig.store.put

    def refusing(batch: PutBatch) -> None:
        if batch.count == 10:  # a step of the rollback
            batch.refuse(3, ResponseCode.MESSAGE_ILLEGAL, "it is too long")
        put(batch)

    monkeypatch.setattr(rig.store, "put", refusing)
    steps = [rig.routed_return.step(4, 10) for _ in range(2)]
    assert [(step.moved, step.blocked_by) for step in steps] == [(9, ""), (9, "")]
    assert rig.routed_return.is_finished(4)
    assert pending(rig) == (18, 2)
    monkeypatch.undo()
    rig.advance(130_000)
    check(rig, due)


def test_a_damaged_timer_stays_a_timer_and_blocks_no_rollback(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    rig.route(4)
    due = fill(rig, 20, (4,))
    assert rig.routed_return.step(4, 5).moved == 5
    damage(rig.store, int(rig.store.units(TIMER_TOPIC, 0, 12, 1)[0]["phys_offset"]), b"4/12")
    steps = [rig.routed_return.step(4, 10) for _ in range(2)]
    assert [(step.moved, step.blocked_by) for step in steps] == [(9, ""), (5, "")]
    assert rig.routed_return.is_finished(4)
    assert pending(rig) == (19, 1)
    rig.advance(130_000)
    check(rig, {body: due_ms for body, due_ms in due.items() if body != b"4/12"})
    assert rig.store.queue_bounds(QUARANTINE_TOPIC, 0) == (0, 1)


def test_units_without_a_message_between_returned_ones(tmp_path: Path) -> None:
    """Pre-blanks stand for damaged bytes of the log that a recovery has replaced."""
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 40, (4,))
    queue = rig.store.queues.find(SCHEDULE_TOPIC, 3)
    assert queue is not None
    blank = rig.store.units(SCHEDULE_TOPIC, 3, 17, 1).copy()
    blank["size"] = PRE_BLANK_SIZE
    queue.rewrite(17, blank)
    while rig.drain.step(4, 15).moved:
        pass
    assert rig.return_units.step(4, 1_000).moved == 39
    (record,) = [e.record for e in ownership.read(rig.store) if isinstance(e.record, Return)]
    assert record.pending == ((0, 17), (18, 40))
    rig.advance(61_000)
    check(rig, {body: due_ms for body, due_ms in due.items() if body != b"4/17"})
