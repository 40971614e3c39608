"""Crashes at every step of a migration, with checkpoints of either side, and lost files."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations, product
from pathlib import Path

import pytest

from duemq_common.errors import OwnershipRefused
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from tests.migration.steps.test_drain import fill
from tests.support.failing_disk import Disk, SimulatedCrash
from tests.support.migration_rig import MigrationRig
from tests.support.stores import add_message, open_store
from timer_store.checkpoint.snapshot import CHECK_FILE, decode_check, write_check

FILES = ("timerlog", "timerwheel", "config/duemq.timers.json", "config/delayOffset.json")
Step = Callable[[MigrationRig], object]
STEPS: dict[str, Step] = {
    "transfer": lambda rig: rig.drain.step(4, 40),
    "return": lambda rig: rig.return_units.step(4, 15),
    "timers": lambda rig: rig.persist_timers(),
    "levels": lambda rig: rig.persist_levels(),
}
# Messages with (level, timers) after 60 messages went through these steps.
RUNS = {
    ("transfer",): (20, 40),
    ("transfer", "timers"): (20, 40),
    ("transfer", "levels"): (20, 40),
    ("levels", "transfer", "timers"): (20, 40),
    ("transfer", "timers", "return"): (35, 25),
    ("transfer", "timers", "return", "levels"): (35, 25),
    ("transfer", "return", "timers", "levels"): (35, 25),
    ("transfer", "timers", "return", "timers", "transfer"): (0, 60),
    ("transfer", "timers", "levels", "return", "timers", "transfer", "return"): (15, 45),
    ("transfer", "levels", "transfer", "timers", "return", "return"): (30, 30),
}


def opened(root: Path) -> MigrationRig:
    """Return a rig with queue files large enough for a test."""
    rig = MigrationRig(root)
    rig.store_changes["queue_file_bytes"] = 4_000
    return rig.open()


def lose(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        for path in (root / name, root / (name + ".bak")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def check(rig: MigrationRig, due: dict[bytes, int]) -> None:
    """Check that every message is delivered once, at its due time."""
    rig.advance(61_000)
    assert Counter(r.body for r in rig.delivered()) == Counter(due.keys())
    assert {r.body: r.store_ms for r in rig.delivered()} == due
    assert (rig.level_pending, rig.timers.counts.total) == (0, 0)


@pytest.mark.sampled
@pytest.mark.parametrize("steps", list(RUNS), ids="-".join)
def test_a_kill_after_each_step(steps: tuple[str, ...], tmp_path: Path) -> None:
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    for name in steps:
        STEPS[name](rig)
    owners = (rig.level_pending, rig.timers.counts.total)
    assert owners == RUNS[steps]
    for _ in range(2):
        rig.kill()
        rig.open()
        assert (rig.level_pending, rig.timers.counts.total) == owners
        assert rig.verify(4).is_right
    check(rig, due)
    rig.close()


@pytest.mark.parametrize(
    "lost", [names for count in (1, 2, 4) for names in combinations(FILES, count)], ids="+".join
)
def test_files_lost_on_either_side(lost: tuple[str, ...], tmp_path: Path) -> None:
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    for name in ("transfer", "timers", "levels", "return", "transfer"):
        STEPS[name](rig)
    owners = (rig.level_pending, rig.timers.counts.total)
    rig.kill()
    lose(tmp_path, lost)
    rig.open()
    assert (rig.level_pending, rig.timers.counts.total) == owners
    check(rig, due)
    rig.close()


@pytest.mark.parametrize("pending", [False, True], ids=["empty slot", "pending timer"])
@pytest.mark.parametrize("later", [(), ("levels",), ("transfer",)], ids=["", "levels", "transfer"])
def test_a_return_after_deliveries_of_the_same_second(
    later: tuple[str, ...], pending: bool, tmp_path: Path
) -> None:
    """The timers' checkpoint is valid although they no longer own the delivered messages."""
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    assert rig.drain.step(4, 60).moved == 60
    if pending:
        rig.advance(50_100)
        due |= fill(rig, 10, (3,))
        assert rig.drain.step(3, 10).moved == 10
    rig.work()
    rig.advance(min(due.values()) + 1 - rig.clock.now_ms())  # 20 of the 60 are due
    assert rig.return_units.step(4, 45).moved == 40
    assert rig.persist_timers()
    for name in later:
        STEPS[name](rig)
    owners = (rig.level_pending, rig.timers.counts.total)
    delivered = len(rig.delivered())
    assert delivered == 20
    for _ in range(2):
        rig.kill()
        rig.open()
        assert (rig.level_pending, rig.timers.counts.total) == owners
        assert len(rig.delivered()) == delivered
    assert rig.notices == []
    check(rig, due)
    rig.close()


