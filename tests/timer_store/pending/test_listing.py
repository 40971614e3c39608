"""Lists of pending timers: each one once, in due order, for any page size, slot and lap."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.steps import at_once
from tests.support.timer_rig import TimerRig
from timer_store.pending import walk
from timer_store.pending.listed_rows import without_duplicates
from timer_store.pending.listing import Page, list_by_key, list_timers, next_due_ms
from timer_store.pending.walk import Cursor, Query, Walk

HOUR_MS = 3_600_000
YEAR_S = 366 * 86_400


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, roll_window_slots=120, max_delay_s=YEAR_S).open()
    yield rig
    if rig.is_open:
        rig.close()


def page_of(rig: TimerRig, query: Query) -> Page:
    if query.key:
        return asyncio.run(list_by_key(rig.timers, query))
    return at_once(list_timers(rig.timers, query))


def listed(rig: TimerRig, limit: int = 7, **query: str | int) -> list[dict[str, Any]]:
    """Return all timers of a list, page by page."""
    found, cursor = [], Cursor()
    for _ in range(10_000):
        page = page_of(rig, Query(limit=limit, cursor=cursor, **query))
        assert len(page.timers) <= limit
        found += page.timers
        if page.cursor is None:
            return found
        cursor = Cursor.parse(str(page.cursor))
    raise AssertionError("the list does not end")


def dues(found: list[dict[str, Any]]) -> list[int]:
    return [timer["due_ms"] for timer in found]


def put_random(rig: TimerRig, count: int, horizon_ms: int, seed: int = 1) -> list[tuple[int, str]]:
    """Put timers; return (due_ms, topic), in due order."""
    choose, now_ms = random.Random(seed), rig.clock.now_ms()
    wanted = [(now_ms + choose.randint(1, horizon_ms), choose.choice("TU")) for _ in range(count)]
    for due_ms, topic in wanted:
        rig.put(due_ms, topic, KEYS=f"k{due_ms % 7} all", UNIQ_KEY=f"U{due_ms}")
    return sorted(wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("horizon_ms", [400, 30_000, 10 * 60_000, 30 * 86_400_000])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_every_timer_is_listed_once_in_due_order(
    rig: TimerRig, horizon_ms: int, limit: int
) -> None:
    expected = put_random(rig, 120, horizon_ms)
    assert dues(listed(rig, limit)) == [due_ms for due_ms, _ in expected]


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "in the wheel"])
@pytest.mark.parametrize("offset_ms", [-1, 0, 1])
def test_a_page_may_end_between_timers_of_one_due_time(
    rig: TimerRig, is_staged: bool, offset_ms: int
) -> None:
    due_ms = rig.clock.now_ms() // 1_000 * 1_000 + 60_000 + offset_ms
    for _ in range(5):
        rig.put(due_ms)
    if is_staged:
        rig.advance(due_ms - 2 - rig.clock.now_ms())
    assert dues(listed(rig, limit=2)) == [due_ms] * 5


@pytest.mark.parametrize("horizon_ms", [30_000, HOUR_MS])
def test_pages_while_time_passes(rig: TimerRig, horizon_ms: int) -> None:
    wanted = put_random(rig, 100, horizon_ms)
    rig.advance(wanted[50][0] - rig.clock.now_ms())
    left = [due_ms for due_ms, _ in wanted if due_ms > rig.clock.now_ms()]
    assert dues(listed(rig)) == left
    assert next_due_ms(rig.timers) == left[0]


def test_a_topic_and_a_time_range(rig: TimerRig) -> None:
    wanted = put_random(rig, 200, 20 * 60_000)
    low, high = wanted[60][0], wanted[150][0]
    mine = [due_ms for due_ms, topic in wanted if topic == "U" and low <= due_ms < high]
    found = listed(rig, topic="U", from_ms=low, to_ms=high)
    assert dues(found) == mine
    assert {timer["topic"] for timer in found} == {"U"}
    assert listed(rig, topic="Absent") == []


def test_a_key_is_found_through_the_index(rig: TimerRig) -> None:
    expected = put_random(rig, 60, 10 * 60_000)
    with_key = [due_ms for due_ms, _ in expected if due_ms % 7 == 3]
    assert dues(listed(rig, 1_000, key="k3")) == with_key
    [one] = listed(rig, key=f"U{expected[17][0]}")
    assert (one["due_ms"], one["keys"]) == (expected[17][0], f"k{expected[17][0] % 7} all")
    page = page_of(rig, Query(key="all", skip=20, limit=5))
    assert dues(page.timers) == [due_ms for due_ms, _ in expected[20:25]]
    rig.advance(expected[30][0] - rig.clock.now_ms())
    assert dues(listed(rig, 1_000, key="all")) == [due_ms for due_ms, _ in expected[31:]]


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_a_key_of_many_timers_has_pages(rig: TimerRig, limit: int) -> None:
    """The newest records with the key are no longer pending."""
    due_ms = rig.clock.now_ms() + 60_000
    for number in range(40):
        rig.put(due_ms + number // 5, UNIQ_KEY=f"U{number}", KEYS="all")
    newest = [rig.put(due_ms + 90_000, UNIQ_KEY=f"N{n}", KEYS="all") for n in range(30)]
    rig.work()
    rig.timers.decisions.cancel(np.concatenate([one.filled["phys_offset"] for one in newest]))
    assert [one["unique_key"] for one in listed(rig, limit, key="all")] == [
        f"U{n}" for n in range(40)
    ]
    page = page_of(rig, Query(key="all", from_ms=due_ms + 1, to_ms=due_ms + 3, skip=4, limit=5))
    assert [one["unique_key"] for one in page.timers] == ["U9", "U10", "U11", "U12", "U13"]
    assert page.skipped == 4


@pytest.mark.parametrize("horizon_ms", [400, 30_000, 30 * 86_400_000])
def test_skipped_pages(rig: TimerRig, horizon_ms: int) -> None:
    expected = put_random(rig, 120, horizon_ms)
    skip, cursor, found = 50, Cursor(), list[Any]()
    while cursor is not None and len(found) < 10:
        query = Query(skip=skip, limit=10 - len(found), cursor=cursor)
        page = at_once(list_timers(rig.timers, query))
        skip, cursor, found = skip - page.skipped, page.cursor, found + page.timers  # type: ignore[assignment]
    assert dues(found) == [due_ms for due_ms, _ in expected[50:60]]


def test_a_slot_larger_than_a_part_and_than_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "PART_ROWS", 50)
    monkeypatch.setattr(walk, "PART_ROWS_MIN", 10)
    monkeypatch.setattr(walk, "PAGE_UNITS", 300)
    monkeypatch.setattr(walk, "TOGETHER_UNITS", 100)
    rig = TimerRig(tmp_path, stage_records_max=1_024).open()
    due_ms = rig.clock.now_ms() // 1_000 * 1_000 + 5_000
    for first in range(0, 3_000, 500):
        rig.put_many([(due_ms + 1 + (7 * n) % 900, "T", 0, b"") for n in range(first, first + 500)])
    expected = sorted(due_ms + 1 + (7 * n) % 900 for n in range(3_000))
    assert dues(listed(rig, 100)) == expected
    rig.advance(5_300)  # some delivered, some staged, some in the slot still
    left = [due for due in expected if due > rig.clock.now_ms()]
    assert len(rig.timers.stage) < len(left)
    assert dues(listed(rig, 100)) == left
    rig.close()


def test_settled_timers_are_not_listed(rig: TimerRig) -> None:
    expected = put_random(rig, 40, 10 * 60_000)
    everything = listed(rig)
    offsets = np.array([timer["commit_log_offset"] for timer in everything[::2]], np.int64)
    decisions = rig.timers.decisions
    rows = rig.timers.records.read(offsets)
    decisions.settle(rows, decisions.locate(rows))
    assert dues(listed(rig)) == [due_ms for due_ms, _ in expected[1::2]]


@pytest.mark.parametrize("horizon_ms", [30_000, 30 * 86_400_000])
def test_reading_slots_together_or_one_by_one(rig: TimerRig, horizon_ms: int) -> None:
    put_random(rig, 200, horizon_ms)
    units = rig.timers.units
    slots = units.wheel.live(rig.timers.position.staged_ms)
    together = without_duplicates(Walk(rig.timers, Query()).read(slots))
    expected = [
        (int(tick), int(row["due_ms"]), int(row["phys_offset"]), int(row["topic_hash"]))
        for tick in slots["tick"]
        for row in np.sort(units.read_slot(int(tick) * 1_000).rows, order=["due_ms", "phys_offset"])
    ]
    columns = ("due_ms", "phys_offset", "topic_hash")
    ticks = (together["slot_ms"] // 1_000).tolist()
    assert list(zip(ticks, *(together[c].tolist() for c in columns), strict=True)) == expected


def test_row_of_a_timer(rig: TimerRig) -> None:
    due_ms = rig.clock.now_ms() + HOUR_MS
    rig.put(due_ms, "U", 3, b"12345", KEYS="order-7", UNIQ_KEY="ABC", TAGS="tag")
    [timer] = listed(rig)
    assert timer["due_ms"] == due_ms
    reported = {name: timer[name] for name in ("topic", "queue_id", "unique_key", "keys", "tag")}
    assert reported == {
        "topic": "U",
        "queue_id": 3,
        "unique_key": "ABC",
        "keys": "order-7",
        "tag": "tag",
    }
    assert (timer["body_bytes"], timer["stored_ms"]) == (5, rig.clock.now_ms())


@pytest.mark.parametrize("text", ["x", "1_2", "1_2_3_4_5_6", "-2_0_0_0_0", f"0_0_0_0_{1 << 63}"])
def test_illegal_cursors(text: str) -> None:
    with pytest.raises(ValueError, match=r"cursor|invalid literal"):
        Cursor.parse(text)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("limit", "step_ms"), [(1, 400), (1, 40_000), (7, 5_000), (7, 40_000), (30, 300_000)]
)
def test_a_timer_that_rolls_between_two_pages_is_listed_once(
    rig: TimerRig, limit: int, step_ms: int
) -> None:
    wanted = put_random(rig, 100, 3 * HOUR_MS)
    found, cursor = [], Cursor()
    while cursor is not None:
        page = at_once(list_timers(rig.timers, Query(limit=limit, cursor=cursor)))
        found += dues(page.timers)
        cursor = page.cursor  # type: ignore[assignment]
        rig.advance(step_ms)
    assert len(found) == len(set(found))
    pending = {due_ms for due_ms, _ in wanted if due_ms > rig.clock.now_ms()}
    assert pending
    assert pending <= set(found)
