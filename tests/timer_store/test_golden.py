"""Stores written by Apache: the pending timers, and only they, are delivered on time."""

from __future__ import annotations

from io import BufferedWriter
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from message_store.log.record import Record
from tests.support.golden_stores import copy_golden_store, end_ms, golden_store, manifest_lines
from tests.support.timer_rig import TimerRig

VERSION, TOPIC, QUEUES = "5.3.3", "GoldenTimer", 8
STORES = ["apache-5.3.3-clean", "apache-5.3.3-killed"]
HOUR_MS = 3_600_000
RECALLED = "timer-far0-1"


def pending_due_times() -> dict[str, int]:
    """Return the due times of the pending timers by message ID."""
    return {
        line["msgId"]: int(line["timer_deliver_ms"])
        for line in manifest_lines(VERSION, "sent")
        if line["what"] == "timer_deliver_ms" and line["keys"] != RECALLED
    }


def golden_rig(
    name: str, tmp_path: Path, at_ms: int, *, with_wheel: bool = True, **config: object
) -> TimerRig:
    """Return a rig on a copy of a golden store, not opened."""
    root = copy_golden_store(name, tmp_path)
    if with_wheel:
        with (root / "timerwheel").open("wb") as copy:
            write_sparse((golden_store(name) / "timerwheel").read_bytes(), copy)
    rig = TimerRig(root, FakeClock(at_ms), **config)
    rig.topics.append(TOPIC)
    return rig


def write_sparse(data: bytes, file: BufferedWriter) -> None:
    """Write data as a sparse file."""
    block = 1 << 16
    for at in range(0, len(data), block):
        part = data[at : at + block]
        if part.strip(b"\0"):
            file.seek(at)
            file.write(part)
    file.truncate(len(data))


def records(rig: TimerRig) -> list[Record]:
    return [record for queue in range(QUEUES) for record in rig.delivered(TOPIC, queue)]


def check(rig: TimerRig, before: set[int], opened_ms: int) -> None:
    """Check that exactly the pending timers were delivered, each on time or at the opening."""
    new = [record for record in records(rig) if record.phys_offset not in before]
    came = {record.properties["UNIQ_KEY"]: record for record in new}
    due_ms = pending_due_times()
    assert len(new) == len(came) == len(due_ms) == 19
    for key, record in came.items():
        assert record.store_ms == max(due_ms[key], opened_ms), record.properties["KEYS"]
        origin = rig.store.read_record(-record.prepared_offset - 1)
        assert (record.body, record.born_ms) == (origin.body, origin.born_ms)
        assert "TIMER_DEL_UNIQKEY" not in record.properties
    assert rig.timers.counts.total == 0
    assert rig.delivered("rmq_sys_DUEMQ_QUARANTINE") == []


def advance_to_end(rig: TimerRig) -> None:
    rig.advance(max(pending_due_times().values()) - rig.clock.now_ms() + 10 * HOUR_MS)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "later_ms", [0, 2 * HOUR_MS + 5, 20 * 24 * HOUR_MS, 5 * 365 * 24 * HOUR_MS]
)
@pytest.mark.parametrize("name", STORES)
def test_pending_timers_are_delivered_on_time(name: str, later_ms: int, tmp_path: Path) -> None:
    rig = golden_rig(name, tmp_path, end_ms(VERSION) + later_ms)
    rig.open()
    opened_ms = rig.clock.now_ms()
    before = {r.phys_offset for r in records(rig) if r.prepared_offset >= 0}
    if not later_ms:
        assert rig.timers.counts.by_topic() == {TOPIC: 19}
    if opened_ms < max(pending_due_times().values()):
        advance_to_end(rig)
    check(rig, before, opened_ms)
    assert rig.notices[0].endswith("was last used by an Apache broker: its timers are adopted")
    rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("name", STORES)
def test_a_kill_after_the_adoption_changes_nothing(
    name: str, persist: bool, tmp_path: Path
) -> None:
    rig = golden_rig(name, tmp_path, end_ms(VERSION))
    rig.open()
    before = {r.phys_offset for r in records(rig) if r.prepared_offset >= 0}
    opened_ms = rig.clock.now_ms()
    for _ in range(4):
        rig.advance(HOUR_MS)
        if persist:
            rig.persist()
        rig.kill()
        rig.open()
    advance_to_end(rig)
    check(rig, before, opened_ms)
    rig.close()
