"""Progress of an Apache broker is proved by its deliveries."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from delayed_delivery.level_delays import DEFAULT_LEVELS
from duemq_common.clock import FakeClock
from duemq_common.json_dialect import dumps, loads
from message_store.store import MessageStore
from schedule_service.queues import ScheduleQueues
from tests.schedule_service.test_golden import STORES, unpack
from tests.support.apache_levels import deliver_as_apache
from tests.support.level_rig import Rig, level_service
from tests.support.stores import open_store

SENT, DELIVERED, HUGE = 60, 37, 2**63 - 1


async def apache_store(root: Path, clock: FakeClock) -> None:
    """Write a store of Apache: 60 messages of level 1, 37 delivered, and 3 of level 4 pending."""
    async with level_service(root, clock) as rig:
        for number in range(SENT):
            rig.send(1, b"%d" % number, UNIQ_KEY=f"K{number}")
        rig.send(4, b"later", count=3)
        rig.crash()
    clock.advance(1_000)
    with open_store(root, clock) as store:
        deliver_as_apache(store, 1, 0, DELIVERED)
    for name in ("delayLevels.json", "delayOffset.json"):
        for path in (root / "config").glob(f"{name}*"):
            path.unlink()


def write_offsets(root: Path, offsets: dict[int, int]) -> None:
    (root / "config" / "delayOffset.json").write_text(dumps({"offsetTable": offsets}))


async def everything_once(root: Path, clock: FakeClock) -> None:
    async with level_service(root, clock) as rig:
        await rig.advance(1)
        expected = {b"%d" % number: 1 for number in range(SENT)}
        assert Counter(body for body in rig.bodies() if b"later" not in body) == expected
        later = {b"later%d" % number: 1 for number in range(3)}
        await rig.advance(60_000)
        assert Counter(rig.bodies()) == expected | later


@pytest.mark.sampled
@pytest.mark.finding("3D4")
@pytest.mark.parametrize(
    "offsets",
    [
        {1: DELIVERED, 4: 0},
        {1: SENT, 4: 3},  # ahead, within the queue
        {1: DELIVERED + 1},
        {1: 6_012, 4: 6_012},
        {1: HUGE, 4: HUGE},
        {1: 0, 4: 0},  # behind
        {1: DELIVERED - 1},
        {1: 3, 4: DELIVERED},  # swapped
        {1: -5, 4: -1},
        {},
        None,
    ],
)
def test_any_offset_of_apache_loses_and_doubles_nothing(
    tmp_path: Path, offsets: dict[int, int] | None
) -> None:
    async def steps() -> None:
        clock = FakeClock()
        await apache_store(tmp_path, clock)
        if offsets is not None:
            write_offsets(tmp_path, offsets)
        await everything_once(tmp_path, clock)
        await everything_once(tmp_path, clock)

    asyncio.run(steps())


def test_a_kill_before_the_first_write_of_our_table_changes_nothing(tmp_path: Path) -> None:
    async def steps() -> None:
        clock = FakeClock()
        await apache_store(tmp_path, clock)
        write_offsets(tmp_path, {1: SENT, 4: 3})
        async with level_service(tmp_path, clock) as rig:
            await rig.advance(1)
            rig.crash()
        await everything_once(tmp_path, clock)

    asyncio.run(steps())


def test_a_true_offset_is_proved_by_one_short_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        clock = FakeClock()
        await apache_store(tmp_path, clock)
        write_offsets(tmp_path, {1: DELIVERED, 4: 0})
        starts: list[int] = []
        scan = MessageStore.scan

        def recorded(store: MessageStore, start: int, *rest: object, **options: object) -> object:
            if start < store.max_offset:
                starts.append(start)
            return scan(store, start, *rest, **options)

        monkeypatch.setattr(MessageStore, "scan", recorded)
        async with level_service(tmp_path, clock) as rig:
            queues = ScheduleQueues(rig.store, rig.plugin.history)
            last = queues.units(1, SENT - 1, 1)["phys_offset"][0]
            assert len(starts) == 2  # the unit before the offset, and the units after it
            assert starts[0] >= last

    asyncio.run(steps())


@pytest.mark.sampled
@pytest.mark.finding("3D4")
@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("change", [-2, 2, HUGE], ids=["behind", "ahead", "huge"])
def test_golden_stores_give_the_same_progress_for_any_offset(
    tmp_path: Path, name: str, change: int
) -> None:
    async def pending(root: Path) -> dict[int, list[tuple[int, int]]]:
        levels = {"messageDelayLevel": DEFAULT_LEVELS}
        async with level_service(root, FakeClock(), levels, topics=()) as rig:
            rig.crash()
            return ranges_of(rig)

    root = unpack(name, tmp_path / "a")
    other = tmp_path / "b"
    shutil.copytree(root, other)
    path = other / "config" / "delayOffset.json"
    table = loads(path.read_text())
    table["offsetTable"] = {n: max(at + change, 0) for n, at in table["offsetTable"].items()}
    path.write_text(dumps(table))
    assert asyncio.run(pending(other)) == asyncio.run(pending(root))


def ranges_of(rig: Rig) -> dict[int, list[tuple[int, int]]]:
    """Return the pending ranges of all levels."""
    levels = rig.service.levels.items()
    return {
        n: [(s.submitted, s.end) for s in level.cursor.segments if s.pending] for n, level in levels
    }
