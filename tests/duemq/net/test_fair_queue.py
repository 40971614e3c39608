"""Round-robin order of keys; items of one key stay in order."""

from __future__ import annotations

import pytest

from duemq.net.fair_queue import FairQueue


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
    while queue:
        key, word = queue.pop()
        assert word[0] == key
        found.append(word)
    assert " ".join(found) == popped
    assert "A" not in queue
