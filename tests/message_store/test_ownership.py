"""What belongs to the timers: a range of it is the part of all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.ownership import Marked, Ownership, Return, Transfer
from message_store.ranges import within

LEVEL = 3
moves = st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 20))


@given(given_moves=st.lists(moves, max_size=30), first=st.integers(0, 80), size=st.integers(0, 80))
def test_a_range_is_the_part_of_all(
    given_moves: list[tuple[bool, int, int]], first: int, size: int
) -> None:
    owned, offsets = Ownership(), set[int]()
    for at, (is_handover, low, count) in enumerate(given_moves):
        span = {"migration": "", "level": LEVEL, "first": low, "end": low + count}
        if is_handover:
            mark: Transfer | Return = Transfer(**span, count=count, checksum=0)
            offsets |= set(range(low, low + count))
        else:
            mark = Return(**span, pending=(), count=0, checksum=0, gone=0, gone_sum=0)
            offsets -= set(range(low, low + count))
        owned.fold(Marked(at, 0, 0, mark))
    end = first + size
    assert owned.of(LEVEL, first, end) == within(owned.of(LEVEL), first, end)
    part = {n for low, high in owned.of(LEVEL, first, end) for n in range(low, high)}
    assert part == {n for n in offsets if first <= n < end}
    wanted = (min(offsets), max(offsets) + 1) if offsets else None
    assert owned.bounds(LEVEL) == wanted
