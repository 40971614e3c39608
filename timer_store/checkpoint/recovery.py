"""Recovery of the timer store: from the last checkpoint forward over the logs.

    timer log   [ as of the checkpoint ............ P ][ cut off ]
    queue       [ taken in ........................ Q ][ taken in again, but for the settled ]
    commit log  [ ................................. L ][ origins: what was settled since ]

The wheel on the disk is that of the checkpoint or, slot by slot, of the next one, which was being
written: slots that point behind P are followed back (`TimerUnits.repair`). Where the files do not
belong together, or the checkpoint is lost, everything is made anew from the queue and the commit
log; where an Apache broker wrote them, they are adopted (`adoption`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from delivery import ownership
from message_store.errors import CorruptStore
from message_store.ranges import distinct
from timer_store import layout
from timer_store.checkpoint.snapshot import Snapshot
from timer_store.enqueue import adoption
from timer_store.log.slot_choice import candidates, slot_times
from timer_store.names import TIMER_QUEUE, TIMER_TOPIC

if TYPE_CHECKING:
    from timer_store.store import TimerStore

log = logging.getLogger(__name__)
Offsets = npt.NDArray[np.int64]
TAKE_UNITS = 65_536
"""Called with what is done, how much of it, and the whole."""
Progress = Callable[[str, int, int], None]


def recover(timers: TimerStore, notice: Callable[[str], None], progress: Progress) -> None:
    """Bring an opened timer store to where it may go on.

    Args:
        notice: told in a line what an operator should know.
    """
    snapshot = timers.files.load()
    foreign = snapshot is None and timers.files.check is not None
    adoption.load_log(timers, notice, foreign=foreign, own=snapshot is not None)
    why = "no checkpoint" if snapshot is None else doubt(timers, snapshot)
    if snapshot is not None and why is None:
        try:
            if restore(timers, snapshot, notice, progress):
                return
            why = "the timer log is damaged"
        except CorruptStore as error:
            why = f"the timer log is damaged: {error}"
    first, end = timers.fetch.bounds()
    reach = adoption.UNKNOWN
    if foreign:
        notice(f"{timers.store.root} was last used by an Apache broker: its timers are taken over")
        reach = adoption.find_reach(timers, notice)
    elif snapshot is not None or first < end:
        notice(f"the timer store is made anew from the commit log: {why}")
    rebuild(timers, progress, reach)
    if foreign:
        notice(f"{timers.books.total} timers pending")


def doubt(timers: TimerStore, snapshot: Snapshot) -> str | None:
    """Return why a checkpoint cannot be gone on from, None if it can."""
    units, store = timers.units, timers.store
    _, queue_end = store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
    if snapshot.precision_ms != timers.config.precision_ms:
        return (
            f"timerPrecisionMs was {snapshot.precision_ms}, it is {timers.config.precision_ms} now"
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
    timers: TimerStore, snapshot: Snapshot, notice: Callable[[str], None], progress: Progress
) -> bool:
    """Go back to a checkpoint and take in what came after it; False: it cannot be done.

    Raises:
        OSError: The disk refused the log, or what depends on it.
    """
    units, position = timers.units, timers.position
    faults = units.repair(snapshot.log_pos)
    position.read_ms = position.staged_ms = snapshot.read_ms
    position.queue_offset = snapshot.queue_offset
    position.rolled_ms = snapshot.staged_ms
    timers.books.restore(snapshot.by_topic, snapshot.by_file)
    timers.handovers.restore(snapshot.handover_offset, snapshot.handover_unit)
    if timers.store.durable_offset < timers.store.max_offset:
        timers.store.flush()  # a tombstone must not outlive the delivery that it is for
    bury_put_on(timers)
    start, middle = snapshot.scan_from, snapshot.log_offset
    before = origins(timers.store, start, middle)
    bury(timers, before, counted=False)
    settled = origins(timers.store, middle)
    bury(timers, settled, counted=True)
    returned = timers.handovers.read_on()
    timers.handovers.bury_returned(returned, distinct(before, settled))
    faults += units.check(position.read_ms)
    if faults or not adds_up(timers):
        notice(
            f"the timer wheel is linked anew from the timer log: "
            f"{faults[0] if faults else 'its slots do not hold what the checkpoint counts'}"
        )
        linked = units.relink(
            position.read_ms, progress=lambda done, whole: progress("units linked", done, whole)
        )
        if linked.damaged.size or linked.too_far.size or not adds_up(timers):
            return False
    take_in(timers, distinct(before, settled), progress)
    return True


def bury_put_on(timers: TimerStore) -> None:
    """Put tombstones on units that were put on into later slots, before slots are counted again.

    They get them a checkpoint later than their successors; their slots count them no more.
    """
    units, position = timers.units, timers.position
    for slots in units.wheel.live_parts(position.read_ms, position.rolled_ms + 1):
        for tick in slots["tick"].tolist():
            slot_ms = tick * units.precision_ms
            for rows in units.read_parts(slot_ms):
                ends_ms = slot_ms + units.precision_ms
                rolls = rows[rows["due_ms"] > ends_ms]
                due_ms, window_ms = rolls["due_ms"], timers.config.window_ms
                later_ms = slot_times(due_ms, position.read_ms, ends_ms, window_ms)
                put_on = units.find(rolls["phys_offset"], later_ms) >= 0
                units.bury(rolls["pos"][put_on])


def adds_up(timers: TimerStore) -> bool:
    """Return whether the slots hold as many timers as the books say."""
    parts = timers.units.wheel.live_parts(timers.position.read_ms)
    return sum(int(slots["num"].sum()) for slots in parts) == timers.books.total


def bury(timers: TimerStore, settled: Offsets, *, counted: bool) -> None:
    """Put tombstones on the units of settled timers, and take those off the books.

    Args:
        settled: log offsets of records, ascending; those that are no timers are passed over.
        counted: the books have them still.
    """
    for first in range(0, settled.size, TAKE_UNITS):
        rows = timers.records.read(settled[first : first + TAKE_UNITS])
        rows = rows[rows["kind"] == layout.TIMED_PLAIN]
        rows = rows[rows["queue_offset"] < timers.position.queue_offset]
        if counted:
            timers.books.note(rows["topic_index"], rows["phys_offset"], -1)
        pair = candidates(rows["due_ms"], timers.position.read_ms, timers.config.window_ms)
        timers.units.settle(positions_of(timers, rows, pair))
        timers.units.recount(np.concatenate(pair))  # some had one less in the file already


def positions_of(
    timers: TimerStore, rows: npt.NDArray[Any], pair: tuple[Offsets, Offsets]
) -> Offsets:
    """Return where the units of timers lie in the timer log; those in no slot are left out."""
    found = timers.units.find(rows["phys_offset"], pair[0])
    again = timers.units.find(rows["phys_offset"], pair[1])
    found = np.where(found < 0, again, found)
    return distinct(found[found >= 0])


def take_in(timers: TimerStore, settled: Offsets, progress: Progress | None = None) -> None:
    """Take in the queue to its end, without what is settled."""
    timers.intake.skip = settled
    now_ms = timers.clock.now_ms()
    total = timers.intake.behind
    while timers.intake.behind and timers.intake.catch_up(TAKE_UNITS, now_ms):
        if progress is not None:
            progress("timers taken in", total - timers.intake.behind, total)
    while timers.handovers.catch_up(TAKE_UNITS, now_ms):
        pass
    if not timers.intake.behind and not timers.handovers.behind:
        timers.intake.skip = np.empty(0, np.int64)


def origins(store: Any, start: int, end: int | None = None) -> Offsets:
    """Return the origins that the records between two log offsets name, ascending."""
    held = [np.empty(0, np.int64)]
    for rows in store.scan(start, end):
        prepared = rows["prepared_offset"]
        held.append(-(prepared[prepared < 0] + 1))
    return distinct(*held)


def rebuild(
    timers: TimerStore, progress: Progress, reach: adoption.Reach = adoption.UNKNOWN
) -> None:
    """Make timer log, wheel and books anew from the queue, without what the log has settled.

    Args:
        reach: how far another broker was that used this store last.
    """
    timers.handovers.restore(0, 0)
    timers.handovers.read_on()
    settled = _settled(timers, progress, reach)
    if reach is adoption.UNKNOWN:  # else the next start has to know what that other broker wrote
        timers.files.forget()  # a crash before the next checkpoint must not find the last one
    timers.units.clear()
    timers.books.restore({}, {})
    first, _ = timers.fetch.bounds()
    timers.position.queue_offset = first
    now_ms = timers.clock.now_ms()
    start_ms = now_ms - now_ms % timers.config.precision_ms
    timers.position.read_ms = timers.position.staged_ms = start_ms
    timers.position.rolled_ms = -1
    take_in(timers, settled, progress)


def _settled(timers: TimerStore, progress: Progress, reach: adoption.Reach) -> Offsets:
    """Return what of the queue and of handed-over messages the log has settled, ascending.

    Where there is neither, the log, which may be long, is not read for it.
    """
    first, end = timers.fetch.bounds()
    if first >= end and not timers.handovers.owned:
        return np.empty(0, np.int64)
    return distinct(
        origins(timers.store, timers.store.min_offset),
        adoption.settled_by_others(timers, reach, progress),
    )
