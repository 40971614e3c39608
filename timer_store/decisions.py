"""Cancel, move, fire now: one decision, one record in the log, one answer that is true.

    waiting   in the near stage, or with a unit in a slot that is not staged yet
    decided   the record that names the timer as its origin is in the log; then it waits nowhere

Everything happens on one thread without a pause between look and deed, so a timer that was decided
on is never delivered as well, and one that was delivered is never told to be cancelled.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from timer_store import layout
from timer_store.names import TIMER_TOPIC
from timer_store.placing import candidates

if TYPE_CHECKING:
    from timer_store.store import TimerStore

log = logging.getLogger(__name__)
Rows = npt.NDArray[Any]
Offsets = npt.NDArray[np.int64]
NOWHERE, STAGED = -1, -2  # instead of a unit's place


class Verdict(IntEnum):
    """What became of a decision."""

    DONE = 0
    ALREADY_DELIVERED = 1  # or cancelled, or moved: it does not wait any more
    UNKNOWN = 2  # no timer of this broker


class Decisions:
    """Decides about waiting timers of one store."""

    def __init__(self, timers: TimerStore) -> None:
        self._timers = timers

    def places(self, rows: Rows) -> Offsets:
        """Return where timers wait: the place of their unit, STAGED, or NOWHERE.

        Args:
            rows: (n,) `layout.TIMED` of their records.
        """
        timers = self._timers
        found = np.full(rows.size, NOWHERE, np.int64)
        plain = np.flatnonzero(rows["kind"] == layout.TIMED_PLAIN)
        mine = rows[plain]
        staged = timers.stage.contains(mine["phys_offset"], mine["due_ms"])
        found[plain[staged]] = STAGED
        rest = plain[~staged]
        found[rest] = self._in_slots(rows[rest])
        claimed = np.isin(rows["phys_offset"], timers.claims.offsets)
        found[claimed] = NOWHERE
        return found

    def _in_slots(self, rows: Rows) -> Offsets:
        """Return the places of units in slots that are not loaded yet."""
        timers, position = self._timers, self._timers.position
        found = np.full(rows.size, NOWHERE, np.int64)
        pair = candidates(rows["due_ms"], position.read_ms, timers.config.window_ms)
        for slot_ms in pair:
            ahead = (found == NOWHERE) & self._not_loaded(rows, slot_ms)
            if ahead.any():
                found[ahead] = timers.units.find(rows["phys_offset"][ahead], slot_ms[ahead])
        return found

    def _not_loaded(self, rows: Rows, slot_ms: Offsets) -> npt.NDArray[np.bool_]:
        position = self._timers.position
        ahead = slot_ms >= position.staged_ms
        if position.part is not None:
            due_ms, phys_offset = position.part
            here = slot_ms < position.staged_ms + self._timers.config.precision_ms
            loaded = (rows["due_ms"] < due_ms) | (
                (rows["due_ms"] == due_ms) & (rows["phys_offset"] <= phys_offset)
            )
            ahead &= ~(here & loaded)
        return np.asarray(ahead)

    def settle(self, rows: Rows, places: Offsets) -> None:
        """Take timers out of where they wait; their deciding records are in the log.

        Args:
            rows: (n,) `layout.TIMED`.
            places: (n,) as `places` told, none of them NOWHERE.
        """
        timers = self._timers
        places = self._units_of_staged(rows, places)
        timers.units.discount(places[places >= 0])
        timers.stage.settle(rows["phys_offset"], rows["due_ms"])
        timers.claims.add(rows["phys_offset"], places)
        timers.books.note(rows["topic_index"], rows["phys_offset"], -1)

    def _units_of_staged(self, rows: Rows, places: Offsets) -> Offsets:
        """Return the places of units, those of staged timers too, which lie in their slot still."""
        timers = self._timers
        places = places.copy()
        staged = np.flatnonzero(places == STAGED)
        if staged.size:
            mine = rows[staged]
            first, _ = candidates(mine["due_ms"], timers.position.read_ms, timers.config.window_ms)
            places[staged] = timers.units.find(mine["phys_offset"], first)
        return places

    # -- markers that clients send --------------------------------------------------------------

    def apply_markers(self, markers: Rows) -> int:
        """Cancel the timers that markers of clients name; return how many waited.

        As Apache's: the target is the timer with this key in the slot of the marker's own time.

        Args:
            markers: (n,) `layout.TIMED`.
        """
        done = 0
        for row in markers:
            targets = self._named_by(row)
            if targets.size:
                rows = self._timers.records.read(targets)
                same = self._tick(rows["due_ms"]) == self._tick(row["due_ms"])
                rows = rows[same]
                places = self.places(rows)
                waiting = places != NOWHERE
                self.settle(rows[waiting], places[waiting])
                done += int(waiting.sum())
        return done

    def _tick(self, due_ms: Any) -> Any:
        return (due_ms - 1) // self._timers.config.precision_ms

    def _named_by(self, marker: Any) -> Offsets:
        """Return the log offsets of the timers whose topic and key a marker names."""
        store = self._timers.store
        properties = store.read_record(int(marker["phys_offset"])).properties
        name = properties.get("TIMER_DEL_UNIQKEY", "")
        topic, plus, key = name.partition("+")
        if not plus or not key:
            return np.empty(0, np.int64)
        end_ms = self._timers.clock.now_ms() + 1_000
        found = store.query_keys(TIMER_TOPIC, key, 64, 0, end_ms)
        return np.array([at for at in found if self._is_target(at, topic, key)], np.int64)

    def _is_target(self, phys_offset: int, topic: str, key: str) -> bool:
        properties = self._timers.store.read_record(phys_offset).properties
        return (
            properties.get("REAL_TOPIC") == topic
            and properties.get("UNIQ_KEY") == key
            and "TIMER_DEL_UNIQKEY" not in properties
        )
