"""Compaction under disk pressure: pending messages are copied and old log files deleted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from delayed_delivery.plugin import Recalled
from delayed_delivery.steps import at_once
from duemq_common.topics import TIMER_TOPIC
from message_store.verify import verify_store
from tests.support.full_timer_disk import DAY_MS, FILE_BYTES, FullDisk, PinningRig
from tests.support.synchronous import Synchronous
from timer_store.compaction.compactor import PAUSE_MS
from timer_store.compaction.plan import Blocked
from timer_store.names import TIMER_QUEUE
from timer_store.pending.listing import list_timers
from timer_store.pending.lookup import PendingTimers
from timer_store.pending.recalls import TimerRecalls
from timer_store.pending.walk import Query
from timer_store.verify import TIMERS


def fill_sparse(rig: PinningRig, files: int = 4, delay_ms: int = DAY_MS) -> list[int]:
    """Write files with few pending timers in each; return the due times."""
    due = [rig.clock.now_ms() + delay_ms + n for n in range(3 * files)]
    for at in range(files):
        for n in range(3):
            due_ms = due[3 * at + n]
            rig.put(due_ms, "TU"[n % 2], body=b"%d" % due_ms, UNIQ_KEY=f"K{3 * at + n}", KEYS="k")
            rig.fill(1 / 3)
    rig.fill(1)
    return due


def delivered_times(rig: PinningRig) -> list[tuple[int, int]]:
    """Return (due time, store time) of the delivered messages of the topics T and U."""
    records = [r for r in (*rig.delivered(), *rig.delivered("U")) if r.body[:1] != b"x"]
    return sorted((int(record.body), record.store_ms) for record in records)


def test_pending_messages_are_copied_and_delivered_once_on_time(
    rig: PinningRig, disk: FullDisk
) -> None:
    due = fill_sparse(rig)
    assert rig.clean() == 0
    disk.percent = 86
    assert rig.clean() == 0
    pending = rig.timers.counts.by_topic()
    rig.compact()
    compaction = rig.timers.compaction
    assert not compaction.running
    assert compaction.progress == (0, 0)
    assert compaction.copied == len(due)
    assert compaction.blocked_by == Blocked.NOTHING
    assert rig.timers.counts.by_topic() == pending
    assert rig.clean() == 0, "the copies are in no checkpoint yet"
    assert rig.persist()
    assert rig.clean() >= 4
    assert compaction.freed_bytes >= 4 * FILE_BYTES
    assert rig.timers.counts.first_file == rig.store.min_offset
    copies = rig.delivered(TIMER_TOPIC, TIMER_QUEUE)[-len(due) :]
    assert {copy.properties["TIMER_ROLL_TIMES"] for copy in copies} == {"1"}
    rig.advance(DAY_MS - (rig.clock.now_ms() + DAY_MS - due[0]) - 1)
    assert delivered_times(rig) == []
    rig.advance(DAY_MS)
    assert delivered_times(rig) == [(due_ms, due_ms) for due_ms in due]
    assert rig.timers.counts.total == 0


def test_only_as_many_files_as_needed(rig: PinningRig, disk: FullDisk) -> None:
    fill_sparse(rig, files=6)
    in_first = rig.timers.counts.by_file()[0]
    disk.percent = 85.05  # half a file too much
    rig.compact()
    assert rig.timers.compaction.copied == in_first
    disk.percent = 50
    rig.compact()
    assert rig.timers.compaction.copied == in_first


def test_compaction_stops_without_disk_pressure(rig: PinningRig, disk: FullDisk) -> None:
    fill_sparse(rig, files=6)
    disk.percent = 88
    rig.timers.compaction.begin_if_needed()
    while not rig.timers.compaction.copied:
        rig.advance(5)
    disk.percent = 50
    rig.advance(5_000)
    assert not rig.timers.compaction.running
    assert rig.timers.compaction.reason == ""


@pytest.mark.parametrize(
    ("percent", "ratio", "blocked_by"),
    [(86, 10, Blocked.TOO_FULL), (89.99, 50, Blocked.NO_ROOM), (84, 50, Blocked.NOTHING)],
)
def test_files_without_gain_or_room_are_kept(
    rig: PinningRig,
    disk: FullDisk,
    percent: float,
    ratio: int,
    blocked_by: Blocked,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(4):
        rig.put_many([(rig.clock.now_ms() + DAY_MS, "T", 0, b"y" * 900)] * 5)
        rig.fill(0.6)
    rig.timers.reconfigure(replace(rig.config, compact_percent=ratio))
    disk.percent = percent
    rig.compact()
    compaction = rig.timers.compaction
    assert (compaction.copied, compaction.blocked_by) == (0, blocked_by)
    assert ("old log files are kept" in caplog.text) == bool(blocked_by)
    assert (compaction.reason in caplog.text) == bool(compaction.reason or not caplog.text)


def test_ratio_0_copies_nothing(rig: PinningRig, disk: FullDisk) -> None:
    fill_sparse(rig)
    rig.timers.reconfigure(replace(rig.config, compact_percent=0))
    disk.percent = 88
    rig.compact()
    assert rig.timers.compaction.copied == 0


def test_files_that_others_need_are_kept(rig: PinningRig, disk: FullDisk) -> None:
    fill_sparse(rig)
    other = rig.store.log.files[1].base + 5
    rig.store.retention.add_pin(lambda: other, owner="levels")
    in_first = rig.timers.counts.by_file()[0]
    disk.percent = 88
    rig.compact()
    compaction = rig.timers.compaction
    assert compaction.copied == in_first
    assert compaction.blocked_by == Blocked.OTHER_PINS
    assert rig.timers.state.first_needed == rig.store.log.files[1].base


def test_nothing_is_copied_without_room_in_the_log_or_the_wheel(
    rig: PinningRig, disk: FullDisk
) -> None:
    fill_sparse(rig)
    disk.percent = 88
    compaction = rig.timers.compaction
    compaction.begin_if_needed()
    disk.percent = 91
    rig.store.check_disk()
    rig.advance(3_000)
    assert (compaction.copied, compaction.blocked_by) == (0, Blocked.REFUSED)
    disk.percent = 88
    rig.store.check_disk()
    rig.timers.reconfigure(replace(rig.config, stop_enqueue=True))
    rig.advance(3_000)
    assert (compaction.copied, compaction.blocked_by) == (0, Blocked.NOT_ENQUEUED)
    rig.timers.reconfigure(rig.config)
    rig.advance(3_000)
    assert (compaction.copied, compaction.blocked_by) == (12, Blocked.NOTHING)


def test_due_timers_go_first(rig: PinningRig, disk: FullDisk) -> None:
    """While more timers are due than a batch holds, nothing is copied; then between batches."""
    fill_sparse(rig)
    disk.percent = 88
    compaction = rig.timers.compaction
    rig.timers.reconfigure(replace(rig.config, batch_records_max=2))
    rig.put_many([(rig.clock.now_ms() + 1, "T", 0, b"x")] * 20)
    compaction.begin_if_needed()
    rig.clock.advance(5)
    assert rig.timers.turn(rig.clock.now_ms())
    while rig.timers.dequeue.is_due(rig.clock.now_ms()):
        assert compaction.next_piece_ms == 0, "no piece yet"
        assert rig.timers.turn(rig.clock.now_ms())
    assert len(rig.bodies()) == 20
    for _ in range(20):
        rig.put(rig.clock.now_ms() + 1)
        rig.clock.advance(PAUSE_MS)
        assert rig.timers.turn(rig.clock.now_ms())
    assert compaction.copied == 12


def test_far_timers_are_copied_and_rolled(tmp_path: Path, disk: FullDisk) -> None:
    rig = PinningRig(tmp_path, disk, roll_window_slots=3_600)
    rig.open()
    due = fill_sparse(rig)
    rig.advance(2 * 3_600_000)
    disk.percent = 88
    rig.compact()
    rig.persist()
    assert rig.clean() >= 4
    rig.kill()
    rig.open()
    rig.advance(DAY_MS)
    assert delivered_times(rig) == [(due_ms, due_ms) for due_ms in due]
    rig.close()


# -- what moved is still there --------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("action", ["cancel", "move", "fire"])
@pytest.mark.parametrize("how", ["offset", "unique", "key", "topic"])
def test_a_copy_can_be_found_cancelled_moved_and_fired(
    rig: PinningRig, disk: FullDisk, how: str, action: str
) -> None:
    due = fill_sparse(rig)
    first = [record.phys_offset for record in rig.delivered(TIMER_TOPIC, TIMER_QUEUE)]
    disk.percent = 88
    rig.compact()
    waiting = Synchronous(PendingTimers(rig.timers))
    ways: dict[str, Callable[[], Any]] = {
        "offset": lambda: waiting.by_offset(np.array(first, np.int64)),
        "unique": lambda: waiting.by_key("", [f"K{n}" for n in range(12)], unique=True),
        "key": lambda: waiting.by_key("", ["k"], unique=False),
        "topic": lambda: waiting.pieces("T")[0],
    }
    found = ways[how]()
    mine = sorted(found.due_ms.tolist())
    assert mine == (due if how != "topic" else [d for n, d in enumerate(due) if n % 3 % 2 == 0])
    due_ms = np.full(found.offsets.size, due[-1] + 60_000)
    decided = {
        "cancel": lambda: waiting.cancel(found.offsets),
        "move": lambda: waiting.move(found.offsets, due_ms, lambda *_: None),
        "fire": lambda: waiting.fire(found.offsets),
    }[action]()
    assert (decided.verdicts == Verdict.DONE).all()
    rest = [d for d in due if d not in mine]
    rig.persist()
    rig.kill()
    rig.open()
    fired = [d for d, _ in delivered_times(rig)]
    assert fired == (mine if action == "fire" else [])
    rig.advance(DAY_MS + 1_000)
    assert [d for d, _ in delivered_times(rig)] == (due if action == "fire" else rest)
    rig.advance(60_000)
    assert [d for d, _ in delivered_times(rig)] == (rest if action == "cancel" else due)


def test_a_copy_can_be_recalled_by_its_handle(rig: PinningRig, disk: FullDisk) -> None:
    due = fill_sparse(rig)
    disk.percent = 88
    rig.compact()
    rig.persist()
    rig.clean()
    out_ms = (due[0] - 1) // 1_000 * 1_000
    recalls = TimerRecalls(lambda: rig.timers)
    assert asyncio.run(recalls.recall("T", out_ms + 1, "K0")) == Recalled.DONE
    rig.advance(2 * DAY_MS)
    assert [d for d, _ in delivered_times(rig)] == due[1:]


def test_a_timer_that_cannot_be_copied_keeps_its_file(rig: PinningRig, disk: FullDisk) -> None:
    due_ms = rig.clock.now_ms() + DAY_MS
    batch = rig.put(due_ms, body=b"torn")
    rig.put(due_ms, body=b"plain")
    rig.fill(4)
    damage(rig, int(batch.rows[0]["phys_offset"]), b"torn")
    disk.percent = 88
    rig.compact()
    compaction = rig.timers.compaction
    assert (compaction.copied, compaction.blocked_by) == (1, Blocked.NOT_COPIED)
    assert "1 timers in log files from 0 on" in compaction.reason
    rig.timers.compaction.begin_if_needed()
    assert not compaction.running, "not again at once"
    rig.clock.advance(60_001)
    assert compaction.begin_if_needed()
    rig.advance(DAY_MS)
    assert rig.bodies() == [b"plain"]
    assert sum(rig.timers.stats.quarantined.values()) == 1


def damage(rig: PinningRig, offset: int, text: bytes) -> None:
    """Change a byte of a record's body in the log."""
    file = rig.store.log.file_of(offset)
    at = bytes(file.data).index(text, offset - file.base)
    file.write(at, b"X")


