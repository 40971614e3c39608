"""Recovery of the timer store: from the last checkpoint forward over the logs.

    timer log   [ as of the checkpoint ............ P ][ cut off ]
    queue       [ enqueued ........................ Q ][ enqueued again, but for the settled ]
    commit log  [ ................................. L ][ origins: what was settled since ]

The wheel on the disk is that of the checkpoint or, slot by slot, of the next one, which was being
written: slots that point after P are followed back (`TimerUnits.repair`). Where the files do not
belong together, or the checkpoint is lost, everything is rebuilt from the queue and the commit
log; where an Apache broker wrote them, they are adopted (`adoption`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from delivery import ownership
from message_store.errors import CorruptStore
from message_store.ranges import distinct
from message_store.store import MessageStore
from timer_store import layout
from timer_store.checkpoint.snapshot import Snapshot
from timer_store.enqueue import adoption
from timer_store.layout import NO_OFFSETS, Offsets, Rows
from timer_store.log.slot_choice import candidates, slot_times
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC
from timer_store.state import TimerState

log = logging.getLogger(__name__)
TAKE_UNITS = 65_536
"""Called with what is done, how much of it, and the whole."""
Progress = Callable[[str, int, int], None]


def recover(state: TimerState, notice: Callable[[str], None], progress: Progress) -> None:
    """Bring an opened timer store to where it may go on.

    Args:
        notice: called with a line for the operator.
    """
    snapshot = state.files.load()
    foreign = snapshot is None and state.files.check is not None
    adoption.load_log(state, notice, foreign=foreign, own=snapshot is not None)
    why = "no checkpoint" if snapshot is None else doubt(state, snapshot)
    if snapshot is not None and why is None:
        try:
            if restore(state, snapshot, notice, progress):
                return
            why = "the timer log is damaged"
        except CorruptStore as error:
            why = f"the timer log is damaged: {error}"
    first, end = state.fetch.bounds()
    reach = adoption.UNKNOWN
    if foreign:
        notice(f"{state.store.root} was last used by an Apache broker: its timers are taken over")
        reach = adoption.find_reach(state, notice)
    elif snapshot is not None or first < end:
        notice(f"the timer store is rebuilt from the commit log: {why}")
    rebuild(state, progress, reach)
    if foreign:
        notice(f"{state.counts.total} timers pending")


def doubt(state: TimerState, snapshot: Snapshot) -> str | None:
    """Return why a checkpoint cannot be gone on from, None if it can."""
    units, store = state.units, state.store
    _, queue_end = store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
    if snapshot.precision_ms != state.config.precision_ms:
        return (
            f"timerPrecisionMs was {snapshot.precision_ms}, it is {state.config.precision_ms} now"
        )
    if snapshot.log_offset > store.max_offset:
        return f"the commit log ends at {store.max_offset}, it had {snapshot.log_offset}"
    if snapshot.queue_offset > queue_end:
        return f"the timer queue ends at {queue_end}, it had {snapshot.queue_offset}"
    if snapshot.log_pos > units.log.end:
        return f"the timer log ends at {units.log.end}, it had {snapshot.log_pos}"
    marks_end = ownership.bounds(store)[1]
    if snapshot.handover_offset > marks_end:
        return f"the queue of marks ends at {marks_end}, it had {snapshot.handover_offset}"
    return None


def restore(
    state: TimerState, snapshot: Snapshot, notice: Callable[[str], None], progress: Progress
) -> bool:
    """Go back to a checkpoint and enqueue what came after it; False: it cannot be done.

    Raises:
        OSError: The disk refused the log, or what depends on it.
    """
    units, position = state.units, state.position
    faults = units.repair(snapshot.log_pos)
    position.read_ms = position.staged_ms = snapshot.read_ms
    position.queue_offset = snapshot.queue_offset
    position.rolled_ms = snapshot.staged_ms
    state.counts.restore(snapshot.by_topic, snapshot.by_file)
    state.transfers.restore(snapshot.handover_offset, snapshot.handover_unit)
    if state.store.durable_offset < state.store.max_offset:
        state.store.flush()  # a tombstone must not outlive the delivery that it is for
    bury_put_on(state)
    start, middle = snapshot.scan_from, snapshot.log_offset
    before = origins(state.store, start, middle)
    bury(state, before, counted=False)
    settled = origins(state.store, middle)
    bury(state, settled, counted=True)
    returned = state.transfers.read_on()
    state.transfers.bury_returned(returned, distinct(before, settled))
    faults += units.check(position.read_ms)
    if faults or not adds_up(state):
        notice(
            f"the timer wheel is rebuilt from the timer log: "
            f"{faults[0] if faults else 'its slots do not hold what the checkpoint counts'}"
        )
        linked = units.relink(
            position.read_ms, progress=lambda done, whole: progress("units linked", done, whole)
        )
        if linked.damaged.size or linked.too_far.size or not adds_up(state):
            return False
    take_in(state, distinct(before, settled), progress)
    return True


def bury_put_on(state: TimerState) -> None:
    """Put tombstones on units that were rolled into later slots, before slots are counted again.

    They get them a checkpoint later than their successors; their slots count them no more.
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
                put_on = units.find(rolls["phys_offset"], later_ms) >= 0
                units.bury(rolls["pos"][put_on])


