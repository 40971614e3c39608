"""Lookup by key in several turns: the result is that of its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from message_store.index.key_search import Matches, search
from tests.support.synchronous import finish
from tests.support.timer_rig import TimerRig
from timer_store import layout
from timer_store.pending import lookup
from timer_store.pending.lookup import PendingTimers

HOUR_MS = 3_600_000
COUNT = 5


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TimerRig]:
    rig = TimerRig(tmp_path).open()
    yield rig
    rig.close()


def copy(rig: TimerRig, offsets: Any) -> None:
    """Copy timers forward, as compaction does."""
    rows = rig.timers.records.read(offsets)
    staged: Any = np.zeros(rows.size, layout.STAGED)
    for column in ("due_ms", "phys_offset", "record_size"):
        staged[column] = rows[column]
    locations = rig.timers.decisions.locate(rows)
    timed, copied = rig.timers.state.copies.put(staged, rig.clock.now_ms())
    assert copied.all()
    rig.timers.decisions.settle(timed, locations)


def move(rig: TimerRig, offsets: Any) -> None:
    later = np.full(offsets.size, rig.clock.now_ms() + 2 * HOUR_MS)
    PendingTimers(rig.timers).move(offsets, later, lambda *_: None)


def cancel(rig: TimerRig, offsets: Any) -> None:
    PendingTimers(rig.timers).cancel(offsets)


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("end", [2, COUNT])  # only timers that were checked before, or all
@pytest.mark.parametrize("change", [copy, move, cancel])
def test_timers_that_change_between_two_turns(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, change: Any, end: int, unique: bool
) -> None:
    due_ms = rig.clock.now_ms() + HOUR_MS
    names = [f"u{number}" for number in range(COUNT)]
    batches = [rig.put(due_ms, UNIQ_KEY=name, KEYS=f"k{name} all") for name in names]
    offsets = np.array([int(batch.rows[0]["phys_offset"]) for batch in batches], np.int64)
    keys = [name if unique else f"k{name}" for name in names]
    monkeypatch.setattr(lookup, "PIECE_UNITS", 2)
    work = PendingTimers(rig.timers).by_key("T", keys, unique=unique)
    work.send(None)  # the first piece was checked
    change(rig, offsets[:end])
    found = finish(work)
    now = finish(PendingTimers(rig.timers).by_key("T", keys, unique=unique))
    for column in ("offsets", "due_ms", "name_index", "verdicts"):
        assert getattr(found, column).tolist() == getattr(now, column).tolist()
    verdict = Verdict.CANCELLED if change is cancel else Verdict.DONE
    assert found.verdicts.tolist() == [verdict] * end + [Verdict.DONE] * (COUNT - end)
    assert (PendingTimers(rig.timers).cancel(found.offsets).verdicts == Verdict.DONE).all()


@pytest.mark.parametrize("change", [copy, move, cancel])
def test_timers_that_change_while_a_delivery_is_searched(
    rig: TimerRig, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    """A marker of a client that came too late requires a search for the delivery."""
    slot_ms = rig.clock.now_ms() // 1_000 * 1_000 + 10_000
    rig.put(slot_ms + 100, UNIQ_KEY="delivered")
    batch = rig.put(slot_ms + HOUR_MS, UNIQ_KEY="pending")
    rig.advance(slot_ms + 200 - rig.clock.now_ms())
    rig.put(slot_ms + 900, UNIQ_KEY="delivered", TIMER_DEL_UNIQKEY="T+delivered")
    timers, searches = PendingTimers(rig.timers), list[bool]()

    async def change_meanwhile(store: Any, topics: Any, names: Any) -> Matches:
        matches = await search(store, topics, names)
        if topics == ["T"]:
            if not searches:
                change(rig, batch.filled["phys_offset"].copy())
            searches.append(bool(matches.offsets.size))
        return matches

    monkeypatch.setattr(lookup, "search", change_meanwhile)
    found = finish(timers.by_key("T", ["delivered", "pending"], unique=True))
    assert searches
    assert all(searches)
    verdict = Verdict.CANCELLED if change is cancel else Verdict.DONE
    assert found.verdicts.tolist() == [Verdict.DELIVERED, verdict]
    decided = timers.cancel(found.offsets)
    assert decided.verdicts.tolist() == [Verdict.DONE] * (change is not cancel)
