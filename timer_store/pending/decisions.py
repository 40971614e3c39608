"""Decisions about pending timers: cancel, move, fire; one log record each, then the response.

    pending   in the near stage; with a unit in a slot that is not staged yet; or in the queue,
              not enqueued
    decided   the record that names the timer as its origin is in the log

    cancel    a marker of Apache's form (TIMER_DEL_UNIQKEY)         <- names its origin
    move      a copy with the new time                              <- names its origin
    fire      the delivery itself                                   <- names its origin

Check and decision happen on one thread without an await in between, so a cancelled timer is never
delivered, and a delivered one is never reported as cancelled. If the store refuses a record, its
timer does not change.

A move and a fire also append a marker with the same origin. An Apache broker that opens the store
cancels the old unit by this marker. The marker follows the deciding record; a crash between the two
affects an Apache broker only, because DueMQ's recovery reads origins. A move within one slot
appends no marker, because the marker would cancel the copy. The body of a marker distinguishes the
three (`names.CANCELLED_BODY`), so that an audit knows which record has to precede it.
"""

from __future__ import annotations

import numpy as np

from delayed_delivery.names import CANCELLED_BODY, FIRED_BODY, MOVED_BODY
from delayed_delivery.ownership import JournalEntry
from delayed_delivery.pending import Decided, Verdict
from duemq_common.config import INT_MAX
from message_store.ranges import distinct, is_among
from timer_store import layout
from timer_store.enqueue.flow_control import full_slot_refusal, over_limit
from timer_store.layout import Mask, Offsets, Rows
from timer_store.log.slot_choice import slot_times
from timer_store.state import TimerState

NOWHERE, STAGED, QUEUED = -1, -2, -3  # locations that are not positions of units