# -- by hand --------------------------------------------------------------------------------------


def age(rig: PinningRig, hours: int) -> None:
    """Set the age of the first three files."""
    then_s = rig.clock.now_ms() / 1_000 - hours * 3_600
    for at, file in enumerate(rig.store.log.files):
        when_s = then_s if at < 3 else rig.clock.now_ms() / 1_000
        os.utime(file.path, (when_s, when_s))


def test_a_request_frees_expired_files_at_any_hour(rig: PinningRig, disk: FullDisk) -> None:
    due = fill_sparse(rig)
    age(rig, 71)
    rig.compact(by_hand=True)
    assert rig.timers.compaction.copied == 0
    age(rig, 73)
    end = rig.store.log.files[2].base + FILE_BYTES
    rig.compact(by_hand=True)
    by_file = rig.timers.counts.by_file()
    assert min(by_file) >= end
    assert rig.clean() == 0
    assert rig.persist()
    assert rig.clean() == 3
    rig.advance(2 * DAY_MS)
    assert delivered_times(rig) == [(due_ms, due_ms) for due_ms in due]


# -- and afterwards -------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["close", "kill"])
def test_verify_accepts_a_compacted_store(rig: PinningRig, disk: FullDisk, end: str) -> None:
    due = fill_sparse(rig)
    rig.put_many([(rig.clock.now_ms() + 1_000, "T", 0, b"x")] * 200)  # files of the timer log
    rig.advance(40_000)
    disk.percent = 88
    rig.compact()
    rig.persist(last=True)
    assert rig.clean() >= 4
    rig.advance(31_000)
    rig.persist(last=True)
    assert rig.timers.log_cleaning.removed_files > 0
    getattr(rig, end)()
    report = verify_store(rig.root, parts=[TIMERS])
    assert [f for f in report.findings if f.severity == "error"] == []
    rig.open()
    assert rig.notices == []
    rig.advance(2 * DAY_MS)
    assert delivered_times(rig) == [(due_ms, due_ms) for due_ms in due]


@pytest.mark.parametrize("is_same_ms", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 5])
def test_a_list_during_a_compaction_has_all_timers(
    rig: PinningRig, disk: FullDisk, limit: int, is_same_ms: bool
) -> None:
    """Only timers of the millisecond in which the first page has ended are listed again."""
    first_ms = rig.clock.now_ms() + DAY_MS
    for number in range(12):
        rig.put(first_ms + number * (not is_same_ms), body=b"x", UNIQ_KEY=f"K{number}")
        rig.fill(1 / 3)
    rig.fill(1)
    page = at_once(list_timers(rig.timers, Query(limit=limit)))
    keys = [str(timer["unique_key"]) for timer in page.timers]
    listed = limit if is_same_ms else 1
    disk.percent = 86
    rig.compact()
    assert rig.timers.compaction.copied == 12
    while page.cursor is not None:
        page = at_once(list_timers(rig.timers, Query(limit=limit, cursor=page.cursor)))
        keys += [str(timer["unique_key"]) for timer in page.timers]
    assert sorted(keys[limit - listed :]) == sorted(
        [f"K{number}" for number in range(limit - listed, 12)] + keys[limit - listed : limit]
    )
