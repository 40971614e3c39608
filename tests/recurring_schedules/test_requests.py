"""Requests: what they refuse, crashes between two records, and rules of overdue occurrences."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace

from delayed_delivery import steps
from delayed_delivery.pending import Decided, Found, HitQuery, Offsets, PendingPiece, Verdict
from duemq_common.codes import RequestCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from recurring_schedules import journal, planner
from recurring_schedules.checkpoint import ScheduleCheckpoints, load_table
from recurring_schedules.definition import Definition
from recurring_schedules.journal import DELETED, ScheduleRecord
from recurring_schedules.requests import RETRY_MS, ScheduleRequests
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig
from tests.support.fakes import FakePeer
from tests.support.inline_loop import run_inline
from timer_store.pending.lookup import PendingTimers


class Killed(Exception):
    """The process ends."""


@pytest.fixture
def opened(rig: ScheduleRig) -> ScheduleRig:
    return rig.open()


def kill_before_the_cancellation(rig: ScheduleRig, action: str) -> None:
    with (
        patch.object(ScheduleRequests, "_cancel", side_effect=Killed),
        pytest.raises(Killed),
    ):
        rig.call(action, "s")
    rig.kill()
    rig.open()


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_a_start_repeats_a_cancellation(opened: ScheduleRig, action: str) -> None:
    opened.create(every_ms=10_000)
    kill_before_the_cancellation(opened, action)
    opened.run_to(MONDAY_MS + 60_000)
    assert opened.planned() == []


def test_the_occurrence_that_a_pause_cancelled_comes_after_a_resume(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    opened.call("pause", "s", note="why")
    opened.kill()
    opened.open()
    opened.call("resume", "s")
    opened.run_to(MONDAY_MS + 20_000)
    assert opened.planned() == [MONDAY_MS + 10_000, MONDAY_MS + 20_000]


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_an_occurrence_that_its_jitter_delays_is_cancelled(
    opened: ScheduleRig, action: str
) -> None:
    """The next one is planned already, and only that one was cancelled."""
    for name in ("s", "other"):
        opened.create(name, every_ms=10_000, jitter_ms=9_000)
    opened.run_to(MONDAY_MS + 10_000 + planner.GATHER_MS)
    assert opened.table.filled["planned_ms"].tolist() == [MONDAY_MS + 20_000] * 2
    assert opened.planned() == opened.planned("other") == []
    opened.call(action, "s")
    opened.run_to(MONDAY_MS + 30_000 - 1)
    assert opened.planned() == []
    assert opened.planned("other") == [MONDAY_MS + 10_000, MONDAY_MS + 20_000]


def test_a_pause_cancels_the_occurrence_that_was_planned_during_its_search(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.create(every_ms=10_000)
    by_offset, calls = PendingTimers.by_offset, list[Offsets]()

    async def search(pending: PendingTimers, offsets: Offsets) -> Found:
        calls.append(offsets)
        messages = await by_offset(pending, offsets)
        if len(calls) == 1:
            opened.clock.set_ms(MONDAY_MS + 10_000)
            opened.settle()
        return messages

    monkeypatch.setattr(PendingTimers, "by_offset", search)
    assert opened.call("pause", "s")["state"] == "paused"
    opened.run_to(MONDAY_MS + 30_000)
    assert opened.planned() == [MONDAY_MS + 10_000]
    assert len(calls) == 2


def test_a_moved_occurrence_does_not_set_a_schedule_back_at_a_start(opened: ScheduleRig) -> None:
    """Its copy is in the log after the record of the next occurrence."""
    opened.create(every_ms=10_000, jitter_ms=9_000)
    first = opened.table.filled["pending"].copy()
    opened.run_to(MONDAY_MS + 10_000 + planner.GATHER_MS)
    moved_ms = np.array([MONDAY_MS + 35_000])
    assert opened.timers.decisions.move(first, moved_ms).verdicts.tolist() == [Verdict.DONE]
    opened.kill()
    opened.open()
    opened.run_to(MONDAY_MS + 40_000 - 1)
    assert opened.planned() == [MONDAY_MS + 10_000 * number for number in (1, 2, 3)]


def test_a_cancelled_occurrence_is_not_planned_again(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    offset = opened.table.rows["pending"][:1].copy()
    assert opened.timers.decisions.cancel(offset).verdicts.tolist() == [0]
    for restart in (opened.kill, opened.close):
        restart()
        opened.open()
    opened.call("pause", "s")
    opened.call("resume", "s")
    opened.run_to(MONDAY_MS + 20_000)
    assert opened.planned() == [MONDAY_MS + 20_000]


def test_a_second_client_is_refused_or_has_created_the_same(opened: ScheduleRig) -> None:
    assert opened.create(every_ms=10_000)["created"]
    assert not opened.create(every_ms=10_000)["created"]
    with pytest.raises(RequestError, match="exists with another definition"):
        opened.create(every_ms=20_000)


@pytest.mark.parametrize(
    ("catch_up_ms", "overlap", "planned"),
    [
        (3_600_000, "all", [10, 20, 30, 40]),
        (15_000, "all", [10, 30, 40]),
        (3_600_000, "latest", [10, 40]),
    ],
)
def test_overdue_occurrences(
    opened: ScheduleRig, catch_up_ms: int, overlap: str, planned: list[int]
) -> None:
    """The first one is a timer already, which is delivered however late it is."""
    opened.create(every_ms=10_000, catch_up_ms=catch_up_ms, overlap=overlap)
    opened.kill()
    opened.clock.advance(44_000)
    opened.open()
    opened.run_to(MONDAY_MS + 44_001)
    assert opened.planned() == [MONDAY_MS + second * 1_000 for second in planned]


def test_a_clock_set_back_repeats_nothing(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    opened.run_to(MONDAY_MS + 20_000)
    opened.clock.step(-15_000)
    opened.run_to(MONDAY_MS + 30_000)
    assert opened.planned() == [MONDAY_MS + second * 1_000 for second in (10, 20, 30)]


def test_trigger_and_backfill(opened: ScheduleRig) -> None:
    opened.create(every_ms=3_600_000)
    triggered = opened.call("trigger", "s")
    assert (triggered["state"], triggered["appended"]) == ("active", 1)
    assert MONDAY_MS < triggered["planned_ms"] < triggered["next_ms"]
    day_ms = 86_400_000
    request = {"from_ms": MONDAY_MS - day_ms, "until_ms": MONDAY_MS}
    assert opened.call("backfill", "s", **request) == {**triggered, "appended": 24}
    opened.run_to(MONDAY_MS + 1)
    assert len(opened.planned()) == 25
    with pytest.raises(RequestError, match="in the future"):
        opened.call("backfill", "s", from_ms=0, until_ms=MONDAY_MS + day_ms)
    with pytest.raises(RequestError, match="more than 10000 occurrences"):
        opened.call("backfill", "s", from_ms=0, until_ms=MONDAY_MS)


@pytest.mark.parametrize("change", ["none", "deleted", "created again"])
def test_other_work_runs_during_a_backfill(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A search for the next time may take long, and a backfill has up to 10,000."""
    monkeypatch.setattr(steps, "thread_processor_s", lambda: 0.0)
    opened.create(every_ms=3_600_000)
    fields = {"action": "backfill", "name": "s", "topic": "T"}
    fields |= {"from_ms": str(MONDAY_MS - 86_400_000), "until_ms": str(MONDAY_MS)}

    async def main() -> int:
        work = opened.requests.handle(Request(RequestCode.CHANGE_SCHEDULE, fields))
        task, turns = asyncio.create_task(work), 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 5 and change != "none":
                opened.table.apply(replace(opened.table.record(opened.store, 0), state=DELETED), 0)
            if turns == 5 and change == "created again":
                definition = Definition(name="s", topic="T", every_ms=1_000)
                journal.append(opened.store, ScheduleRecord(definition=definition), MONDAY_MS)
        await task
        return turns

    if change == "none":
        assert asyncio.run(main()) >= 24
    else:
        with pytest.raises(RequestError, match=r"no schedule|created again"):
            asyncio.run(main())


