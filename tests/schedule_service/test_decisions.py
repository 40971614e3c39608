"""Level messages cancelled, moved and fired: verdicts, restarts, and skipped units."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from delayed_delivery.pending import Verdict
from duemq_common.topics import DECISION_TOPIC
from schedule_service.cursor import joined_ranges
from schedule_service.decisions import NOT_TAKEN
from schedule_service.deliverer import Deliverer
from tests.support.level_rig import Rig, level_service
from tests.support.synchronous import Synchronous

DONE, CANCELLED, DELIVERED = [Verdict.DONE], [Verdict.CANCELLED], [Verdict.DELIVERED]


def one(*offsets: int) -> Any:
    return np.array(offsets, np.int64)


def offsets_of(batch: Any) -> Any:
    return batch.filled["phys_offset"].copy()


def delay_forever(batch: Any, now_ms: int) -> None:
    """A put hook that takes every message like one with a time of its own."""
    assert (batch.filled["timer_value"] > now_ms).all()
    batch.filled["real_topic_index"] = batch.filled["topic_index"]
    batch.filled["topic_index"] += 1


@pytest.mark.sampled
@pytest.mark.parametrize("end", ["none", "close", "crash", "persist crash"])
@pytest.mark.parametrize("decide", ["cancel", "fire", "move"])
@pytest.mark.parametrize("step", [1, 3])
def test_settled_units_are_skipped(tmp_path: Path, decide: str, end: str, step: int) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "held")) as rig:
            offsets = offsets_of(rig.send(3, count=300))
            port = rig.plugin.pending_messages()
            mine = offsets[::step]
            if decide == "move":
                decided = port.move(mine, mine * 0 + rig.clock.now_ms() + 50_000, delay_forever)
            else:
                decided = getattr(port, decide)(mine)
            assert (decided.verdicts == Verdict.DONE).all(), decided.remarks
            assert rig.service.levels[3].cursor.pending == 300 - mine.size
            again = port.cancel(mine)
            assert (again.verdicts == Verdict.DELIVERED).all()
            if end == "none":
                await finish(rig, mine)
                return
            if end.startswith("persist"):
                await rig.persist()
            if end.endswith("crash"):
                rig.crash()
            clock = rig.clock
        async with level_service(tmp_path, clock, topics=("T", "held")) as rig:
            assert rig.service.levels[3].cursor.pending == 300 - mine.size
            await rig.persist()
            await finish(rig, mine)

    async def finish(rig: Rig, mine: npt.NDArray[np.int64]) -> None:
        await rig.advance(10_000)
        numbers = sorted(int(body[4:]) for body in rig.bodies())
        rest = [n for n in range(300) if n % step]
        assert numbers == (list(range(300)) if decide == "fire" else rest)
        cursor = rig.service.levels[3].cursor
        assert (cursor.pending, cursor.settled) == (0, set())

    asyncio.run(steps())


def test_each_message_moves_to_its_own_time(tmp_path: Path) -> None:
    """The first one is no longer pending: its time is not that of the second one."""

    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "held")) as rig:
            offsets = offsets_of(rig.send(3, count=3))
            port, now_ms, moved = rig.plugin.pending_messages(), rig.clock.now_ms(), list[int]()

            def delay(batch: Any, at_ms: int) -> None:
                moved.extend((batch.filled["timer_value"] - now_ms).tolist())
                delay_forever(batch, at_ms)

            assert port.cancel(offsets[:1]).verdicts.tolist() == DONE
            decided = port.move(offsets, now_ms + one(20_000, 30_000, 40_000), delay)
            assert decided.verdicts.tolist() == [Verdict.DELIVERED, Verdict.DONE, Verdict.DONE]
            assert moved == [30_000, 40_000]

    asyncio.run(steps())


def test_found_by_key_topic_and_offset(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "U")) as rig:
            first = offsets_of(rig.send(3, b"a", UNIQ_KEY="ua", KEYS="k both"))
            offsets_of(rig.send(4, b"b", topic="U", UNIQ_KEY="ub", KEYS="both"))
            port, now_ms = Synchronous(rig.plugin.pending_messages()), rig.clock.now_ms()
            found = port.by_key("", ["both", "absent"], unique=False)
            assert found.due_ms.tolist() == [now_ms + 10_000, now_ms + 60_000]
            assert found.verdicts.tolist() == [Verdict.DONE, Verdict.UNKNOWN]
            assert port.by_key("U", ["both"], unique=False).offsets.size == 1
            assert port.by_key("", ["both"], unique=True).offsets.size == 0
            assert port.by_offset(first).offsets.tolist() == first.tolist()
            assert port.by_offset(one(7, 1 << 40)).verdicts.tolist() == [Verdict.UNKNOWN] * 2
            [piece] = port.pieces("U")
            assert piece.keys == [b"ub"]
            assert port.cancel(piece.offsets).verdicts.tolist() == DONE
            assert port.pieces("U") == []
            assert port.by_key("", ["ub"], unique=True).verdicts.tolist() == CANCELLED
            await rig.advance(10_000)
            assert rig.bodies() == [b"a"]
            assert port.by_offset(first).verdicts.tolist() == DELIVERED
            await rig.advance(60_000)
            assert rig.bodies("U") == []
            [record] = rig.records(DECISION_TOPIC)
            assert record.prepared_offset == -(int(piece.offsets[0]) + 1)

    asyncio.run(steps())


def test_a_moved_message_that_is_not_pending_stays_where_it_is(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            offsets = offsets_of(rig.send(3, b"a"))
            later = one(rig.clock.now_ms() + 99_000)
            decided = rig.plugin.pending_messages().move(offsets, later, lambda batch, now_ms: None)
            assert decided.verdicts.tolist() == [Verdict.REFUSED]
            assert decided.remarks == {0: NOT_TAKEN}
            await rig.advance(10_000)
            assert rig.bodies() == [b"a"]

    asyncio.run(steps())


def test_a_record_follows_a_fired_message(tmp_path: Path) -> None:
    """An audit needs it to know that the delivery was not early."""

    async def steps() -> None:
        async with level_service(tmp_path, topics=("T",)) as rig:
            offsets = offsets_of(rig.send(3, count=3))
            assert (rig.plugin.pending_messages().fire(offsets[:2]).verdicts == Verdict.DONE).all()
            units = rig.store.units(DECISION_TOPIC, 0, 0, 10)
            notes = [rig.store.read_record(int(unit["phys_offset"])) for unit in units]
            assert [-note.prepared_offset - 1 for note in notes] == offsets[:2].tolist()
            assert {note.properties["DUEMQ_DECISION"] for note in notes} == {"fired"}

    asyncio.run(steps())


def test_messages_that_follow_each_other_are_delivered_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes to quarantine has a remark of its own, and no record of an early delivery."""
    sizes, deliver = list[int](), Deliverer.deliver_batch

    def counted(self: Deliverer, level: int, first_offset: int, units: Any, now_ms: int) -> Any:
        sizes.append(units.size)
        return deliver(self, level, first_offset, units, now_ms)

    async def steps() -> None:
        async with level_service(tmp_path, topics=("T",)) as rig:
            batches = [rig.send(3, count=2), rig.send(3, topic="gone"), rig.send(3, count=3)]
            offsets = np.concatenate([offsets_of(batch) for batch in batches])
            other = offsets_of(rig.send(2))
            monkeypatch.setattr(Deliverer, "deliver_batch", counted)
            fired = np.concatenate([offsets[:4], offsets[5:], other])
            decided = rig.plugin.pending_messages().fire(fired)
            assert decided.verdicts.tolist() == DONE * 6
            assert decided.remarks.keys() == {2}
            assert decided.remarks[2].startswith("it went to quarantine, topic_missing")
            assert sizes == [4, 1, 1]
            assert rig.service.levels[3].cursor.pending == 1
            units = rig.store.units(DECISION_TOPIC, 0, 0, 10)
            notes = [rig.store.read_record(int(unit["phys_offset"])) for unit in units]
            assert [-note.prepared_offset - 1 for note in notes] == np.delete(fired, 2).tolist()
            assert [note.properties["DUEMQ_LEVEL"] for note in notes] == [*"3333", "2"]

    asyncio.run(steps())


