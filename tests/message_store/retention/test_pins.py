"""Combination of several pins."""

from __future__ import annotations

import pytest

from message_store.retention.pins import UNKNOWN, FirstPending, first_pending, is_pinned


@pytest.mark.finding("A1")
@pytest.mark.parametrize(
    ("responses", "together"),
    [
        ([], None),
        ([None, None], None),
        ([None, 7, 5], 5),
        ([0, None], 0),
        ([None, UNKNOWN], UNKNOWN),
        ([UNKNOWN, 7], UNKNOWN),
    ],
)
def test_an_unknown_pin_has_priority(responses: list[FirstPending], together: FirstPending) -> None:
    assert first_pending(responses) is together


@pytest.mark.finding("A1")
@pytest.mark.parametrize(
    ("pinned_from", "pinned"),
    [(None, False), (99, True), (100, False), (0, True), (UNKNOWN, True)],
)
def test_a_file_is_pinned_by_offsets_before_its_end(
    pinned_from: FirstPending, pinned: bool
) -> None:
    assert is_pinned(100, pinned_from) is pinned
