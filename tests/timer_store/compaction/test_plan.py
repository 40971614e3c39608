"""The plan of a compaction: the leading old files, if few of their messages are pending."""

from __future__ import annotations

import pytest

from timer_store.compaction.plan import Blocked, OldFile, plan_compaction

SIZE = 1_000_000
MUCH = 1 << 40


def files(*percents: int) -> list[OldFile]:
    return [
        OldFile(at * SIZE, (at + 1) * SIZE, percent * 10, percent * SIZE // 100)
        for at, percent in enumerate(percents)
    ]


@pytest.mark.parametrize(
    ("rule", "percents", "enough", "room", "chosen", "blocked_by"),
    [
        ("nothing there", [], MUCH, MUCH, 0, Blocked.NOTHING),
        ("little waits", [10], MUCH, MUCH, 1, Blocked.NOTHING),
        ("just the share", [50], MUCH, MUCH, 1, Blocked.NOTHING),
        ("more than the share", [51], MUCH, MUCH, 0, Blocked.TOO_FULL),
        ("a full one before an empty one", [90, 5], MUCH, MUCH, 2, Blocked.NOTHING),
        ("a full one behind", [10, 90], MUCH, MUCH, 1, Blocked.TOO_FULL),
        ("no more than needed", [10, 10, 10], SIZE, MUCH, 2, Blocked.NOTHING),
        ("one is enough", [10, 10, 10], SIZE // 2, MUCH, 1, Blocked.NOTHING),
        ("room for one", [10, 10, 10], MUCH, 150_000, 1, Blocked.NO_ROOM),
        ("no room at all", [10], MUCH, 100_000, 0, Blocked.NO_ROOM),
        ("a disk that is full to the brim", [10], MUCH, -5, 0, Blocked.NO_ROOM),
        ("files in which nothing waits", [10, 0, 0], MUCH, MUCH, 3, Blocked.NOTHING),
    ],
)
def test_chosen_files(
    rule: str, percents: list[int], enough: int, room: int, chosen: int, blocked_by: Blocked
) -> None:
    old = files(*percents)
    plan = plan_compaction(old, enough=enough, percent=50, room=room)
    mine = old[:chosen]
    assert plan.until == chosen * SIZE, rule
    assert plan.messages == sum(file.messages for file in mine)
    assert plan.bytes == sum(file.bytes for file in mine)
    assert plan.frees == chosen * SIZE
    assert plan.blocked_by == blocked_by
    assert bool(plan.reason) == bool(blocked_by)


def test_pending_messages_are_reported() -> None:
    plan = plan_compaction(files(70), enough=MUCH, percent=50, room=MUCH)
    assert "70 % of the log file that begins at 0" in plan.reason
    plan = plan_compaction(files(10), enough=MUCH, percent=50, room=7)
    assert "100 messages (100000 bytes)" in plan.reason
    assert "only 7 bytes" in plan.reason
