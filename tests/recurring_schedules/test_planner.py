"""Planner: occurrences that the store refuses, and due times."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import pytest

from delayed_delivery.steps import at_once
from duemq_common.clock import Signal
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from recurring_schedules import journal, planner
from recurring_schedules.definition import (
    NAME_CHARACTERS_MAX,
    PROPERTIES_BYTES_MAX,
    TIME_MS_MAX,
    Definition,
)
from recurring_schedules.journal import PAUSED, ScheduleRecord
from recurring_schedules.occurrences import StepWork, due_ms_of
from recurring_schedules.planner import TURN_OCCURRENCES, Planner
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig

EVERY_MS, WEEK_MS = 10_000, 7 * 86_400_000
URGENT_MS = 20  # after its creation, a schedule is planned before others that are less urgent


class Refusal:
    """Put hook that refuses all messages while it is switched on."""

    def __init__(self) -> None:
        self.is_on, self.refused = False, 0

    def __call__(self, batch: PutBatch, now_ms: int) -> None:
        if self.is_on:
            batch.rows["status"][: batch.count] = ResponseCode.SERVICE_NOT_AVAILABLE
            self.refused += batch.count


def test_an_occurrence_that_the_store_refuses_is_appended_later(rig: ScheduleRig) -> None:
    refusal = Refusal()
    rig.open()
    rig.planner = Planner(rig.store, rig.table, rig.clock, [rig.hook, refusal])
    rig.create(every_ms=EVERY_MS)
    refusal.is_on = True
    rig.run_to(MONDAY_MS + EVERY_MS + 5_000)  # the second occurrence is refused
    assert refusal.refused > 1
    refusal.is_on = False
    rig.run_to(MONDAY_MS + 3 * EVERY_MS)
    assert rig.planned() == [MONDAY_MS + number * EVERY_MS for number in (1, 2, 3)]


def test_an_occurrence_beyond_the_longest_delay_is_seldom_tried(rig: ScheduleRig) -> None:
    rig.open()
    rig.create(every_ms=WEEK_MS, phase_ms=MONDAY_MS % WEEK_MS)
    rig.run_to(MONDAY_MS + 60_000)
    assert rig.planner.stats.refused == 1
    rig.run_to(MONDAY_MS + WEEK_MS)
    assert rig.planned() == [MONDAY_MS + WEEK_MS]
    assert rig.planner.stats.refused < 20


@pytest.mark.parametrize("jitter_ms", [0, 1, 5_000, 60_000])
def test_a_due_time_is_never_before_the_planned_time(jitter_ms: int) -> None:
    for name in map(str, range(200)):
        definition = Definition(name=name, topic="T", every_ms=EVERY_MS, jitter_ms=jitter_ms)
        due_ms = due_ms_of(definition, MONDAY_MS, MONDAY_MS + EVERY_MS)
        assert MONDAY_MS <= due_ms < MONDAY_MS + EVERY_MS
        assert due_ms - MONDAY_MS <= jitter_ms


def test_an_occurrence_is_stored_at_its_planned_time(rig: ScheduleRig) -> None:
    rig.open()
    rig.create(every_ms=EVERY_MS)
    rig.run_to(MONDAY_MS + EVERY_MS - 1)
    assert rig.occurrences() == []
    rig.run_to(MONDAY_MS + EVERY_MS)
    assert rig.occurrences() == [(MONDAY_MS + EVERY_MS, MONDAY_MS + EVERY_MS)]


def test_a_schedule_whose_topic_was_deleted_is_paused_with_the_reason(rig: ScheduleRig) -> None:
    rig.open()
    topics = rig.store.topics
    rig.create(every_ms=EVERY_MS)
    rig.run_to(MONDAY_MS + EVERY_MS)
    topics.set_routing("T", write_queues=0, read_queues=0, perm=0)
    rig.run_to(MONDAY_MS + 3 * EVERY_MS)
    rig.kill()
    rig.open()  # the rig creates the topic
    record = rig.table.record(rig.store, rig.table.find("s"))
    assert (record.state, record.note) == (PAUSED, "paused by the broker: topic T does not exist")
    topics = rig.store.topics
    topics.set_routing("T", write_queues=0, read_queues=0, perm=0)
    for action in ("resume", "trigger"):
        with pytest.raises(RequestError, match="topic T does not exist: create it first"):
            rig.call(action, "s")
    topics.set_routing("T", write_queues=4, read_queues=4, perm=6)
    rig.call("resume", "s")
    rig.run_to(MONDAY_MS + 5 * EVERY_MS)
    planned = rig.planned()
    assert planned[0] == MONDAY_MS + EVERY_MS
    assert planned[-2:] == [MONDAY_MS + 4 * EVERY_MS, MONDAY_MS + 5 * EVERY_MS]
    assert len(set(planned)) == len(planned)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"cron": "* * * * *", "zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"cron": "61 * * * *"}, "the cron expression '61 * * * *' is invalid: Bad minute"),
    ],
)
def test_a_schedule_that_this_host_cannot_evaluate_is_paused_with_the_reason(
    rig: ScheduleRig, values: dict[str, str], reason: str
) -> None:
    """The zones of a host, and the accepted expressions, change with its packages."""
    rig.open()
    append_record(rig, Definition(name="s", topic="T", **values))
    rig.create("other", every_ms=EVERY_MS)
    rig.run_to(MONDAY_MS + EVERY_MS)
    assert rig.planned("other") == [MONDAY_MS + EVERY_MS]
    record = rig.table.record(rig.store, rig.table.find("s"))
    assert record.state == PAUSED
    assert record.note.startswith(f"paused by the broker: {reason}")
    for action in ("resume", "backfill"):
        with pytest.raises(RequestError, match=re.escape(reason)):
            rig.call(action, "s", from_ms=0, until_ms=1)


def test_occurrences_with_the_largest_properties_are_delivered(rig: ScheduleRig) -> None:
    rig.open()
    name = "x" * NAME_CHARACTERS_MAX
    overhead = len(encode_properties({"TAGS": "t", "KEYS": "k", "a": ""}))
    value = "v" * (PROPERTIES_BYTES_MAX - overhead)
    rig.create(name, every_ms=EVERY_MS, tags="t", keys="k", properties={"a": value})
    rig.run_to(MONDAY_MS + EVERY_MS)
    assert rig.planned(name) == [MONDAY_MS + EVERY_MS]
    with pytest.raises(RequestError, match="more than 31000 bytes"):
        rig.create("s", every_ms=EVERY_MS, tags="t", keys="k", properties={"a": value + "v"})


def test_a_schedule_ends_with_the_calendar(rig: ScheduleRig) -> None:
    rig.open()
    definition = Definition(name="s", topic="T", every_ms=TIME_MS_MAX, exclude=("* * * * *",))
    append_record(rig, definition)
    rig.run_to(MONDAY_MS + 2 * EVERY_MS)
    assert rig.planned() == [MONDAY_MS + EVERY_MS]
    assert rig.table.rows["next_ms"][rig.table.find("s")] == 0


def test_an_urgent_schedule_is_planned_before_a_backlog_of_others(rig: ScheduleRig) -> None:
    rig.open()
    names = [f"backlog-{number}" for number in range(3 * TURN_OCCURRENCES)]
    for name in names:
        store_definition(rig, Definition(name=name, topic="T", every_ms=60_000))
    assert rig.planner.turn(rig.clock.now_ms())
    store_definition(rig, Definition(name="urgent", topic="T", every_ms=1_000))
    rig.clock.advance(URGENT_MS)
    assert rig.planner.turn(rig.clock.now_ms())
    pending = {name: rig.table.rows["pending"][rig.table.find(name)] for name in names}
    assert sum(offset >= 0 for offset in pending.values()) == 2 * TURN_OCCURRENCES - 1
    assert rig.table.rows["pending"][rig.table.find("urgent")] >= 0


def backlog(rig: ScheduleRig) -> dict[str, list[int]]:
    """Create schedules, of which one turn plans some and leaves the others in the queue.

    Returns:
        The planned time of the first occurrence of each schedule by its name.
    """
    rig.open()
    names = [f"backlog-{number}" for number in range(2 * TURN_OCCURRENCES)]
    for number, name in enumerate(names):
        every_ms, phase_ms = 10 * EVERY_MS, (MONDAY_MS + EVERY_MS + number) % (10 * EVERY_MS)
        definition = Definition(name=name, topic="T", every_ms=every_ms, phase_ms=phase_ms)
        store_definition(rig, definition)
    assert rig.planner.turn(rig.clock.now_ms())
    return {name: [MONDAY_MS + EVERY_MS + number] for number, name in enumerate(names)}


def test_a_backlog_is_planned_after_the_clock_was_set_back(rig: ScheduleRig) -> None:
    times = backlog(rig)
    rig.clock.set_ms(MONDAY_MS - 1_000)
    rig.settle()
    rig.run_to(MONDAY_MS + 2 * EVERY_MS)
    assert {name: rig.planned(name) for name in times} == times


def test_a_schedule_that_is_renewed_in_the_queue_is_planned_once(rig: ScheduleRig) -> None:
    times = backlog(rig)
    for name in times:
        record = rig.table.record(rig.store, rig.table.find(name))
        journal.append(rig.store, record, rig.clock.now_ms())
    rig.run_to(MONDAY_MS + 2 * EVERY_MS)
    assert {name: rig.planned(name) for name in times} == times


def test_an_overdue_occurrence_is_not_repeated_after_a_kill(rig: ScheduleRig) -> None:
    """It is a timer, too, since a start reads the progress from timers."""
    rig.open()
    rig.create(every_ms=EVERY_MS)
    rig.clock.set_ms(MONDAY_MS + 3 * EVERY_MS)
    rig.planner.turn(rig.clock.now_ms())
    rig.kill()
    rig.open()
    rig.run_to(MONDAY_MS + 4 * EVERY_MS)
    assert rig.planned() == [MONDAY_MS + EVERY_MS * number for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(("every_ms", "pauses"), [(1_000, False), (3_600_000, True)])
def test_a_backlog_is_appended_with_pauses_if_nothing_in_it_is_urgent(
    rig: ScheduleRig, every_ms: int, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.open()
    monkeypatch.setattr(planner, "BACKLOG_SLOTS", 2 * TURN_OCCURRENCES)
    for number in range(4 * TURN_OCCURRENCES):
        definition = Definition(name=str(number), topic="T", every_ms=every_ms)
        store_definition(rig, definition)
    paused: list[float] = []

    async def pause(_: Signal, seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(Signal, "wait_for", pause)

    async def work() -> None:
        running = asyncio.create_task(rig.planner.run())
        for _ in range(100):  # turns of the loop; the planner needs a few of them
            await asyncio.sleep(0)
        rig.planner.stop()
        await running

    asyncio.run(work())
    assert rig.planner.stats.planned == 4 * TURN_OCCURRENCES
    assert paused == [planner.PAUSE_S] * pauses


def test_pauses_of_many_schedules_are_one_line_with_their_number(
    rig: ScheduleRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.open()
    for number in range(40):
        rig.create(str(number), every_ms=EVERY_MS, phase_ms=200 * number)
    rig.store.topics.set_routing("T", write_queues=0, read_queues=0, perm=0)
    rig.run_to(MONDAY_MS + 3 * EVERY_MS)
    reason = "paused: topic T does not exist"
    lines = [record.getMessage() for record in caplog.records if "paused" in record.getMessage()]
    assert lines[0].startswith("schedule ")
    assert lines[0].endswith(reason)
    assert len(lines) == 2
    assert lines[1].startswith("39 more schedules are paused; the last one is ")


WEEKENDS = ("* * * * 6", "* * * * 0")
FRIDAY_MS = MONDAY_MS + 5 * 86_400_000 - 60_000  # 23:59, before 2,880 excluded minutes


def test_a_long_search_is_continued_in_later_turns(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search over a weekend takes 0.1 s; the other schedule is planned meanwhile."""
    monkeypatch.setattr("recurring_schedules.occurrences.STEP_WORK", 500)
    rig.clock.set_ms(FRIDAY_MS - 120_000)
    rig.open()
    rig.create("working-days", cron="* * * * *", exclude=WEEKENDS)
    rig.create("other", every_ms=1_000)
    works = count_works(rig, monkeypatch)
    rig.run_to(FRIDAY_MS + 10_000)
    assert max(works) <= 2 * (500 + 100)
    assert len(works) > 2_880 * 33 / 1_000
    assert rig.planned("working-days") == [FRIDAY_MS - 60_000, FRIDAY_MS]
    assert [at_ms - planned_ms for planned_ms, at_ms in rig.occurrences("other")][-9:] == [0] * 9
    row = rig.table.rows[rig.table.find("working-days")]
    assert row["planned_ms"] == FRIDAY_MS + 60_000 + 2 * 86_400_000


