"""Client markers: TIMER_DEL_UNIQKEY cancels the named timer, as in Apache's broker.

The target is the timer with this topic and key in the slot of the marker's own time. It is decided
as soon as the marker is taken in, not when the slot is read: a marker that comes in time counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.errors import RecordUnreadable, StoreError
from message_store.index.key_search import HIT_UNIQUE, search_now
from message_store.ranges import distinct
from timer_store import layout
from timer_store.log.slot_choice import candidates
from timer_store.names import TIMER_TOPIC
from timer_store.pending.decisions import NOWHERE, Decisions
from timer_store.state import TimerState

Rows = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]


def apply_markers(state: TimerState, decisions: Decisions, markers: Rows) -> int:
    """Cancel the timers that markers of clients name; return how many waited.

    Args:
        markers: (n,) `layout.TIMED`.

    Source: TimerMessageStore, TimerDequeueGetMessageService
    """
    named = [(row, name) for row in markers if (name := _name_of(state, row)) is not None]
    if not named:
        return 0
    targets = _targets(state, named)
    rows = state.records.read(distinct(targets))
    places = decisions.places(rows)
    waiting = places != NOWHERE
    decisions.settle(rows[waiting], places[waiting], state.store.max_offset)
    return int(waiting.sum())


def _name_of(state: TimerState, marker: Any) -> tuple[str, str] | None:
    """Return (topic, unique key) that a marker names, None if it names nothing."""
    try:
        properties = state.store.read_record(int(marker["phys_offset"])).properties
    except RecordUnreadable:
        return None
    topic, plus, key = properties.get("TIMER_DEL_UNIQKEY", "").partition("+")
    return (topic, key) if plus and key else None


def _targets(state: TimerState, named: list[tuple[Any, tuple[str, str]]]) -> Offsets:
    """Return the log offsets of the timers named, in the slot of their marker."""
    keys = [name[1] for _, name in named]
    try:
        matches = search_now(state.store, [TIMER_TOPIC], keys)
        unique = matches.hits == HIT_UNIQUE
        offsets, key_at = matches.offsets[unique], matches.key_at[unique]
        rows = state.records.read(offsets)
    except StoreError:  # without an index the slots are read
        return _targets_in_slots(state, named)
    width_ms = state.config.precision_ms
    due_ms = np.array([row["due_ms"] for row, _ in named], np.int64)
    topics = np.array([state.store.topics.find(name[0]) for _, name in named], np.int64)
    same = (rows["due_ms"] - 1) // width_ms == (due_ms[key_at] - 1) // width_ms
    same &= (rows["topic_index"] == topics[key_at]) & (rows["kind"] == layout.TIMED_PLAIN)
    return np.asarray(offsets[same])


def _targets_in_slots(state: TimerState, named: list[tuple[Any, tuple[str, str]]]) -> Offsets:
    """Return the same without the key index: every timer of those slots is looked at."""
    width_ms, found = state.config.precision_ms, []
    wanted: dict[int, set[tuple[str, str]]] = {}
    for row, name in named:
        wanted.setdefault((int(row["due_ms"]) - 1) // width_ms, set()).add(name)
    for tick, names in wanted.items():
        own = np.array([(tick + 1) * width_ms], np.int64)
        pair = candidates(own, state.position.read_ms, state.config.window_ms)
        for slot_ms in {int(times[0]) // width_ms * width_ms for times in pair}:
            for unit in state.units.read_slot(slot_ms).rows:
                if (int(unit["due_ms"]) - 1) // width_ms == tick and _is_named(state, unit, names):
                    found.append(int(unit["phys_offset"]))
    return np.array(found, np.int64)


def _is_named(state: TimerState, unit: Any, names: set[tuple[str, str]]) -> bool:
    try:
        properties = state.store.read_record(int(unit["phys_offset"])).properties
    except RecordUnreadable:
        return False
    return (properties.get("REAL_TOPIC", ""), properties.get("UNIQ_KEY", "")) in names
