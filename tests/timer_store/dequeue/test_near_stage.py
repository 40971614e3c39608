"""The near stage compared with a sorted list, and the order within a millisecond."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.extended import examples
from timer_store import layout
from timer_store.dequeue import near_stage as stage_module
from timer_store.dequeue.near_stage import NearStage, sorted_run

MUCH = 1 << 40


def staged(*timers: tuple[int, int, int], size: int = 100) -> npt.NDArray[np.void]:
    """Return STAGED rows of (due_ms, phys_offset[, topic_hash])."""
    rows = np.zeros(len(timers), layout.STAGED)
    for row, timer in zip(rows, timers, strict=True):
        row["due_ms"], row["phys_offset"] = timer[:2]
        row["topic_hash"] = timer[2] if len(timer) > 2 else 0
        row["pos"], row["write_ms"] = timer[1] * 52, timer[0] // 1_000 * 1_000
    rows["record_size"], rows["magic"] = size, layout.MAGIC_DEFAULT
    return rows


def keys(rows: npt.NDArray[np.void]) -> list[tuple[int, int]]:
    return list(zip(rows["due_ms"].tolist(), rows["phys_offset"].tolist(), strict=True))


def offsets(rows: npt.NDArray[np.void]) -> list[int]:
    return rows["phys_offset"].tolist()


def take_all(stage: NearStage, now_ms: int = MUCH, count_max: int = 1_000) -> npt.NDArray[np.void]:
    return stage.take(now_ms, count_max, MUCH)


class StageMachine(RuleBasedStateMachine):
    """Random loads, batches, refusals and cancels, compared with a list of timers."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = NearStage(40)
        self.pending: set[Any] = set()  # (due_ms, phys_offset, topic)
        self.taken: list[Any] = []  # the last batch, not settled yet
        self.delivered: list[Any] = []  # in order
        self.next_offset = 0
        self.now_ms = 10_000

    @rule(
        timers=st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 2)), max_size=25),
        shuffle=st.randoms(use_true_random=False),
    )
    def add(self, timers: list[tuple[int, int]], shuffle: random.Random) -> None:
        new = []
        for late_ms, topic in timers:
            new.append((self.now_ms + late_ms, self.next_offset, topic))
            self.next_offset += 1
        shuffle.shuffle(new)
        self.pending |= set(new)
        self.stage.add(staged(*new))

    @rule(count_max=st.integers(1, 20), rows=st.integers(1, 20))
    def take(self, count_max: int, rows: int) -> None:
        self.delivered += self.taken
        following = self.stage.following(self.now_ms, count_max, rows * 100 + 50)
        got = self.stage.take(self.now_ms, count_max, rows * 100 + 50)
        assert offsets(got)[: following.size] == offsets(following)
        self.taken = list(
            zip(*(got[n].tolist() for n in ("due_ms", "phys_offset", "topic_hash")), strict=True)
        )
        due = sorted(timer for timer in self.pending if timer[0] <= self.now_ms)
        assert len(self.taken) == min(len(due), count_max, rows)
        assert [t[0] for t in self.taken] == [t[0] for t in due[: len(self.taken)]]
        assert set(self.taken) <= set(due)
        assert len(set(self.taken)) == len(self.taken)
        assert (got["pos"] == got["phys_offset"] * 52).all()
        self.pending -= set(self.taken)

    @rule(share=st.floats(0, 1))
    def refuse(self, share: float) -> None:
        done = int(share * len(self.taken))
        back = self.taken[done:]
        self.delivered += self.taken[:done]
        self.stage.put_back(staged(*back))
        self.pending |= set(back)
        self.taken = []

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        everything = (
            sorted(self.pending) + sorted(self.taken) + self.delivered[-3:] + [(5, 10**9, 0)]
        )
        chosen = data.draw(st.lists(st.sampled_from(everything), max_size=8))
        numbers = np.array([timer[1] for timer in chosen], np.int64)
        due_ms = np.array([timer[0] for timer in chosen], np.int64)
        here = [timer in self.pending for timer in chosen]
        assert self.stage.contains(numbers, due_ms).tolist() == here
        assert self.stage.settle(numbers, due_ms).tolist() == first_of_each(chosen, here)
        self.pending -= set(chosen)

    @rule(step_ms=st.integers(-5, 15))
    def advance(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @invariant()
    def counts_are_exact(self) -> None:
        assert len(self.stage) == len(self.pending)
        first = min(self.pending, default=(None,))[0]
        assert self.stage.next_due_ms == first
        assert self.stage.room <= max(40 - len(self.pending), 0)

    def teardown(self) -> None:
        """Check that timers of one topic and millisecond leave in log order."""
        self.delivered += self.taken
        rest = take_all(self.stage, MUCH, 10_000)
        assert set(keys(rest)) == {timer[:2] for timer in self.pending}
        assert not len(self.stage)
        assert self.stage.next_due_ms is None
        seen: dict[Any, Any] = {}
        topics = {timer[1]: timer[2] for timer in self.pending}
        both = self.delivered + [(due, phys, topics[phys]) for due, phys in keys(rest)]
        assert len({timer[1] for timer in both}) == len(both)
        for due_ms, phys_offset, topic in both:
            assert phys_offset > seen.get((due_ms, topic), -1)
            seen[due_ms, topic] = phys_offset


def first_of_each(timers: list[tuple[int, int, int]], here: list[bool]) -> list[bool]:
    """Return `here` without duplicates of earlier timers, which are settled by then."""
    return [
        found and timers.index(timer) == i
        for i, (timer, found) in enumerate(zip(timers, here, strict=True))
    ]


TestStageMachine = StageMachine.TestCase
TestStageMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)


