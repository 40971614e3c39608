"""Draining: level messages become timers in place, without a visible difference."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from duemq_common.topics import SCHEDULE_TOPIC
from tests.support.migration_rig import LEVELS, MigrationRig

DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000, 4: 60_000, 5: 120_000}
assert len(LEVELS.split()) == len(DELAYS_MS)


def fill(rig: MigrationRig, count: int, levels: tuple[int, ...]) -> dict[bytes, int]:
    """Send messages of some levels, a few per millisecond; return body -> due time."""
    due: dict[bytes, int] = {}
    for first in range(0, count, 10):
        messages = []
        for number in range(first, min(first + 10, count)):
            level = levels[number % len(levels)]
            body = b"%d/%d" % (level, number)
            messages.append((level, "TU"[number % 2], number % 4, body))
            due[body] = rig.clock.now_ms() + DELAYS_MS[level]
        rig.send(messages, KEYS="k", TAGS="a", UNIQ_KEY="u")
        rig.clock.advance(1)
    return due


def seen(records: list[Any], *, times: bool = True) -> dict[bytes, Any]:
    """Return what a consumer sees of each body, with the store time if `times`."""
    return {
        r.body: (
            r.topic,
            r.queue_id,
            r.flag,
            r.sys_flag,
            r.born_ms,
            r.born_host,
            r.store_host,
            r.reconsume_times,
            r.property_text,
            r.body_crc,
            r.store_ms if times else 0,
        )
        for r in records
    }


def test_a_drained_message_is_delivered_as_by_its_level(tmp_path: Path) -> None:
    plain = MigrationRig(tmp_path / "plain").open()
    moved = MigrationRig(tmp_path / "moved").open()
    due = fill(plain, 1_000, (4, 5))
    assert fill(moved, 1_000, (4, 5)) == due
    steps = 0
    while moved.level_pending > 500:
        assert moved.drain.step(4 if steps % 2 else 5, 50).moved == 50
        steps += 1
    assert moved.timers.counts.total == 500
    for rig in (plain, moved):
        rig.advance(130_000)
    assert Counter(r.body for r in moved.delivered()) == Counter(due.keys())
    assert all(r.store_ms == due[r.body] for r in moved.delivered())
    assert seen(moved.delivered()) == seen(plain.delivered())
    for rig in (plain, moved):
        rig.close()


def test_a_level_is_empty_after_its_last_message(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    fill(rig, 20, (4,))
    assert (rig.drain.is_empty(3), rig.drain.is_empty(4)) == (True, False)
    assert [rig.drain.step(4, 19).moved for _ in range(2)] == [19, 1]
    assert rig.drain.is_empty(4)
    last = rig.drain.step(4, 19)
    assert (last.moved, last.blocked_by) == (0, "")
    rig.close()


def test_both_services_know_the_owners_after_a_kill(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 100, (4,))
    assert rig.drain.step(4, 30).moved == 30
    rig.kill()
    rig = MigrationRig(tmp_path, rig.clock).open()
    assert (rig.level_pending, rig.timers.counts.total) == (70, 30)
    rig.advance(70_000)
    assert Counter(r.body for r in rig.delivered()) == Counter(due.keys())
    assert all(r.store_ms == due[r.body] for r in rig.delivered())
    rig.close()


def test_a_pre_blank_of_a_damaged_record_is_no_message(tmp_path: Path) -> None:
    """Recovery replaces the unit of a record that the disk has damaged."""
    rig = MigrationRig(tmp_path).open()
    fill(rig, 10, (4,))
    queue = rig.store.queues.find(SCHEDULE_TOPIC, 3)
    assert queue is not None
    start = int(rig.queues.units(4, 3, 1)["phys_offset"][0])
    assert queue.blank(start, start + 1) == 1
    step = rig.drain.step(4, 10)
    assert (step.moved, step.processed) == (9, 10)
    found = rig.verify(4)
    assert found.is_right, found
    assert found.expected.count == 9
    rig.close()


def test_nothing_changes_owner_while_units_of_the_level_are_in_flight(tmp_path: Path) -> None:
    """Their deliveries were refused and are tried again: they may be in the log already."""
    rig = MigrationRig(tmp_path).open()
    fill(rig, 20, (4,))
    assert rig.drain.step(4, 5).moved == 5
    segment = rig.levels.levels[4].cursor.segments[-1]
    segment.submitted += 1
    for step in (rig.drain.step(4, 5), rig.return_units.step(4, 5)):
        assert (step.moved, step.blocked_by) == (0, "deliveries of the level are retried")
    segment.submitted -= 1
    assert rig.return_units.step(4, 5).moved == 5
    rig.close()


def test_a_drained_record_hides_its_level_from_apaches_broker(tmp_path: Path) -> None:
    """Apache would delay it again when its timers deliver it. A returned record is unchanged."""
    rig = MigrationRig(tmp_path).open()
    fill(rig, 10, (4,))

    def names() -> list[str]:
        places = rig.queues.units(4, 0, 10)["phys_offset"].tolist()
        records = [rig.store.read_record(place) for place in places]
        return [name for r in records for name in ("DELAY", "DELAy") if name in r.properties]

    assert names() == ["DELAY"] * 10
    rig.drain.step(4, 6)
    assert names() == ["DELAy"] * 6 + ["DELAY"] * 4
    rig.return_units.step(4, 2)
    assert names() == ["DELAy"] * 4 + ["DELAY"] * 6
    rig.close()


def test_a_due_time_that_the_disk_has_changed_is_not_transferred(tmp_path: Path) -> None:
    """The timers have no other source of the due time of a level message."""
    rig = MigrationRig(tmp_path).open()
    due = fill(rig, 4, (4,))
    rig.store.flush()
    queue = rig.store.queues.find(SCHEDULE_TOPIC, 3)
    units = queue.read(2, 1)
    units["tags_code"] -= 1 << 15
    queue.rewrite(2, units)
    assert rig.drain.step(4, 4).moved == 4
    rig.advance(61_000)
    assert {record.body: record.store_ms for record in rig.delivered()} == due
    rig.close()
