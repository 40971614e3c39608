"""Round-robin order of keys; items of one key stay in order."""

from __future__ import annotations

import pytest

from duemq.send.fair_queue import FairQueue
from tests.support.processor_time import costs_s


@pytest.mark.parametrize(
    ("added", "popped"),
    [
        ("", ""),
        ("A1", "A1"),
        ("A1 A2 A3 B1", "A1 B1 A2 A3"),
        ("A1 A2 B1 B2 C1", "A1 B1 C1 A2 B2"),
    ],
)
def test_turns(added: str, popped: str) -> None:
    queue: FairQueue[str, str] = FairQueue()
    for word in added.split():
        queue.add(word[0], word)
    found = []
    while queue.keys[0]:
        key, word = queue.pop()
        assert word[0] == key
        found.append(word)
    assert " ".join(found) == popped
    assert "A" not in queue


def test_items_of_each_rank_wait_in_the_order_of_their_key() -> None:
    queue: FairQueue[str, str] = FairQueue(ranks=3)
    for word, rank in (("A1", 2), ("A2", 0), ("B1", 2), ("C1", 0), ("C2", 2), ("D1", 1)):
        queue.add(word[0], word, rank)
    assert [list(keys) for keys in queue.keys] == [["C"], ["D"], ["A", "B"]]
    assert queue.pop() == ("C", "C1")
    assert [list(keys) for keys in queue.keys] == [[], ["D"], ["A", "B", "C"]]
    assert queue.pop(2) == ("A", "A1")
    assert queue.pop() == ("A", "A2")
    assert [queue.pop(2)[1] for _ in range(2)] == ["B1", "C2"]
    assert "D" in queue
    assert queue.pop(1) == ("D", "D1")
    assert not any(key in queue for key in "ABCD")


def test_a_turn_costs_the_same_with_many_connections() -> None:
    def serve(keys: int) -> None:
        queue: FairQueue[int, int] = FairQueue()
        for key in range(keys):
            queue.add(key, key)
        while queue.keys[0]:
            queue.pop()

    many, few = costs_s(lambda: serve(20_000), lambda: serve(2_000))
    assert many < 30 * few  # ten times as many; 100 times as long if each turn visits all
