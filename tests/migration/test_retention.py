"""Counting and projecting after retention removed transferred messages or ownership records."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery import ownership
from delayed_delivery.ownership import Route, StateRecord
from delayed_delivery.ownership_projection import Change, JournalProjection, TransferTally
from delayed_delivery.records import first_log_offset
from duemq_common.topics import OWNERSHIP_TOPIC, SCHEDULE_TOPIC
from duemq_migration.ownership import projection
from duemq_migration.steps.verification import Verification, border_of
from tests.migration.steps.test_drain import fill
from tests.support.migration_rig import MigrationRig
from timer_store.compaction.compactor import PIN_OWNER

DAY_MS = 86_400_000


class RetentionRig(MigrationRig):
    """A rig whose expired log files are deleted."""

    def open(self) -> MigrationRig:
        hours = ";".join(f"{hour:02d}" for hour in range(24))
        self.store_changes = {
            "commitlog_file_bytes": 16_384,
            "delete_when_hours": hours,
            "queue_file_bytes": 8_000,
        }
        super().open()
        self.store.retention.add_pin(lambda: self.timers.first_pending_offset, owner=PIN_OWNER)
        self.store.retention.add_pin(
            lambda: self.levels.first_pending_offset(self.offsets.durable), owner="levels"
        )
        return self

    def push(self) -> None:
        """Write some files of other messages."""
        for number in range(8):
            self.send([(1, "U", 0, b"<%d %s" % (number, b"x" * 900))] * 15)
        self.advance(2_000)

    def clean(self) -> int:
        """Run retention on settled messages in checkpoints; return the number of deleted files."""
        assert self.persist_timers()
        assert self.persist_levels()
        self.store.flush()
        self.clock.advance(1_000_000 * DAY_MS)  # all files expire; nothing is delivered meanwhile
        removed = sum(self.store.retention.clean() for _ in range(9))
        self.clock.advance(-1_000_000 * DAY_MS)
        return removed


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    rig = RetentionRig(tmp_path)
    rig.open()
    yield rig
    if rig.is_open:
        rig.close()


def drained(rig: RetentionRig, first: int, second: int) -> dict[bytes, int]:
    """Drain messages of level 4 with others and half a minute between; return all due times."""
    due = fill(rig, first, (4,))
    assert rig.drain.step(4, first // 4).moved == first // 4
    assert rig.drain.step(4, first).moved == first - first // 4
    rig.push()
    rig.advance(30_000)
    for body, due_ms in fill(rig, second, (4,)).items():
        due[b"second " + body] = due_ms
    while rig.drain.step(4, second).moved:
        pass
    return due


def test_removed_messages_are_no_difference(rig: RetentionRig) -> None:
    drained(rig, 200, 50)
    assert (rig.level_pending, rig.timers.counts.total) == (0, 250)
    assert rig.verify(4).removed == 0
    projection.write(rig.store, projection.restore(rig.store))
    rig.advance(40_000)
    rig.push()
    assert rig.timers.counts.total == 50
    assert rig.clean() > 1
    assert rig.queues.bounds(4)[0] > 100
    found = rig.verify(4)
    assert found.is_right, found
    assert (found.transferred.count, found.timers_pending.count) == (250, 50)
    assert found.removed == 250 - found.expected.count > 100
    rig.kill()
    rig.open()
    assert rig.verify(4).is_right


def test_messages_removed_during_a_count_are_no_difference(rig: RetentionRig) -> None:
    drained(rig, 200, 50)
    rig.advance(40_000)
    rig.push()
    journal = projection.restore(rig.store).levels[4]
    counting = Verification(rig.levels, rig.timers, rig.store, 4, journal)
    pieces = counting.pieces(lambda: 10)
    for _ in range(3):
        next(pieces)
    assert rig.clean() > 1
    assert sum(1 for _ in pieces) > 0
    assert counting.result is not None
    assert counting.result.is_right, counting.result
    assert counting.result.removed > 100


@pytest.mark.parametrize("end", ["within the mark that reaches across", "behind it"])
def test_a_missing_message_is_reported_despite_retention(end: str, rig: RetentionRig) -> None:
    fill(rig, 100, (4,))
    rig.push()
    rig.advance(30_000)
    fill(rig, 100, (4,))
    assert rig.drain.step(4, 150).moved == 150
    assert rig.drain.step(4, 150).moved == 50
    rig.advance(31_000)
    assert rig.clean() > 1
    low, high = rig.queues.bounds(4)
    assert 0 < low < 150
    assert rig.verify(4).is_right
    at = 149 if end.startswith("within") else high - 1
    rows, _ = rig.timers.transfers.owned_rows(4, at, at + 1)
    places = rig.timers.decisions.locate(rows)
    rig.timers.settled_timers.add(
        rows["phys_offset"], places
    )  # not pending, and the log does not contain the reason
    found = rig.verify(4)
    assert not found.is_right
    assert found.expected.count == found.actual.count + 1
    rig.timers.settled_timers.clear()


def test_counts_of_a_rollback_after_removed_messages(rig: RetentionRig) -> None:
    drained(rig, 200, 50)
    rig.advance(40_000)
    rig.push()
    rig.clean()
    assert rig.return_units.step(4, 20).moved == 20
    assert rig.verify(4).is_right
    while rig.return_units.remaining(4):
        rig.return_units.step(4, 70)
    assert (rig.level_pending, rig.timers.counts.total) == (50, 0)
    found = rig.verify(4)
    assert found.is_right, found
    assert found.timers_pending == TransferTally()
    rig.advance(40_000)
    assert Counter(r.body for r in rig.delivered() if r.body.startswith(b"4/")).total() > 50


@pytest.mark.finding("A1")
def test_returned_messages_are_pinned_before_a_table_contains_them(rig: RetentionRig) -> None:
    fill(rig, 20, (4,))
    assert rig.drain.step(4, 20).moved == 20
    rig.push()
    rig.clean()
    assert rig.persist_levels()
    assert rig.offsets.durable[4] == 20  # synced together with a checkpoint of the timers
    assert rig.return_units.step(4, 20).moved == 20
    assert rig.persist_timers()
    assert rig.timers.first_pending_offset is None
    first = first_log_offset(rig.store, SCHEDULE_TOPIC, 3, 0)
    assert rig.levels.first_pending_offset(rig.offsets.durable) == first


def test_the_projection_replaces_removed_records(rig: RetentionRig) -> None:
    store = rig.store
    for record in (
        StateRecord(migration="m", level=4, source="planned", target="routing"),
        Route(migration="m", level=4, on=True, fence=3, rules={"T": 70_000}),
    ):
        ownership.append(store, record, rig.clock.now_ms())
    drained(rig, 100, 0)
    before = projection.restore(store)
    projection.write(store, before)
    rig.advance(70_000)
    rig.push()
    assert rig.clean() > 2
    first, end = ownership.bounds(store)
    assert first == end == 4
    assert projection.restore(store) == before
    assert rig.verify(4).is_right
    assert rig.verify(4).removed == 100
    rig.kill()
    shutil.rmtree(rig.root / "consumequeue" / OWNERSHIP_TOPIC)  # its offsets begin at 0 again
    rig.open()
    assert ownership.bounds(rig.store) == (0, 0)
    again = projection.restore(rig.store)
    assert again.levels == before.levels
    due = fill(rig, 20, (4,))
    assert rig.drain.step(4, 50).moved == 20
    after = projection.restore(rig.store)
    assert (after.next_offset, after.levels[4].transferred) == (1, 120)
    assert rig.timers.counts.total == 20
    assert rig.verify(4).is_right
    rig.advance(61_000)
    assert {r.body: r.store_ms for r in rig.delivered() if r.body in due} == due


def test_a_projection_of_another_log_is_ignored(rig: RetentionRig) -> None:
    fill(rig, 10, (4,))
    rig.drain.step(4, 4)
    rig.drain.step(4, 6)
    right = projection.restore(rig.store)
    first = next(iter(ownership.read(rig.store)))
    for at, log_offset in ((2, first.phys_offset + 1), (1, first.phys_offset + 2), (7, 1 << 40)):
        projection.write(rig.store, JournalProjection(right.levels, at, log_offset))
        assert projection.restore(rig.store) == right
    projection.write(rig.store, JournalProjection(next_offset=1, log_offset=first.phys_offset + 1))
    assert (
        projection.restore(rig.store).levels[4].transferred == 6
    )  # used, because its last record exists


@pytest.mark.parametrize(
    ("low", "ranges", "border"),
    [
        (0, [(0, 9)], 0),
        (3, [(0, 9)], 9),
        (9, [(0, 9)], 9),
        (3, [(5, 9)], 3),
        (3, [(7, 12), (0, 9)], 12),
        (3, [(0, 4), (3, 12), (4, 5)], 12),
        (7, [], 7),
    ],
)
def test_no_ownership_record_crosses_the_removed_end(
    low: int, ranges: list[tuple[int, int]], border: int
) -> None:
    assert border_of(low, [Change(3, first, end) for first, end in ranges]) == border
