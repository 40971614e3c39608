"""Generated ids for messages without UNIQ_KEY."""

from __future__ import annotations

import pytest

from duemq_common.clock import FakeClock
from duemq_common.unique_ids import UniqueIds

NOVEMBER_2023_MS = 1_698_796_800_000
DECEMBER_2023_MS = 1_701_388_800_000


@pytest.mark.parametrize(
    ("now_ms", "since_ms"),
    [
        (NOVEMBER_2023_MS, 0),
        (NOVEMBER_2023_MS + 0x1234, 0x1234),
        (DECEMBER_2023_MS - 1, DECEMBER_2023_MS - 1 - NOVEMBER_2023_MS),
        (DECEMBER_2023_MS, 0),
    ],
)
def test_an_id_contains_the_time_since_the_month_began(now_ms: int, since_ms: int) -> None:
    found = UniqueIds(bytes([127, 0, 0, 1]), FakeClock(now_ms)).next_id()
    assert len(found) == 32
    assert found.startswith("7F000001")
    assert int(found[20:28], 16) == since_ms
    assert found == found.upper()


def test_ids_differ() -> None:
    clock = FakeClock()
    ids = UniqueIds(bytes(16), clock)
    found = {ids.next_id() for _ in range(65_536)}
    clock.advance(1)
    found |= {ids.next_id() for _ in range(1_000)}
    assert len(found) == 66_536