@pytest.mark.parametrize("first", [0, 2])
def test_a_queue_that_cannot_be_repaired_leaves_no_delivered_message_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """The third message, without a topic, needs the comparison of its unit."""

    def unwritable(*args: Any) -> bool:
        raise OSError(5, "Input/output error")

    async def steps() -> None:
        async with level_service(tmp_path, topics=("T",)) as rig:
            other = offsets_of(rig.send(2))
            batches = [rig.send(3, count=2), rig.send(3, topic="gone"), rig.send(3, count=3)]
            offsets = np.concatenate([offsets_of(batch) for batch in batches])
            fired = np.concatenate([other, offsets[first:]])
            with monkeypatch.context() as patched:
                patched.setattr(rig.store.repair, "compare", unwritable)
                if first:  # nothing precedes it in its batch
                    with pytest.raises(OSError, match="Input/output"):
                        rig.plugin.pending_messages().fire(fired)
                    delivered = other
                else:
                    decided = rig.plugin.pending_messages().fire(fired)
                    assert decided.remarks == {3: "[Errno 5] Input/output error"}
                    assert decided.verdicts.tolist() == [*DONE * 3, Verdict.REFUSED, *DONE * 3]
                    delivered = np.delete(fired, 3)
            units = rig.store.units(DECISION_TOPIC, 0, 0, 10)
            notes = [rig.store.read_record(int(unit["phys_offset"])) for unit in units]
            assert [-note.prepared_offset - 1 for note in notes] == delivered.tolist()
            await rig.advance(20_000)
            assert len(rig.bodies()) == 6

    asyncio.run(steps())


