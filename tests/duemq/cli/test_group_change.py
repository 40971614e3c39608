"""Times of `duemq group reset`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duemq.cli import group_change
from duemq.client.message import EPOCH
from duemq_common.clock import FakeClock

NOON_MS = 1_700_049_600_000  # 2023-11-15T12:00
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("-2h", datetime(2023, 11, 15, 10, tzinfo=UTC)),
        ("-1h30m", datetime(2023, 11, 15, 10, 30, tzinfo=UTC)),
        ("+2h", datetime(2023, 11, 15, 14, tzinfo=UTC)),
        ("-999999999d", EPOCH),
        ("+999999999999w", LAST),
        ("999999999999999999", LAST),
    ],
)
def test_a_time_is_relative_or_absolute(
    monkeypatch: pytest.MonkeyPatch, text: str, time: object
) -> None:
    monkeypatch.setattr(group_change, "SystemClock", lambda: FakeClock(NOON_MS))
    assert group_change.reset_time(text) == time