class Decisions:
    """Decisions about pending timers of one store."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._records = state.deciding
        self.cancelled = self.moved = self.fired = 0

    # -- locations of timers --------------------------------------------------------------------

    def locate(self, rows: Rows) -> Offsets:
        """Return the locations of timers: the position of their unit, STAGED, QUEUED, or NOWHERE.

        Args:
            rows: (n,) `layout.TIMED` of their records.
        """
        state = self._state
        locations = np.full(rows.size, NOWHERE, np.int64)
        plain = rows["kind"] == layout.TIMED_PLAIN
        queued = plain & self._in_queue(rows)
        locations[queued] = QUEUED
        staged = state.stage.contains(rows["phys_offset"], rows["due_ms"]) & plain & ~queued
        locations[staged] = STAGED
        rest = plain & ~queued & ~staged
        locations[rest] = self._in_slots(rows if rest.all() else rows[rest])
        locations[state.settled_timers.has(rows["phys_offset"])] = NOWHERE
        return locations

    def is_pending(self, rows: Rows) -> Mask:
        """Return which timers, (n,) `layout.TIMED`, are pending."""
        return np.asarray(self.locate(rows) != NOWHERE)

    def _in_queue(self, rows: Rows) -> Mask:
        """Return which timers are neither enqueued nor settled."""
        ahead = rows["queue_offset"] >= self._state.position.queue_offset
        if ahead.any():
            ahead &= ~is_among(rows["phys_offset"], self._state.enqueue.skip)
        if self._state.transfers.incomplete:
            ahead |= self._state.transfers.unenqueued(rows)
        return np.asarray(ahead)

    def _in_slots(self, rows: Rows) -> Offsets:
        """Return the positions of units in slots that are not loaded yet.

        A timer whose slot is being rolled may have two units; the later one is returned.
        """
        state, position = self._state, self._state.position
        precision_ms = state.config.precision_ms
        positions = np.full(rows.size, NOWHERE, np.int64)
        slots_ms = state.slots_of(rows["due_ms"])
        for slot_ms in reversed(slots_ms) if state.dequeue.is_rolling else slots_ms:
            ahead = positions == NOWHERE
            if not ahead.any():
                break
            ahead &= ~position.is_loaded(rows, slot_ms, precision_ms)
            if ahead.any():
                selected = slice(None) if ahead.all() else ahead
                positions[selected] = state.units.find(
                    rows["phys_offset"][selected], slot_ms[selected]
                )
        return positions

    # -- settled --------------------------------------------------------------------------------

    def settle(self, rows: Rows, locations: Offsets, *, returned: bool = False) -> None:
        """Remove timers from their locations after their deciding records were appended.

        Args:
            rows: (n,) `layout.TIMED`.
            locations: (n,) from `locate`, none of them NOWHERE.
            returned: They were returned to a level.
        """
        state = self._state
        queued = locations == QUEUED
        if queued.any():
            if not returned:  # otherwise the ownership journal excludes them
                enqueue = state.enqueue
                enqueue.skip = distinct(enqueue.skip, rows["phys_offset"][queued])
            rows, locations = rows[~queued], locations[~queued]
        if not rows.size:
            return
        offsets, staged = rows["phys_offset"], locations == STAGED
        positions = locations.copy()
        if staged.any():
            positions[staged] = state.units.find(offsets[staged], self._slots_now(rows[staged]))
        state.units.discount(positions[positions >= 0])
        if staged.any():
            state.stage.settle(offsets[staged], rows["due_ms"][staged])
        add = state.settled_timers.add_returned if returned else state.settled_timers.add
        add(offsets, positions)
        if state.dequeue.is_rolling:
            self._settle_rolled(rows, positions)
        state.counts.change(rows["topic_index"], offsets, -1)

    def return_units(self, entry: JournalEntry, rows: Rows, locations: Offsets) -> None:
        """Return messages to their level, after their ownership record was appended.

        Args:
            rows, locations: All pending messages of the record's ranges; see `locate`.
        """
        self.settle(rows, locations, returned=True)
        self._state.transfers.on_return(entry, rows)

    def _settle_rolled(self, rows: Rows, positions: Offsets) -> None:
        """Settle the other units that timers have in a slot that is being rolled."""
        state = self._state
        units = state.units.find(rows["phys_offset"], self._slots_now(rows))
        others = (units >= 0) & (units != positions)
        state.settled_timers.add_returned(rows["phys_offset"][others], units[others])

    def scan_from(self) -> int:
        """Return a log offset before all records that settle timers that are not enqueued.

        A start enqueues the queue from the checkpoint on, without the timers that these records
        name. If the timer log was full, a delivery of an earlier process can be among them.
        """
        state = self._state
        first = state.first_in_queue() if state.enqueue.skip.size else None
        return int(state.store.max_offset) if first is None else first

    def _slots_now(self, rows: Rows) -> Offsets:
        """Return the slots of staged timers, and the current slots of timers to be rolled."""
        position, window_ms = self._state.position, self._state.config.window_ms
        return slot_times(rows["due_ms"], position.read_ms, position.staged_ms, window_ms)

    # -- decisions ------------------------------------------------------------------------------

    def cancel(self, offsets: Offsets) -> Decided:
        """Cancel timers. See `delayed_delivery.pending.PendingMessages`."""
        rows, locations, decided = self._read_pending(offsets)
        positions = np.flatnonzero(locations != NOWHERE)
        now_ms = self._state.clock.now_ms()
        refused = self._records.put_markers(rows[positions], now_ms, CANCELLED_BODY)
        self.cancelled += self._conclude(rows, locations, positions, refused, decided)
        return decided

    def move(self, offsets: Offsets, due_ms: Offsets) -> Decided:
        """Move timers to other due times; a timer with a due time in the past is delivered now."""
        state = self._state
        rows, locations, decided = self._read_pending(offsets)
        now_ms = state.clock.now_ms()
        pending = locations != NOWHERE
        too_far = pending & (due_ms - now_ms > state.config.max_delay_ms)
        for index in np.flatnonzero(too_far).tolist():
            decided.verdicts[index] = Verdict.REFUSED
            decided.remarks[index] = (
                f"{int(due_ms[index])} is further away than the max delay "
                f"{state.config.max_delay_text} from {now_ms}"
            )
        past = pending & (due_ms <= now_ms)
        self._fire(rows, locations, np.flatnonzero(past), decided)
        indexes = np.flatnonzero(pending & ~too_far & ~past)
        indexes = self._with_room(indexes, rows["due_ms"], due_ms, decided)
        refused = self._records.put_copies(rows[indexes], due_ms[indexes], now_ms)
        self.moved += self._conclude(rows, locations, indexes, refused, decided)
        moved = indexes[decided.verdicts[indexes] == Verdict.DONE]
        width_ms = state.config.precision_ms
        other = (rows["due_ms"][moved] - 1) // width_ms != (due_ms[moved] - 1) // width_ms
        self._records.put_markers(rows[moved[other]], now_ms, MOVED_BODY)
        decided.log_end = state.store.max_offset
        return decided

    def _with_room(
        self, positions: Offsets, was_ms: Offsets, due_ms: Offsets, decided: Decided
    ) -> Offsets:
        """Return the timers whose target slot has room, or is their current slot."""
        config, width_ms = self._state.config, self._state.config.precision_ms
        if not config.flow_control or config.slot_timers_max >= INT_MAX:
            return positions
        slots_ms = (due_ms[positions] - 1) // width_ms * width_ms
        coming = np.flatnonzero((was_ms[positions] - 1) // width_ms * width_ms != slots_ms)
        room = np.ones(positions.size, np.bool_)
        limit = config.slot_timers_max
        for index, slot_ms, count in over_limit(
            slots_ms[coming], self._state.units.wheel.num, limit
        ):
            refused = coming[index]
            room[refused] = False
            decided.verdicts[positions[refused]] = Verdict.REFUSED
            decided.remarks[int(positions[refused])] = full_slot_refusal(slot_ms, count, limit)
        return positions[room]

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver timers now."""
        rows, locations, decided = self._read_pending(offsets)
        self._fire(rows, locations, np.flatnonzero(locations != NOWHERE), decided)
        return decided

    def _read_pending(self, offsets: Offsets) -> tuple[Rows, Offsets, Decided]:
        """Return records and locations of timers, and verdicts of timers that are not pending."""
        assert distinct(offsets).size == offsets.size, "each timer once"
        rows = self._state.records.read(offsets)
        locations = self.locate(rows)
        verdicts = np.full(offsets.size, Verdict.DELIVERED, np.int8)
        verdicts[rows["kind"] != layout.TIMED_PLAIN] = Verdict.UNKNOWN
        return rows, locations, Decided(verdicts, log_end=self._state.store.max_offset)

    def _conclude(
        self,
        rows: Rows,
        locations: Offsets,
        positions: Offsets,
        refused: dict[int, str],
        decided: Decided,
    ) -> int:
        """Settle the timers whose record was stored; return their number."""
        stored = np.ones(positions.size, np.bool_)
        for index, reason in refused.items():
            stored[index] = False
            decided.verdicts[positions[index]] = Verdict.REFUSED
            decided.remarks[int(positions[index])] = reason
        done = positions[stored]
        decided.verdicts[done] = Verdict.DONE
        if done.size:
            self.settle(rows[done], locations[done])
        decided.log_end = self._state.store.max_offset
        return int(done.size)

    def _fire(self, rows: Rows, locations: Offsets, positions: Offsets, decided: Decided) -> None:
        """Deliver timers before their due time."""
        if not positions.size:
            return
        state = self._state
        now_ms = state.clock.now_ms()
        staged = np.zeros(positions.size, layout.STAGED)
        for column in ("due_ms", "phys_offset", "record_size", "topic_hash"):
            staged[column] = rows[column][positions]
        staged["pos"], staged["write_ms"], staged["magic"] = -1, now_ms, layout.MAGIC_DEFAULT
        staged["state"] = layout.STAGED_FIRED
        outcome = state.deliverer.deliver_batch(staged, now_ms)
        refused = dict.fromkeys(range(outcome.done, positions.size), outcome.refusal)
        self.fired += self._conclude(rows, locations, positions, refused, decided)
        state.dequeue.stats.record_undelivered(outcome)
        for item in outcome.quarantined:
            where = positions[np.flatnonzero(rows["phys_offset"][positions] == item.phys_offset)]
            remark = f"it went to quarantine, {item.reason.value}: {item.detail}"
            decided.remarks |= dict.fromkeys(where.tolist(), remark)
        self._records.put_markers(rows[positions[: outcome.done]], now_ms, FIRED_BODY)
        decided.log_end = state.store.max_offset