def test_a_time_in_the_past_is_now(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path, topics=("T", "held")) as rig:
            offsets = offsets_of(rig.send(3, count=2))
            times = one(rig.clock.now_ms(), rig.clock.now_ms() + 5)
            decided = rig.plugin.pending_messages().move(offsets, times, delay_forever)
            assert decided.verdicts.tolist() == DONE * 2
            assert rig.bodies() == [b"body0"]
            await rig.advance(10_000)
            assert rig.bodies() == [b"body0"]

    asyncio.run(steps())


def test_a_reason_belongs_to_its_message_if_others_are_due_at_once(tmp_path: Path) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            offsets, now_ms = offsets_of(rig.send(3, count=3)), rig.clock.now_ms()
            port = rig.plugin.pending_messages()
            times = one(now_ms + 5, now_ms, now_ms + 5)
            decided = port.move(offsets, times, lambda batch, now_ms: None)
            assert decided.verdicts.tolist() == [Verdict.REFUSED, Verdict.DONE, Verdict.REFUSED]
            assert decided.remarks == {0: NOT_TAKEN, 2: NOT_TAKEN}

    asyncio.run(steps())


@pytest.mark.parametrize(
    ("ranges", "left", "filled"),
    [
        ([], [], 0),
        ([(0, 5)], [(0, 5)], 0),
        ([(0, 1), (2, 3), (9, 10), (11, 12)], [(0, 3), (9, 12)], 2),
        ([(0, 1), (2, 3), (4, 5)], [(0, 5)], 2),
    ],
)
def test_small_holes_are_filled(
    ranges: list[tuple[int, int]], left: list[tuple[int, int]], filled: int
) -> None:
    found, holes = joined_ranges(ranges, 2)
    assert (found, len(holes)) == (left, filled)


@pytest.mark.finding("B9")
def test_settled_units_are_not_due_next(tmp_path: Path) -> None:
    def shown(rig: Rig) -> tuple[int, int | None]:
        view = rig.plugin.admin_views()["levels"]()["levels"][2]
        metric = rig.host.metrics.get_sample_value
        due_s = metric("duemq_level_next_due_timestamp_seconds", {"level": "3"})
        assert metric("duemq_level_pending", {"level": "3"}) == view["pending"]
        assert due_s == (view["next_due_ms"] and view["next_due_ms"] / 1_000)
        return view["pending"], view["next_due_ms"]

    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            first = offsets_of(rig.send(3, count=2))
            first_ms = rig.plugin.admin_views()["levels"]()["levels"][2]["next_due_ms"]
            rig.clock.advance(700)
            last = offsets_of(rig.send(3))
            assert shown(rig) == (3, first_ms)
            rig.plugin.pending_messages().cancel(first)
            assert shown(rig) == (1, first_ms + 700)
            rig.plugin.pending_messages().cancel(last)
            assert shown(rig) == (0, None)
            rig.clock.advance(400)
            rig.send(3)
            assert shown(rig) == (1, first_ms + 1_100)

    asyncio.run(steps())


def test_the_promised_time_of_a_record_is_that_of_its_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            plain, level = rig.send(0).rows[0].copy(), rig.send(3).rows[0].copy()
            offsets = one(plain["phys_offset"], level["phys_offset"], 10**9)
            port = rig.plugin.pending_messages()
            expected = [-1, int(level["store_ms"]) + 10_000, -1]
            assert port.promised(offsets).tolist() == expected
            await rig.advance(10_000)
            assert port.promised(offsets).tolist() == expected
            no_units = rig.store.units("T", 0, 0, 0)
            monkeypatch.setattr(rig.store, "units", lambda *where: no_units)
            assert port.promised(offsets).tolist() == [-1, -1, -1]

    asyncio.run(steps())


def test_decisions_come_after_messages_that_can_be_delivered_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps() -> None:
        async with level_service(tmp_path) as rig:
            rig.send(1)
            port, due_ms = rig.plugin.pending_messages(), rig.clock.now_ms() + 1_000
            woken = list[bool]()
            with monkeypatch.context() as patch:
                patch.setattr(rig.service, "wake", lambda: woken.append(True))
                assert [port.wake_due(due_ms - 1), len(woken)] == [False, 0]
                assert [port.wake_due(due_ms), len(woken)] == [True, 1]
            await rig.advance(1_000)
            assert len(rig.bodies()) == 1
            assert not port.wake_due(due_ms)

    asyncio.run(steps())
