"""Recovery of the timer store: from the last checkpoint forward over the logs.

    timer log   [ as of the checkpoint ............ P ][ cut off ]
    queue       [ enqueued ........................ Q ][ enqueued again, except settled timers ]
    commit log  [ ................................. L ][ origins: timers settled since ]

Each slot of the wheel on the disk is that of the checkpoint, or already that of the next one, which
was being written: chains of slots that point after P are walked back (`TimerUnits.repair`). If the
files do not match each other, or the checkpoint is lost, timer log and wheel are rebuilt from the
queue and the commit log. If an Apache broker wrote the files, or has delivered from this log as
another master of the group since the checkpoint, they are adopted (`adoption`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from delayed_delivery import ownership
from duemq_common.errors import CorruptStore
from duemq_common.topics import TIMER_TOPIC
from message_store.ranges import distinct, is_among
from timer_store import layout
from timer_store.checkpoint.snapshot import Snapshot
from timer_store.enqueue import adoption
from timer_store.layout import NO_OFFSETS, Offsets, Rows
from timer_store.log.slot_choice import slot_times
from timer_store.names import TIMER_QUEUE
from timer_store.state import TimerState

log = logging.getLogger(__name__)
TAKE_UNITS = 65_536


def recover(state: TimerState, notice: Callable[[str], None]) -> None:
    """Recover an opened timer store from its files.

    Args:
        notice: Called with a log line for the operator.
    """
    snapshot = state.files.load()
    foreign = snapshot is None and state.files.check is not None
    adoption.load_log(state, notice, foreign=foreign)
    reason = "no checkpoint" if snapshot is None else invalid_reason(state, snapshot)
    if snapshot is not None and reason is None:
        try:
            if restore(state, snapshot, notice):
                return
            reason = "the timer log is damaged"
        except CorruptStore as error:
            reason = f"the timer log is damaged: {error}"
    first, end = state.fetch.bounds()
    if foreign:
        notice(f"{state.store.root} was last used by an Apache broker: its timers are adopted")
    elif snapshot is not None or first < end:
        notice(f"the timer store is rebuilt from the commit log: {reason}")
    rebuild(state)
    if foreign:
        notice(f"{state.counts.total} timers pending")


def invalid_reason(state: TimerState, snapshot: Snapshot) -> str | None:
    """Return the reason why a checkpoint cannot be used, None if it is valid."""
    units, store = state.units, state.store
    _, queued = store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
    if snapshot.precision_ms != state.config.precision_ms:
        return (
            f"timerPrecisionMs was {snapshot.precision_ms}, it is {state.config.precision_ms} now"
        )
    if snapshot.by_file and snapshot.window_ms not in (0, state.config.window_ms):
        return (  # decisions would not find the units of timers that roll
            f"timerRollWindowSlot was {snapshot.window_ms // snapshot.precision_ms}, it is "
            f"{state.config.roll_window_slots} now"
        )
    unchanged = store.unchanged_end(snapshot.generation)
    if snapshot.log_offset > unchanged:
        return f"the commit log ended at {unchanged}, before the checkpoint's {snapshot.log_offset}"
    if snapshot.queue_offset > queued:
        return f"the timer queue ends at {queued}, before the checkpoint's {snapshot.queue_offset}"
    if snapshot.log_pos > units.log.end:
        return f"the timer log ends at {units.log.end}, before the checkpoint's {snapshot.log_pos}"
    end = ownership.bounds(store)[1]
    if snapshot.handover_offset > end:
        return f"the journal ends at {end}, before the checkpoint's {snapshot.handover_offset}"
    if adoption.has_apache_deliveries(state, snapshot.log_offset, snapshot.queue_offset):
        return "an Apache broker was the master since the last checkpoint"
    return None


def restore(state: TimerState, snapshot: Snapshot, notice: Callable[[str], None]) -> bool:
    """Restore a checkpoint and enqueue the timers after it; return False if that is impossible.

    Raises:
        OSError: Timer log, wheel or checkpoint cannot be read or written.
    """
    units, position = state.units, state.position
    faults = units.repair(snapshot.log_pos)
    position.read_ms = position.staged_ms = snapshot.read_ms
    position.queue_offset = snapshot.queue_offset
    position.rolled_ms = snapshot.staged_ms
    state.counts.restore(snapshot.by_topic, snapshot.by_file)
    state.transfers.restore(
        snapshot.handover_offset,
        snapshot.handover_unit,
        log_offset=snapshot.log_offset,
        scan_from=snapshot.scan_from,
    )
    if state.store.durable_offset < state.store.max_offset:
        state.store.flush()  # a tombstone must not be on the disk before its delivery is
    mark_rolled_units(state)
    start, middle = snapshot.scan_from, snapshot.log_offset
    state.origin_run.begin(start, state.store.max_offset)
    before = origins(state, start, middle)
    write_tombstones(state, before, counted=False)
    settled = origins(state, middle)
    settled = settled[~is_among(settled, before)]  # second records about settled timers
    write_tombstones(state, settled, counted=True)
    returned = state.transfers.apply_new_records()
    state.transfers.mark_returned_units(returned, distinct(before, settled))
    faults += units.check(position.read_ms)
    if faults or not counts_match(state):
        notice(
            f"the timer wheel is rebuilt from the timer log: "
            f"{faults[0] if faults else 'its slots differ from the counts of the checkpoint'}"
        )
        linked = units.relink(position.read_ms)
        if linked.damaged.size or linked.too_far.size or not counts_match(state):
            return False
    enqueue_rest(state, distinct(before, settled))
    return True


def mark_rolled_units(state: TimerState) -> None:
    """Write tombstones to units that were rolled into later slots, before slots are counted.

    A checkpoint writes them later than the new units; the old slots no longer count these units.
    """
    units, position = state.units, state.position
    for slots in units.wheel.live_parts(position.read_ms, position.rolled_ms + 1):
        for tick in slots["tick"].tolist():
            slot_ms = tick * units.precision_ms
            for rows in units.read_parts(slot_ms):
                ends_ms = slot_ms + units.precision_ms
                rolls = rows[rows["due_ms"] > ends_ms]
                due_ms, window_ms = rolls["due_ms"], state.config.window_ms
                later_ms = slot_times(due_ms, position.read_ms, ends_ms, window_ms)
                rolled = units.find(rolls["phys_offset"], later_ms) >= 0
                units.write_tombstones(rolls["pos"][rolled])


def counts_match(state: TimerState) -> bool:
    """Return whether slots and counts have the same number of timers."""
    parts = state.units.wheel.live_parts(state.position.read_ms)
    return sum(int(slots["num"].sum()) for slots in parts) == state.counts.total


def write_tombstones(state: TimerState, settled: Offsets, *, counted: bool) -> None:
    """Write tombstones to the units of settled timers, and subtract these from the counts.

    Args:
        settled: Log offsets of records, ascending; records that are not timers are skipped.
        counted: Whether the counts still include them.
    """
    for first in range(0, settled.size, TAKE_UNITS):
        part = settled[first : first + TAKE_UNITS]
        rows = state.records.read(part)
        rows = rows[rows["kind"] == layout.TIMED_PLAIN]
        rows = rows[rows["queue_offset"] < state.position.queue_offset]
        if counted:
            state.counts.change(rows["topic_index"], rows["phys_offset"], -1)
        else:  # a return before the checkpoint has removed some from the journal's ranges
            rows = np.concatenate([rows, state.transfers.settled_at_offsets(part)])
        slots_ms = state.slots_of(rows["due_ms"])
        state.units.settle(positions_of(state, rows, slots_ms))
        # The counts of some slots in the file exclude these timers already.
        state.units.recount(np.concatenate(slots_ms))


def positions_of(state: TimerState, rows: Rows, slots_ms: tuple[Offsets, ...]) -> Offsets:
    """Return the timer log positions of the units of timers that have one."""
    positions = np.full(rows.size, -1, np.int64)
    for slot_ms in slots_ms:
        left = np.flatnonzero(positions < 0)
        positions[left] = state.units.find(rows["phys_offset"][left], slot_ms[left])
    return distinct(positions[positions >= 0])


def enqueue_rest(state: TimerState, settled: Offsets) -> None:
    """Enqueue the rest of the queue, without settled timers."""
    state.enqueue.skip = settled
    now_ms = state.clock.now_ms()
    while state.enqueue.lag_units and state.enqueue.catch_up(TAKE_UNITS, now_ms):
        pass
    while state.transfers.catch_up(TAKE_UNITS, now_ms):
        pass
    if not state.enqueue.lag_units and not state.transfers.incomplete:
        state.enqueue.skip = NO_OFFSETS


def origins(state: TimerState, start: int, end: int | None = None) -> Offsets:
    """Return the origins named by the records between two log offsets, ascending."""
    origins_ = [NO_OFFSETS]
    for rows in state.store.scan(start, end):
        state.origin_run.add(rows)
        prepared = rows["prepared_offset"]
        origins_.append(-(prepared[prepared < 0] + 1))
    return distinct(*origins_)


def rebuild(state: TimerState) -> None:
    """Rebuild timer log, wheel and counts from the queue, without settled timers."""
    state.transfers.restore(0, 0)
    state.transfers.apply_new_records()
    settled = _settled(state)
    state.files.forget()  # the last checkpoint is invalid from here on
    state.units.clear()
    state.counts.restore({}, {})
    first, _ = state.fetch.bounds()
    state.position.queue_offset = first
    now_ms = state.clock.now_ms()
    start_ms = now_ms - now_ms % state.config.precision_ms
    state.position.read_ms = state.position.staged_ms = start_ms
    state.position.rolled_ms = -1
    enqueue_rest(state, settled)


def _settled(state: TimerState) -> Offsets:
    """Return the log offsets of settled timers and transferred level messages, ascending.

    If there are neither, the log is not read.
    """
    first, end = state.fetch.bounds()
    if first >= end and not state.transfers.owned:
        return NO_OFFSETS
    return adoption.settled(state)