def adds_up(state: TimerState) -> bool:
    """Return whether the slots hold as many timers as the counts say."""
    parts = state.units.wheel.live_parts(state.position.read_ms)
    return sum(int(slots["num"].sum()) for slots in parts) == state.counts.total


def bury(state: TimerState, settled: Offsets, *, counted: bool) -> None:
    """Put tombstones on the units of settled timers, and take those off the counts.

    Args:
        settled: log offsets of records, ascending; those that are no timers are passed over.
        counted: the counts have them still.
    """
    for first in range(0, settled.size, TAKE_UNITS):
        rows = state.records.read(settled[first : first + TAKE_UNITS])
        rows = rows[rows["kind"] == layout.TIMED_PLAIN]
        rows = rows[rows["queue_offset"] < state.position.queue_offset]
        if counted:
            state.counts.note(rows["topic_index"], rows["phys_offset"], -1)
        pair = candidates(rows["due_ms"], state.position.read_ms, state.config.window_ms)
        state.units.settle(positions_of(state, rows, pair))
        state.units.recount(np.concatenate(pair))  # some had one less in the file already


def positions_of(state: TimerState, rows: Rows, pair: tuple[Offsets, Offsets]) -> Offsets:
    """Return where the units of timers lie in the timer log; those in no slot are left out."""
    found = state.units.find(rows["phys_offset"], pair[0])
    again = state.units.find(rows["phys_offset"], pair[1])
    found = np.where(found < 0, again, found)
    return distinct(found[found >= 0])


def take_in(state: TimerState, settled: Offsets, progress: Progress | None = None) -> None:
    """Enqueue the rest of the queue, without what is settled."""
    state.enqueue.skip = settled
    now_ms = state.clock.now_ms()
    total = state.enqueue.behind
    while state.enqueue.behind and state.enqueue.catch_up(TAKE_UNITS, now_ms):
        if progress is not None:
            progress("timers enqueued", total - state.enqueue.behind, total)
    while state.transfers.catch_up(TAKE_UNITS, now_ms):
        pass
    if not state.enqueue.behind and not state.transfers.behind:
        state.enqueue.skip = NO_OFFSETS


def origins(store: MessageStore, start: int, end: int | None = None) -> Offsets:
    """Return the origins that the records between two log offsets name, ascending."""
    held = [NO_OFFSETS]
    for rows in store.scan(start, end):
        prepared = rows["prepared_offset"]
        held.append(-(prepared[prepared < 0] + 1))
    return distinct(*held)


def rebuild(
    state: TimerState, progress: Progress, reach: adoption.Reach = adoption.UNKNOWN
) -> None:
    """Rebuild timer log, wheel and counts from the queue, without what the log has settled.

    Args:
        reach: how far another broker was that used this store last.
    """
    state.transfers.restore(0, 0)
    state.transfers.read_on()
    settled = _settled(state, progress, reach)
    if reach is adoption.UNKNOWN:  # else the next start has to know what that other broker wrote
        state.files.forget()  # a crash before the next checkpoint must not find the last one
    state.units.clear()
    state.counts.restore({}, {})
    first, _ = state.fetch.bounds()
    state.position.queue_offset = first
    now_ms = state.clock.now_ms()
    start_ms = now_ms - now_ms % state.config.precision_ms
    state.position.read_ms = state.position.staged_ms = start_ms
    state.position.rolled_ms = -1
    take_in(state, settled, progress)


def _settled(state: TimerState, progress: Progress, reach: adoption.Reach) -> Offsets:
    """Return what of the queue and of transferred messages the log has settled, ascending.

    Where there is neither, the log, which may be long, is not read for it.
    """
    first, end = state.fetch.bounds()
    if first >= end and not state.transfers.owned:
        return NO_OFFSETS
    return distinct(
        origins(state.store, state.store.min_offset),
        adoption.settled_by_others(state, reach, progress),
    )