@pytest.mark.parametrize("action", ["pause", "delete"])
def test_a_schedule_that_changes_during_a_search_has_no_occurrence(
    rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr("recurring_schedules.occurrences.STEP_WORK", 500)
    rig.clock.set_ms(FRIDAY_MS - 120_000)
    rig.open()
    rig.create(cron="* * * * *", exclude=WEEKENDS)
    rig.clock.set_ms(FRIDAY_MS - 60_000)
    rig.work()
    for _ in range(5):
        assert rig.planner.turn(rig.clock.now_ms())
    rig.call(action, "s")
    rig.run_to(FRIDAY_MS + 60_000)
    assert rig.planned() == [FRIDAY_MS - 60_000]
    assert not rig.planner.turn(rig.clock.now_ms())


class CountedWork(StepWork):
    """Work of a step, and the work since `total` was set."""

    def __init__(self) -> None:
        self._units = self.total = 0

    @property
    def units(self) -> int:
        return self._units

    @units.setter
    def units(self, units: int) -> None:
        self.total += max(units - self._units, 0)
        self._units = units


def count_works(rig: ScheduleRig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the work of the searches of each turn."""
    work, works = CountedWork(), list[int]()
    monkeypatch.setattr(planner, "StepWork", lambda: work)
    rig.planner = Planner(rig.store, rig.table, rig.clock, [rig.hook])
    turn = rig.planner.turn

    def one_turn(now_ms: int, slots: Sequence[int] | None = None) -> bool:
        work.total = 0
        is_more = turn(now_ms, slots)
        works.append(work.total)
        return is_more

    monkeypatch.setattr(rig.planner, "turn", one_turn)
    return works


def store_definition(rig: ScheduleRig, definition: Definition) -> None:
    """Create a schedule as a message does, without its first occurrence."""
    now_ms = rig.clock.now_ms()
    record = at_once(rig.requests.record_of(definition, now_ms, StepWork()))
    journal.append(rig.store, record, now_ms)


def append_record(rig: ScheduleRig, definition: Definition) -> None:
    """Append the record of a schedule without a check of its definition."""
    now_ms = rig.clock.now_ms()
    record = ScheduleRecord(definition=definition, planned_ms=now_ms, next_ms=now_ms + EVERY_MS)
    journal.append(rig.store, record, now_ms)
