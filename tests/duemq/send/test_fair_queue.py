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
    while queue.count:
        key, word = queue.pop()
        assert word[0] == key
        found.append(word)
    assert " ".join(found) == popped
    assert "A" not in queue


def test_large_items_wait_in_the_order_of_their_key() -> None:
    queue: FairQueue[str, str] = FairQueue()
    for word, is_large in (("A1", True), ("A2", False), ("B1", True), ("C1", False), ("C2", True)):
        queue.add(word[0], word, is_large=is_large)
    assert list(queue.small) == ["C"]
    assert queue.pop() == ("C", "C1")
    assert not queue.small
    assert list(queue.large) == ["A", "B", "C"]
    assert queue.pop(is_large=True) == ("A", "A1")
    assert queue.pop() == ("A", "A2")
    assert [queue.pop(is_large=True)[1] for _ in range(2)] == ["B1", "C2"]
    assert not queue.count


def test_a_turn_costs_the_same_with_many_connections() -> None:
    def serve(keys: int) -> None:
        queue: FairQueue[int, int] = FairQueue()
        for key in range(keys):
            queue.add(key, key)
        while queue.count:
            queue.pop()

    many, few = costs_s(lambda: serve(20_000), lambda: serve(2_000))
    assert many < 30 * few  # ten times as many; 100 times as long if each turn visits all
