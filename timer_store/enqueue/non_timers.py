"""Records of the timer queue that are not timers: damaged records, and markers of clients.

    broken   no time, no target, or unreadable: moved to the quarantine topic, with the reason
    marker   TIMER_DEL_UNIQKEY: cancels the timer that it names, as in Apache's broker

They are settled between two turns, before the next checkpoint. A marker names a topic and a unique
key; its target is the timer that has both, in the slot of the marker's time. A marker is applied
when it is enqueued, not when the slot is read: the timer is cancelled as by request 9011, with a
record that names it as its origin. If the store refuses this record, the marker is applied later,
and no timer is delivered before. While more markers come than a turn applies, timers that were due
after the first of them was enqueued are delivered after it is applied. A marker without a possible
record, as of a damaged timer, is dropped and logged.

Source: TimerMessageStore, TimerDequeueGetMessageService
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from delayed_delivery.markers import MarkerTarget, target_of
from duemq_common.errors import RecordUnreadable, StoreError
from duemq_common.topics import TIMER_TOPIC
from message_store.index.key_search import HIT_UNIQUE, search_now
from message_store.ranges import distinct
from timer_store import layout
from timer_store.enqueue.enqueue_service import staged_rows
from timer_store.layout import Offsets, Row
from timer_store.pending.decisions import Decisions
from timer_store.state import TimerState

log = logging.getLogger(__name__)
ROWS_MAX = 1_024  # per turn
MARKERS_MAX = 128  # per turn; each reads its record
HELD_TURNS_MAX = 64  # in which markers prevent deliveries; then one batch of timers is delivered


class NonTimers:
    """Settlement of one timer queue's records that are not timers."""

    def __init__(self, state: TimerState, decisions: Decisions) -> None:
        self._state, self._decisions = state, decisions
        self.quarantined = self._held_turns = 0

    def settled(self, now_ms: int) -> bool:
        """Settle all broken rows and markers; return whether that was possible."""
        while self.settle(now_ms):
            pass
        enqueue = self._state.enqueue
        return not (enqueue.broken or enqueue.markers)

    def settle(self, now_ms: int) -> int:
        """Settle some broken rows and markers; return their number, 0 if the store refuses."""
        count = self._settle_broken(now_ms) if self._state.enqueue.broken else 0
        return count + self._apply_markers() if self._state.enqueue.markers else count

    def _settle_broken(self, now_ms: int) -> int:
        queue = self._state.enqueue.broken
        rows = queue.pop(0)
        done = self._state.deliverer.quarantine_broken(staged_rows(rows[:ROWS_MAX], now_ms), now_ms)
        if done < rows.size:
            queue.insert(0, rows[done:])
        self.quarantined += done
        return done

    # -- markers --------------------------------------------------------------------------------

    def _apply_markers(self) -> int:
        """Cancel the timers that the next markers name; return the number of markers.

        Returns:
            0 if the store refuses a cancel now: the markers are applied again.
        """
        state, queue = self._state, self._state.enqueue.markers
        since_ms, rows = queue[0]
        markers = rows[:MARKERS_MAX]
        named = [(row, name) for row in markers if (name := self._target_of(row)) is not None]
        decided = self._decisions.cancel(distinct(self._find(named))) if named else None
        state.enqueue.are_cancels_refused = bool(named) and state.deciding.is_refused_now
        if state.enqueue.are_cancels_refused:
            return 0
        for remark in set(decided.remarks.values()) if decided else ():
            log.warning("a timer that a client cancels is not cancelled: %s", remark)
        queue[:1] = [(since_ms, rows[MARKERS_MAX:])] if rows.size > MARKERS_MAX else []
        return int(markers.size)

    def come_first(self, now_ms: int) -> bool:
        """Return whether a marker that is not applied may name a timer that is due now."""
        markers, due_ms = self._state.enqueue.markers, self._state.stage.next_due_ms
        is_first = bool(markers) and due_ms is not None and markers[0][0] <= due_ms <= now_ms
        self._held_turns = (self._held_turns + 1) % HELD_TURNS_MAX if is_first else 0
        return is_first and self._held_turns > 0

    def _properties(self, row: Row) -> dict[str, str]:
        try:
            return self._state.store.read_record(int(row["phys_offset"])).properties
        except RecordUnreadable:
            return {}

    def _target_of(self, marker: Row) -> MarkerTarget | None:
        """Return the target of a marker, None if it has none."""
        properties = self._properties(marker)
        return target_of(properties, properties.get("REAL_TOPIC", ""))

    def _find(self, named: Sequence[tuple[Row, MarkerTarget]]) -> Offsets:
        """Return the log offsets of the named timers in the slots of their markers."""
        state, keys = self._state, [target.unique_key for _, target in named]
        try:
            matches = search_now(state.store, [TIMER_TOPIC], keys)
            unique = matches.hits == HIT_UNIQUE
            offsets, key_at = matches.offsets[unique], matches.key_at[unique]
            rows = state.records.read(offsets)
        except StoreError:  # the key index is not available: read the slots
            return self._find_in_slots(named)
        width_ms = state.config.precision_ms
        due_ms = np.array([row["due_ms"] for row, _ in named], np.int64)
        topics = np.array([state.store.topics.find(name[0]) for _, name in named], np.int64)
        same = (rows["due_ms"] - 1) // width_ms == (due_ms[key_at] - 1) // width_ms
        same &= (rows["topic_index"] == topics[key_at]) & (rows["kind"] == layout.TIMED_PLAIN)
        return np.asarray(offsets[same])

    def _find_in_slots(self, named: Sequence[tuple[Row, MarkerTarget]]) -> Offsets:
        """Return the result of `_find` without the key index: read all timers of the slots."""
        state, width_ms = self._state, self._state.config.precision_ms
        positions: list[int] = []
        targets: dict[int, set[MarkerTarget]] = {}
        for row, name in named:
            targets.setdefault((int(row["due_ms"]) - 1) // width_ms, set()).add(name)
        for tick, names in targets.items():
            own = np.array([(tick + 1) * width_ms], np.int64)
            for slot_ms in {int(times[0]) // width_ms * width_ms for times in state.slots_of(own)}:
                rows = state.units.read_slot(slot_ms).rows
                for unit in rows[(rows["due_ms"] - 1) // width_ms == tick]:
                    had = self._properties(unit)
                    if (had.get("REAL_TOPIC", ""), had.get("UNIQ_KEY", "")) in names:
                        positions.append(int(unit["phys_offset"]))
        return np.array(positions, np.int64)
