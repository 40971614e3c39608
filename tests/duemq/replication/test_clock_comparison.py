"""Clocks of a replica and its master that differ."""

from __future__ import annotations

import pytest

from duemq.replication.clock_comparison import DIFFERENCE_MS_MAX, ClockComparison

NOW_MS = 10**12
HOUR_MS = 3_600_000
MASTER = "10.0.0.1:10911"
Check = tuple[int, int | None, int]
"""End of the replica's log, end of the master's log, and store time of the newest record."""


@pytest.mark.parametrize(
    ("checks", "words"),
    [
        ([(100, 100, NOW_MS), (200, 200, NOW_MS + HOUR_MS)], "3600 s ahead of this broker's"),
        ([(100, 100, NOW_MS), (200, 200, NOW_MS - HOUR_MS)], "3600 s behind this broker's"),
        ([(100, 100, NOW_MS), (200, 200, NOW_MS - DIFFERENCE_MS_MAX)], ""),
        ([(200, 200, NOW_MS - HOUR_MS)], ""),
        ([(100, 200, NOW_MS), (200, 200, NOW_MS - HOUR_MS)], ""),
        ([(100, 100, NOW_MS), (200, 300, NOW_MS - HOUR_MS)], ""),
        ([(100, None, NOW_MS), (200, None, NOW_MS - HOUR_MS)], ""),
        ([(200, 200, NOW_MS - HOUR_MS), (200, 200, NOW_MS - HOUR_MS)], ""),
        ([(100, 100, NOW_MS), (200, 200, -1)], ""),
        ([(1, 1, NOW_MS), (2, 2, NOW_MS + HOUR_MS), (2, 2, NOW_MS + HOUR_MS)], "ahead"),
        ([(1, 1, NOW_MS), (2, 2, NOW_MS + HOUR_MS), (3, 3, NOW_MS)], ""),
    ],
    ids=[
        "ahead",
        "behind",
        "within the limit",
        "first check",
        "catch-up",
        "lag",
        "unknown end",
        "nothing stored",
        "unknown time",
        "remains known",
        "set right",
    ],
)
def test_the_newest_record_is_compared_if_it_was_just_stored(
    checks: list[Check], words: str
) -> None:
    clocks = ClockComparison()
    for log_end, master_log_end, stored_ms in checks:
        clocks.check(log_end, master_log_end, stored_ms, NOW_MS, MASTER)
    assert bool(clocks.failure) is bool(words)
    assert words in clocks.failure
    assert not words or MASTER in clocks.failure


def test_the_effect_of_a_difference_is_named() -> None:
    clocks = ClockComparison()
    for end, stored_ms in ((1, NOW_MS), (2, NOW_MS - HOUR_MS)):
        clocks.check(end, end, stored_ms, NOW_MS, MASTER)
    assert "pending messages are early by that time" in clocks.failure