@pytest.mark.parametrize("older", ["timers", "levels"])
def test_one_side_is_older_than_the_other(older: str, tmp_path: Path) -> None:
    """The files of one side are those before the transfer, of the other those after it."""
    kept = {"timers": FILES[:3], "levels": FILES[3:]}[older]
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    rig.close()
    saved = tmp_path.with_name(tmp_path.name + "-saved")
    shutil.copytree(tmp_path, saved)
    rig.open()
    for name in ("transfer", "timers", "levels"):
        STEPS[name](rig)
    rig.kill()
    lose(tmp_path, kept)
    for name in kept:
        source = saved / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / name)
    rig.open()
    assert rig.level_pending + rig.timers.counts.total == 60
    check(rig, due)
    rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "left"), [*product(["transfer", "return", "timers", "levels"], range(9))]
)
def test_a_crash_at_each_write(
    name: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    for step in ("transfer", "timers", "levels", "return", "transfer"):
        if step != "transfer" or not rig.timers.settled_timers.returning:
            STEPS[step](rig)
    disk = Disk(monkeypatch, tmp_path)
    disk.steps_left, disk.torn = left, 30
    with suppress(SimulatedCrash, OwnershipRefused):
        STEPS[name](rig)
    disk.crashed = True
    rig.kill()
    disk.restart()
    rig.open()
    assert rig.level_pending + rig.timers.counts.total == 60
    assert rig.verify(4).is_right
    check(rig, due)
    rig.close()


def deliver_as_apache(store: MessageStore, offset: int, *, by_wheel: bool, retries: int) -> None:
    """Append the copy that an Apache broker makes of a level message that timers own.

    Args:
        by_wheel: Whether the wheel delivers it; otherwise its level service.
        retries: Number of retries of the copy.
    Source: TimerMessageStore.convert, ScheduleMessageService.messageTimeup
    """
    record = store.read_record(offset)
    times = {"TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"} if by_wheel else {}
    batch = PutBatch(1, 1)
    add_message(
        store,
        batch,
        record.properties["REAL_TOPIC"],
        int(record.properties["REAL_QID"]),
        record.body,
        properties=record.properties | times,
        reconsume_times=retries,
    )
    batch.rows[0]["born_ms"] = record.born_ms
    store.put(batch)


@pytest.mark.finding("3D4")
@pytest.mark.parametrize("retries", [0, 1], ids=["", "retried"])
@pytest.mark.parametrize("read_ms", [1, 62_000, 10**9, 2**62])
def test_messages_delivered_by_apache_are_not_delivered_again(
    read_ms: int, retries: int, tmp_path: Path
) -> None:
    """Only its copies prove deliveries: the read time of `timercheck` may have any value."""
    rig = opened(tmp_path)
    start_ms = rig.clock.now_ms()
    for second in range(4):
        rig.clock.set_ms(start_ms + second * 1_000)
        rig.send([(4, "T", 0, b"same") for _ in range(5)], UNIQ_KEY="k")
    units = rig.queues.units(4, 0, 20)
    STEPS["transfer"](rig)
    rig.close()
    path = tmp_path / "config" / CHECK_FILE
    check = decode_check(path.read_bytes())
    assert check is not None
    write_check(path, check._replace(read_ms=start_ms + read_ms, version_ms=1, counter=99))
    rig.clock.set_ms(start_ms + 62_000)
    with open_store(tmp_path, rig.clock, queue_file_bytes=4_000) as store:
        for number in range(13):
            offset = int(units["phys_offset"][number])
            deliver_as_apache(store, offset, by_wheel=number % 2 == 0, retries=retries)
    rig.open()
    proved = 0 if retries else 13
    late = 15 - proved  # due before Apache ended
    assert (rig.timers.counts.total, len(rig.delivered())) == (5, 13 + late)
    rig.kill()
    rig.open()
    rig.advance(10_000)
    assert len(rig.delivered()) == 13 + late + 5
    origins = [-record.prepared_offset - 1 for record in rig.delivered()[13:]]
    assert sorted(origins) == sorted(units["phys_offset"][proved:].tolist())
    rig.close()


def apaches_offset(rig: MigrationRig) -> int:
    """Return the queue offset of level 4 from which an Apache broker would deliver."""
    assert rig.persist_levels()
    text = (rig.root / "config" / "delayOffset.json").read_text()
    return int(re.findall(r"4:(\d+)", text[text.index("offsetTable") :])[0])


def test_apaches_offset_does_not_exceed_transfers_in_a_checkpoint(tmp_path: Path) -> None:
    """Otherwise an Apache broker that opens the store after a kill would never deliver these."""
    rig = opened(tmp_path)
    due = fill(rig, 60, (4,))
    assert rig.drain.step(4, 20).moved == 20
    assert apaches_offset(rig) == 0
    assert rig.persist_timers()
    assert apaches_offset(rig) == 20
    for _ in range(2):
        assert rig.drain.step(4, 20).moved == 20
    assert apaches_offset(rig) == 20
    rig.kill()
    rig.open()  # writes a checkpoint at its end
    assert apaches_offset(rig) == 60
    check(rig, due)
    rig.close()


def test_a_message_transferred_after_a_lost_checkpoint_is_delivered(
    tmp_path: Path,
) -> None:
    """Only `timercheck` remains, with a read time after the message's slot; its unit is lost."""
    rig = MigrationRig(tmp_path, precision_ms=100).open()
    rig.send([(3, "T", 0, b"first")])
    rig.drain.step(3, 1)
    rig.work()
    rig.persist_timers()
    enqueued = rig.timers.units.log.end
    rig.send([(1, "T", 0, b"second")])
    rig.drain.step(1, 1)
    rig.work()
    rig.kill()
    for path in tmp_path.glob("config/duemq.timers.json*"):
        path.unlink()
    with next((tmp_path / "timerlog").iterdir()).open("r+b") as units:
        size = units.seek(0, 2)
        units.truncate(enqueued)
        units.truncate(size)
    rig.open()
    assert (rig.level_pending, rig.timers.counts.total) == (0, 2)
    rig.advance(11_000)
    assert [record.body for record in rig.delivered()] == [b"second", b"first"]
    rig.close()
