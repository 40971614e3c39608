"""Requests: what they refuse, crashes between two records, and rules of overdue occurrences."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from duemq_common.errors import RequestError
from recurring_schedules.requests import ScheduleRequests
from tests.recurring_schedules.rig import MONDAY_MS, ScheduleRig


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
    assert opened.call("trigger", "s") == {"appended": 1}
    day_ms = 86_400_000
    request = {"from_ms": MONDAY_MS - day_ms, "until_ms": MONDAY_MS}
    assert opened.call("backfill", "s", **request) == {"appended": 24}
    opened.run_to(MONDAY_MS + 1)
    assert len(opened.planned()) == 25
    with pytest.raises(RequestError, match="in the future"):
        opened.call("backfill", "s", from_ms=0, until_ms=MONDAY_MS + day_ms)
    with pytest.raises(RequestError, match="more than 10000 occurrences"):
        opened.call("backfill", "s", from_ms=0, until_ms=MONDAY_MS)


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
