"""Lists compared with a sorted list while timers roll, are put, cancelled and delivered."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delayed_delivery.pending import Verdict
from delayed_delivery.steps import at_once
from tests.support.timer_rig import TimerRig
from timer_store.pending import walk
from timer_store.pending.listing import list_timers
from timer_store.pending.walk import LONG_MAX, Cursor, Query

WINDOW_MS = 3_000
PAGES_MAX = 1_000
Step = tuple[Any, ...]


def random_delays(choose: random.Random, count: int) -> list[int]:
    """Return delays of up to 14 windows; those of one example are often in few slots."""
    slots_ms = [
        choose.randrange(0, 14 * WINDOW_MS, 1_000) for _ in range(choose.choice((1, 3, 30)))
    ]
    if choose.random() < 0.5:  # slots that are whole windows apart
        slots_ms = [slots_ms[0] % WINDOW_MS + n * WINDOW_MS for n in range(14)]
    return [choose.choice(slots_ms) + choose.choice((1, 400, 999, 1_000)) for _ in range(count)]


def random_step(choose: random.Random) -> Step:
    """Return a step between two pages."""
    kind = choose.choice(("advance", "advance", "advance", "put", "cancel", "persist"))
    if kind == "advance":
        return kind, choose.choice((1, 400, 1_000, 1_300, 2_700, 3_000, 7_000, 20_000))
    return kind, choose


class ListedTimers:
    """A timer store with the due times of its pending timers by log offset."""

    def __init__(self, root: Path, lead_ms: int = 1_000) -> None:
        self.rig = TimerRig(
            root, roll_window_slots=WINDOW_MS // 1_000, stage_records_max=5, stage_lead_ms=lead_ms
        ).open()
        self.origin_ms = self.rig.clock.now_ms()
        self.pending: dict[int, int] = {}

    def put(self, choose: random.Random, count: int = 4) -> None:
        for delay_ms in random_delays(choose, count):
            due_ms = self.rig.clock.now_ms() + delay_ms
            batch = self.rig.put(due_ms)
            self.pending[int(batch.rows[0]["phys_offset"])] = due_ms

    def cancel(self, choose: random.Random) -> None:
        offsets = np.array(sorted(n for n in self.pending if choose.random() < 0.1), np.int64)
        decided = self.rig.timers.decisions.cancel(offsets)
        assert (decided.verdicts == Verdict.DONE).all()
        for offset in offsets.tolist():
            del self.pending[offset]

    def persist(self, _: random.Random) -> None:
        self.rig.persist()

    def advance(self, step_ms: int) -> None:
        self.rig.advance(step_ms)
        now_ms = self.rig.clock.now_ms()
        self.pending = {n: due_ms for n, due_ms in self.pending.items() if due_ms > now_ms}

    def step(self, step: Step) -> None:
        getattr(self, step[0])(*step[1:])

    def listed(
        self, limits: list[int], steps: list[Step], query: dict[str, int]
    ) -> list[tuple[int, int]]:
        """Return the timers of a list with a step after each page."""
        found, cursor = list[tuple[int, int]](), Cursor()
        for number in range(PAGES_MAX):
            limit = limits[number % len(limits)]
            page = at_once(list_timers(self.rig.timers, Query(limit=limit, cursor=cursor, **query)))
            assert len(page.timers) <= limit
            assert not page.damage
            found += [(timer["due_ms"], timer["commit_log_offset"]) for timer in page.timers]  # type: ignore[misc]
            if page.cursor is None:
                return found
            cursor = Cursor.parse(str(page.cursor))
            if number < len(steps):
                self.step(steps[number])
        raise AssertionError("the list does not end")


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Any:
    """Read few units at a time, so that a few timers are many parts."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "PAGE_UNITS": 12,
            "PART_ROWS": 3,
            "PART_ROWS_MIN": 2,
            "TOGETHER_UNITS": 6,
            "SLOTS_TOGETHER": 2,
        }.items():
            patch.setattr(walk, name, value)
        yield


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
@example(2_980)  # cancels a timer that was rolled with a part of the slot one window ahead
def test_a_timer_that_is_pending_all_the_time_is_listed_once(seed: int) -> None:
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as root:
        model = ListedTimers(Path(root), choose.choice((0, 1_000, 4_000)))
        try:
            compare(model, choose)
            model.rig.close()
        finally:
            if model.rig.is_open:
                model.rig.kill()


def compare(model: ListedTimers, choose: random.Random) -> None:
    """Compare lists with and without steps between their pages."""
    model.put(choose, 40)
    model.advance(choose.randrange(3_000))
    low = model.origin_ms + 3_500 if choose.random() < 0.3 else 0
    high = model.origin_ms + 21_000 if choose.random() < 0.3 else LONG_MAX
    query = {"from_ms": low, "to_ms": high}
    before = set(model.pending)
    limits = choose.choice(([1], [2], [3], [7], [2, 20], [100]))
    found = model.listed(limits, [random_step(choose) for _ in range(25)], query)
    assert found == sorted(set(found))
    expected = sorted((due, n) for n, due in model.pending.items() if low <= due < high)
    assert {timer for timer in expected if timer[1] in before} <= set(found)
    assert model.listed(limits, [], query) == expected
