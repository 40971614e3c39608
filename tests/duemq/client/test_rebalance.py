"""Allocation of queues, and what a consumer does with the queues it has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duemq.client.rebalance import allocated
from duemq.pop.allocation import STRATEGIES


@given(st.integers(0, 40), st.integers(1, 12))
def test_queues_are_allocated_as_by_the_broker(queues: int, members: int) -> None:
    ids = [f"10.0.0.{number}@1#a" for number in range(members)]
    shares = [allocated(range(queues), ids[::-1], member) for member in sorted(ids)]
    for index, share in enumerate(shares):
        assert share == list(STRATEGIES["AVG"](index, queues, members))
    assert [queue for share in shares for queue in share] == list(range(queues))


def test_an_unknown_member_gets_no_queues() -> None:
    assert allocated(range(4), ["a", "b"], "c") == []
