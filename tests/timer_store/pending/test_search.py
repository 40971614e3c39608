"""Searches for pending timers, piece by piece: in the queue, the near stage, the wheel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delayed_delivery.pending import HitQuery
from tests.support.synchronous import Synchronous
from tests.support.timer_rig import TimerRig
from timer_store.pending import search
from timer_store.pending.lookup import PendingTimers

DAY_MS = 86_400_000
DELAYS_MS = (1_500, 90_000, DAY_MS, 9 * DAY_MS)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path, max_delay_s=100 * 86_400).open()
    yield rig
    rig.close()


def put(rig: TimerRig, first: int, topic: str = "T") -> None:
    """Send a timer for each delay; its unique key is a number."""
    for number, delay_ms in enumerate(DELAYS_MS, first):
        rig.put(rig.clock.now_ms() + delay_ms, topic, UNIQ_KEY=str(number))


def keys_of(rig: TimerRig, topic: str = "", *times_ms: int) -> list[int]:
    pieces = Synchronous(PendingTimers(rig.timers)).pieces(topic, *times_ms)
    return [int(key) for piece in pieces for key in piece.keys]


@pytest.mark.parametrize("units_max", [1, search.PIECE_UNITS])
def test_each_pending_timer_once(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, units_max: int
) -> None:
    monkeypatch.setattr(search, "PIECE_UNITS", units_max)
    start_ms = rig.clock.now_ms()
    put(rig, 0)
    put(rig, 10, "U")
    rig.advance(1_000)
    assert keys_of(rig) == [0, 10, 1, 11, 2, 12, 3, 13]
    assert keys_of(rig, "U") == [10, 11, 12, 13]
    assert keys_of(rig, "T", start_ms + 90_000, start_ms + 9 * DAY_MS) == [1, 2]
    assert keys_of(rig, "absent") == []


def test_timers_that_are_not_enqueued(rig: TimerRig) -> None:
    put(rig, 0)
    rig.advance(100)
    rig.timers.reconfigure(replace(rig.config, stop_enqueue=True))
    put(rig, 10)
    port = PendingTimers(rig.timers)
    query, cursor = HitQuery(count_max=3), ""
    pieces: list[Any] = []
    while True:
        piece = port.search(query, cursor)
        pieces.append(([int(key) for key in piece.keys], piece.may_repeat))
        if piece.cursor is None:
            break
        cursor = piece.cursor
        rig.timers.reconfigure(rig.config)
        rig.advance(1)  # the rest of the queue moves to the wheel
    listed = [key for keys, _ in pieces for key in keys]
    assert pieces[0] == ([10, 11, 12], True)
    assert set(listed) == {0, 1, 2, 3, 10, 11, 12, 13}
    again = [key for keys, may_repeat in pieces for key in keys if not may_repeat]
    assert len(again) == len(set(again))


@pytest.mark.parametrize("cursor", ["x", "q", "q1", "q1.2", "1_2", "q1.2.x"])
def test_other_texts_are_no_cursors(rig: TimerRig, cursor: str) -> None:
    with pytest.raises(ValueError):
        PendingTimers(rig.timers).search(HitQuery(), cursor)
