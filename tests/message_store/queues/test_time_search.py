"""Searches of a queue by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from message_store.queues.time_search import UNTIMED_MAX
from tests.support.stores import open_store, put_one

EXPECTED = [(250, 3, 2), (300, 3, 3), (350, 4, 3), (700, 4, 7), (850, 9, 8)]
"""Time after the first message in ms, queue offsets of the searches for it."""


@pytest.mark.parametrize("loss", ["bridged", "damaged"])
def test_a_search_by_time_passes_no_message_before_lost_ones(tmp_path: Path, loss: str) -> None:
    """A group that is reset to a time would not receive them."""
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        start, rows = clock.now_ms(), []
        for _ in range(10):
            rows.append(put_one(store, "T"))
            clock.advance(100)
        offsets = [int(row["phys_offset"]) for row in rows]
        queue = store.queues.find("T", 0)
        assert queue is not None
        for number in (0, 4, 5, 6, 9):
            if loss == "bridged":
                queue.blank(offsets[number], offsets[number] + 1)
            else:
                store.log.file_of(offsets[number]).write(offsets[number] + 4, bytes(4))
        for time_ms, lower, upper in EXPECTED:
            assert store.search_offset("T", 0, start + time_ms) == lower
            assert store.search_offset("T", 0, start + time_ms, upper=True) == upper
        assert store.earliest_store_ms("T", 0) == start + 100


def test_a_search_passes_no_message_before_many_damaged_ones(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(tmp_path, clock) as store:
        start, count = clock.now_ms(), 3 * UNTIMED_MAX
        for _ in range(2):
            put_one(store, "T")
            clock.advance(100)
        offsets = [int(put_one(store, "T")["phys_offset"]) for _ in range(count)]
        for offset in offsets:
            store.log.file_of(offset).write(offset + 4 - store.log.file_of(offset).base, bytes(4))
        assert store.search_offset("T", 0, start + 50) == 1
        assert store.earliest_store_ms("T", 0) == start