@given(
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 10**6)), max_size=300, unique=True),
    st.integers(1, 50),
)
def test_a_run_is_sorted(timers: list[tuple[int, int]], count_max: int) -> None:
    stage = NearStage()
    stage.add_run(sorted_run(staged(*timers)))
    got = []
    while (rows := take_all(stage, MUCH, count_max)).size:
        got += keys(rows)
    assert got == sorted(timers)


def test_topics_take_turns_inside_a_millisecond() -> None:
    stage = NearStage()
    stage.add(staged(*[(5, n, 1) for n in range(6)], (5, 6, 2), (5, 7, 3), (5, 8, 2), (4, 9, 1)))
    assert offsets(take_all(stage)) == [9, 0, 6, 7, 1, 8, 2, 3, 4, 5]


def test_topics_take_turns_across_what_was_loaded_apart() -> None:
    stage = NearStage()
    stage.add(staged(*[(5, n, 1) for n in range(70_000)]))
    stage.add(staged((5, 70_000, 2), (6, 70_001, 2)))
    stage.add(staged((5, 70_002, 2)))
    assert offsets(take_all(stage, MUCH, 5)) == [0, 70_000, 1, 70_002, 2]


def test_timers_added_to_a_started_millisecond_follow_it() -> None:
    stage = NearStage()
    stage.add(staged((5, 1), (5, 2), (5, 3)))
    assert offsets(take_all(stage, 5, 1)) == [1]
    stage.add(staged((5, 4), (4, 5)))
    assert offsets(take_all(stage, 5)) == [5, 2, 3, 4]


def test_the_timers_that_follow_stay_in_the_stage() -> None:
    stage = NearStage()
    stage.add(staged(*[(5, n) for n in range(7)], (6, 7)))
    assert not stage.following(MUCH, 3, MUCH).size  # none is in order yet
    assert offsets(take_all(stage, 5, 3)) == [0, 1, 2]
    following = stage.following(5, 3, MUCH)
    assert offsets(following) == [3, 4, 5]
    assert not stage.following(4, 3, MUCH).size
    assert offsets(stage.following(5, 3, 250)) == [3, 4]
    stage.settle(np.array([4]), np.array([5]))
    assert offsets(stage.following(5, 3, MUCH)) == [3, 5, 6]
    stage.add(staged((4, 8)))
    assert not stage.following(5, 3, MUCH).size  # another one is due before
    assert offsets(take_all(stage, 5)) == [8, 3, 5, 6]


@pytest.mark.parametrize(
    ("count_max", "bytes_max", "expected"),
    [(0, MUCH, 0), (1, MUCH, 1), (9, MUCH, 4), (9, 300, 3), (9, 299, 2), (9, 10, 1), (9, 0, 1)],
)
def test_a_batch_is_bounded(count_max: int, bytes_max: int, expected: int) -> None:
    stage = NearStage()
    stage.add(staged((1, 1), (2, 2), (2, 3)))
    stage.add(staged((3, 4)))
    assert stage.take(MUCH, count_max, bytes_max).size == expected
    assert len(stage) == 4 - expected


def test_nothing_is_early_after_a_clock_step_back() -> None:
    stage = NearStage()
    stage.add(staged((10, 1), (20, 2), (30, 3)))
    assert keys(take_all(stage, 20, 1)) == [(10, 1)]  # 20 is at the front now
    assert not take_all(stage, 19).size
    assert stage.next_due_ms == 20
    assert keys(take_all(stage, 20)) == [(20, 2)]


def test_returning_several_batches_in_one_call() -> None:
    stage = NearStage()
    stage.add(staged(*[(n // 3, n) for n in range(9)]))
    first, second = take_all(stage, MUCH, 4), take_all(stage, MUCH, 3)
    stage.put_back(np.concatenate([first, second]))
    assert offsets(take_all(stage)) == list(range(9))


def test_returned_timers_follow_earlier_due_times() -> None:
    stage = NearStage()
    stage.add(staged((5, 1), (7, 2), (9, 3)))
    back = take_all(stage, 7)
    stage.add(staged((6, 4)))
    stage.put_back(back)
    assert offsets(take_all(stage)) == [1, 4, 2, 3]


def test_room_counts_staged_timers_and_may_be_negative() -> None:
    stage = NearStage(3)
    assert stage.room == 3
    stage.add(staged((1, 1), (2, 2)))
    assert stage.room == 1
    stage.add(staged((1, 3), (2, 4)))
    assert (stage.room, len(stage)) == (0, 4)
    take_all(stage, 1)
    assert stage.room == 1


def test_empty_batches() -> None:
    stage = NearStage()
    stage.add(staged())
    stage.put_back(staged())
    assert (len(stage), stage.next_due_ms, take_all(stage).size) == (0, None, 0)


def test_settled_timers_do_not_keep_the_next_due_time() -> None:
    stage = NearStage()
    stage.add(staged((1, 1), (2, 2), (3, 3)))
    assert stage.settle(np.array([1, 2]), np.array([1, 2])).tolist() == [True, True]
    assert stage.next_due_ms == 3
    assert stage.settle(np.array([3]), np.array([3])).tolist() == [True]
    assert stage.next_due_ms is None
    assert stage.room == 1 << 20


def test_runs_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "MERGE_ROWS", 8)
    stage = NearStage()
    random = np.random.default_rng(4)
    for n in range(2_000):
        stage.add(staged((int(random.integers(0, 900)), n)))
    assert len(list(stage.pending_rows())) <= 12  # a piece of each run
    rows = take_all(stage, MUCH, 5_000)
    assert keys(rows) == sorted(keys(rows))
