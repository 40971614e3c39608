"""Allocation of queues: the results of Apache's strategies."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.pop.allocation import (
    ANY_QUEUE,
    STRATEGIES,
    AssignedQueue,
    allocate,
    allocate_for_pop,
)

MEMBERS = ("a", "b", "c")


def queues(count: int) -> list[AssignedQueue]:
    return [AssignedQueue("T", "broker-a", n) for n in range(count)]


def ids(found: list[AssignedQueue]) -> list[int]:
    return [queue.queue_id for queue in found]


@pytest.mark.parametrize(
    ("strategy", "count", "pieces"),
    [
        ("AVG", 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("AVG", 7, [[0, 1, 2], [3, 4], [5, 6]]),
        ("AVG", 6, [[0, 1], [2, 3], [4, 5]]),
        ("AVG", 2, [[0], [1], []]),
        ("AVG_BY_CIRCLE", 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("AVG_BY_CIRCLE", 2, [[0], [1], []]),
    ],
)
def test_each_member_gets_its_share_of_queues(
    strategy: str, count: int, pieces: list[list[int]]
) -> None:
    found = [allocate(STRATEGIES[strategy], queues(count), MEMBERS, each) for each in MEMBERS]
    assert [ids(each) for each in found] == pieces


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.integers(1, 40))
def test_each_queue_has_one_member(strategy: str, count: int, members: int) -> None:
    names = sorted(f"m{n}" for n in range(members))
    found = [allocate(STRATEGIES[strategy], queues(count), names, each) for each in names]
    assert sorted(chain(*found)) == queues(count)


@pytest.mark.parametrize(
    ("members", "count", "shared", "expected"),
    [
        (3, 4, 0, [ANY_QUEUE] * 4),
        (3, 4, -1, [ANY_QUEUE] * 4),
        (3, 4, 2, [ANY_QUEUE] * 4),
        (4, 8, 1, [2, 3, 4, 5]),  # of the second member: its own and those of the third
        (4, 8, 2, [2, 3, 4, 5, 6, 7]),
        (4, 2, 1, [1]),
    ],
)
def test_members_pop_the_queues_of_others_as_well(
    members: int, count: int, shared: int, expected: list[int]
) -> None:
    names = [f"m{n}" for n in range(members)]
    found = allocate_for_pop(STRATEGIES["AVG"], queues(count), names, "m1", shared)
    assert ids(found) == expected


def test_an_unknown_member_gets_no_queues() -> None:
    assert allocate(STRATEGIES["AVG"], queues(4), MEMBERS, "x") == []
    assert allocate_for_pop(STRATEGIES["AVG"], queues(4), MEMBERS, "x", 1) == []
