from __future__ import annotations

import pytest

from duemq.send.batch_body import ENTRIES_MAX, batch_entries, count_entries
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError

ENTRY = (23).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2)


def test_the_maximum_of_messages_is_accepted() -> None:
    assert sum(1 for _ in batch_entries(ENTRY * ENTRIES_MAX)) == ENTRIES_MAX
    assert count_entries(ENTRY * ENTRIES_MAX) == ENTRIES_MAX


@pytest.mark.finding("3S7")
@pytest.mark.parametrize("tail", [ENTRY, b"x", bytes(4)])
def test_too_many_messages_are_counted_before_one_is_decoded(tail: bytes) -> None:
    with pytest.raises(RequestError, match="more than") as refusal:
        count_entries(ENTRY * ENTRIES_MAX + tail)
    assert refusal.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_size_of_zero_ends_the_count() -> None:
    assert count_entries(bytes(23)) == 23
    with pytest.raises(RequestError, match="malformed at byte 0"):
        next(batch_entries(bytes(23)))