def backfill(rig: ScheduleRig, peer: FakePeer) -> asyncio.Task[Response]:
    """Begin a backfill of the 240 occurrences of a day; return its task."""
    fields = {"action": "backfill", "name": "s", "topic": "T"}
    fields |= {"from_ms": str(MONDAY_MS - 86_400_000), "until_ms": str(MONDAY_MS)}
    request = Request(RequestCode.CHANGE_SCHEDULE, fields, peer=peer)
    return asyncio.create_task(rig.requests.handle(request))


def test_a_backfill_of_a_busy_broker_takes_few_turns(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn for each occurrence takes longer than a client waits if a turn takes 200 ms."""
    opened.create(every_ms=360_000)
    used_s = 0.0

    def processor_s() -> float:
        nonlocal used_s
        used_s += 0.001  # of a search
        return used_s

    monkeypatch.setattr(steps, "thread_processor_s", processor_s)

    async def main() -> int:
        nonlocal used_s
        task, turns = backfill(opened, FakePeer()), 0
        while not task.done():
            used_s += 0.2
            turns += 1
            await asyncio.sleep(0)
        assert json.loads(bytes(task.result().body))["appended"] == 240
        return turns

    assert asyncio.run(main()) < 30


def test_a_repeated_backfill_is_refused_while_the_first_one_runs(opened: ScheduleRig) -> None:
    opened.create(every_ms=360_000)

    async def main() -> None:
        first, again = backfill(opened, FakePeer()), backfill(opened, FakePeer())
        with pytest.raises(RequestError, match="a backfill of schedule s runs"):
            await again
        await first

    asyncio.run(main())
    opened.run_to(MONDAY_MS + 1)
    assert len(opened.planned()) == 240
    assert opened.call("backfill", "s", from_ms=1, until_ms=2)["appended"] == 0


def test_a_backfill_whose_connection_closed_sends_nothing(opened: ScheduleRig) -> None:
    opened.create(every_ms=360_000)

    async def main() -> None:
        peer = FakePeer()
        task = backfill(opened, peer)
        await asyncio.sleep(0)
        peer.close()
        with pytest.raises(RequestError, match="nothing is sent"):
            await task

    asyncio.run(main())
    opened.run_to(MONDAY_MS + 1)
    assert opened.planned() == []


def test_the_pending_occurrence_of_a_deleted_topic_is_in_quarantine(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    opened.store.topics.set_routing("T", write_queues=0, read_queues=0, perm=0)
    opened.run_to(MONDAY_MS + 25_000)
    reasons = [record.properties["DUEMQ_REASON"] for record in opened.delivered("DUEMQ_QUARANTINE")]
    assert reasons == ["topic_missing"], "the schedule is paused after it"


@pytest.mark.parametrize(
    ("action", "name", "more", "text"),
    [
        ("fly", "s", {}, "is one of"),
        ("pause", "absent", {}, "no schedule 'absent'"),
        ("pause", "s", {"topic": "U"}, "the field topic is not T"),
        ("backfill", "s", {"from_ms": "x", "until_ms": 1}, "from_ms is not a time"),
    ],
)
def test_refused_requests(
    opened: ScheduleRig, action: str, name: str, more: dict[str, object], text: str
) -> None:
    opened.create(every_ms=10_000)
    with pytest.raises(RequestError, match=text):
        opened.call(action, name, **more)


@pytest.mark.parametrize("topic", ["absent", "rmq_sys_wheel_timer"])
def test_topics_that_cannot_be_sent_to(opened: ScheduleRig, topic: str) -> None:
    with pytest.raises(RequestError, match=r"does not exist|belongs to the broker"):
        opened.create(every_ms=10_000, topic=topic)


@contextmanager
def full_disk() -> Iterator[None]:
    """Refuse the records that cancel timers."""
    decided = Decided(np.array([Verdict.REFUSED], np.int8), {0: "the disk is full"})
    with patch.object(PendingTimers, "cancel", return_value=decided):
        yield


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_a_promoted_replica_repeats_a_cancellation(opened: ScheduleRig, action: str) -> None:
    """Its checkpoint is after the record of the pause, which the master did not survive."""
    opened.create(every_ms=10_000)
    table = load_table(opened.store)
    follower = ScheduleCheckpoints(opened.store, table, opened.clock, follows=True)
    with patch.object(ScheduleRequests, "_cancel", side_effect=Killed), pytest.raises(Killed):
        opened.call(action, "s")
    run_inline(follower.persist())
    opened.kill()
    opened.open()
    opened.run_to(MONDAY_MS + 60_000)
    assert opened.planned() == []


def test_a_start_with_a_full_disk_cancels_an_occurrence_later(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    with full_disk():
        kill_before_the_cancellation(opened, "pause")
    run_inline(opened.requests.finish_withdrawals())
    opened.run_to(MONDAY_MS + 60_000)
    assert opened.planned() == []


def test_a_schedule_continues_once_its_occurrence_is_cancelled(opened: ScheduleRig) -> None:
    """Otherwise the occurrence would be delivered twice after a resume."""
    opened.create(every_ms=10_000)
    with full_disk():
        for action in ("pause", "pause", "resume"):
            with pytest.raises(RequestError, match="occurrence of schedule s stays pending"):
                opened.call(action, "s")
    opened.call("resume", "s")
    opened.run_to(MONDAY_MS + 20_000)
    assert opened.planned() == [MONDAY_MS + 10_000, MONDAY_MS + 20_000]


def test_a_refused_cancellation_is_repeated(opened: ScheduleRig) -> None:
    opened.create(every_ms=10_000)
    with full_disk(), pytest.raises(RequestError, match="the disk is full"):
        opened.call("delete", "s")
    asyncio.run(_repeat(opened))
    opened.run_to(MONDAY_MS + 60_000)
    assert opened.planned() == []


def test_a_repetition_that_another_one_overtakes_changes_nothing(
    opened: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pause the schedule again, which was resumed meanwhile."""
    opened.create(every_ms=10_000)
    with full_disk(), pytest.raises(RequestError, match="the disk is full"):
        opened.call("pause", "s")
    by_offset, calls = PendingTimers.by_offset, list[Offsets]()

    async def main() -> None:
        released = asyncio.Event()

        async def search(pending: PendingTimers, offsets: Offsets) -> Found:
            calls.append(offsets)
            messages = await by_offset(pending, offsets)
            if len(calls) == 1:
                await released.wait()
            return messages

        monkeypatch.setattr(PendingTimers, "by_offset", search)
        slow = asyncio.create_task(opened.requests.finish_withdrawals())
        await asyncio.sleep(0)
        fields = {"action": "resume", "name": "s", "topic": "T"}
        await opened.requests.handle(Request(RequestCode.CHANGE_SCHEDULE, fields))
        released.set()
        await slow

    asyncio.run(main())
    opened.run_to(MONDAY_MS + 20_000)
    assert opened.planned() == [MONDAY_MS + 10_000, MONDAY_MS + 20_000]


async def _repeat(rig: ScheduleRig) -> None:
    task = asyncio.create_task(rig.requests.run())
    for _ in range(20):
        rig.clock.advance(RETRY_MS // 10)
        await asyncio.sleep(0)
    rig.requests.stop()
    await task


def test_schedules_need_no_key_index(rig: ScheduleRig) -> None:
    rig.store_changes = {"index_enable": False}
    rig.open()
    rig.create("ended", every_ms=10_000, end_ms=MONDAY_MS + 15_000)
    rig.create("paused", every_ms=100_000)
    rig.run_to(MONDAY_MS + 35_000)
    rig.call("pause", "paused")
    rig.kill()
    rig.open()
    for name in ("ended", "paused"):
        rig.call("delete", name)
    assert rig.planned("ended") == [MONDAY_MS + 10_000]
    assert len(rig.table) == 0


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_a_moved_occurrence_is_cancelled_without_key_index(rig: ScheduleRig, action: str) -> None:
    """The move makes another record, which the schedule does not know."""
    rig.store_changes = {"index_enable": False}
    rig.open()
    rig.create("s", every_ms=100_000)
    rig.create("other", every_ms=100_000)
    offset = int(rig.table.rows["pending"][rig.table.find("s")])
    due_ms = np.array([rig.clock.now_ms() + 200_000])
    assert (rig.timers.decisions.move(np.array([offset]), due_ms).verdicts == Verdict.DONE).all()
    rig.call(action, "s")
    rig.run_to(rig.clock.now_ms() + 250_000)
    assert (rig.planned("s"), len(rig.planned("other"))) == ([], 2)


def test_an_occurrence_moved_during_the_search_without_key_index_is_cancelled(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves from a slot that the search has not reached to one that it has passed."""
    rig.store_changes = {"index_enable": False}
    rig.open()
    rig.create("s", every_ms=300_000)
    rig.create("other", every_ms=100_000)
    first, other = (int(rig.table.rows["pending"][rig.table.find(name)]) for name in ("s", "other"))
    search, pieces = PendingTimers.search, list[PendingPiece]()

    def move(offset: int, delay_ms: int) -> None:
        due_ms = np.array([rig.clock.now_ms() + delay_ms])
        decided = rig.timers.decisions.move(np.array([offset]), due_ms)
        assert (decided.verdicts == Verdict.DONE).all()

    def search_of_one(self: PendingTimers, query: HitQuery, cursor: str) -> PendingPiece:
        pieces.append(search(self, replace(query, count_max=1), cursor))
        if len(pieces) == 1:
            assert pieces[0].offsets.tolist() == [other]
            [copy] = set(search(self, query, "").offsets.tolist()) - {other}
            move(copy, 20_000)
        return pieces[-1]

    move(first, 200_000)
    monkeypatch.setattr(PendingTimers, "search", search_of_one)
    rig.call("pause", "s")
    assert len(pieces) > 1
    rig.run_to(rig.clock.now_ms() + 250_000)
    assert rig.planned("s") == []
