"""Marker of the queue offset at which an Apache broker continues after a stop of DueMQ.

Apache's broker continues after the record of the last unit in the timer log. The unit of a rolled
or copied timer may follow units of newer records: if it is the last one, Apache's broker enqueues
all timers after its record again and delivers them twice. Therefore a stop appends a unit that
points at the last enqueued record. It is a marker without a target, which cancels no timer, in the
slot that is read next. It is settled at once as a duplicate, so the timer of that record stays
pending.

Source: TimerMessageStore.recover, reviseQueueOffset; TimerDequeueGetMessageService
"""

from __future__ import annotations

import logging

import numpy as np

from duemq_common.errors import CorruptStore
from timer_store import layout
from timer_store.layout import UNIT_BYTES
from timer_store.state import TimerState

log = logging.getLogger(__name__)


def mark_queue_end(state: TimerState) -> None:
    """Append a unit that points at the last enqueued record of the queue."""
    position = state.position
    rows, _ = state.fetch.fetch_queue(max(position.queue_offset - 1, 0), 1)
    if not position.queue_offset or not rows.size:
        return
    row = rows[:1].copy()
    if row["queue_offset"][0] != position.queue_offset - 1:
        return
    if _last_record(state) in (None, int(row["phys_offset"][0])):
        return
    row["kind"] = layout.TIMED_MARKER
    row["slot_ms"], row["due_ms"] = position.staged_ms, position.staged_ms + 1  # it does not roll
    now_ms = state.clock.now_ms()
    try:
        if state.units.add(row, write_ms=now_ms, read_ms=position.read_ms):
            state.units.settle(np.array([state.units.log.end - UNIT_BYTES]), copied=True)
    except OSError as error:
        log.warning("an Apache broker would enqueue timers again: %s", error)


def _last_record(state: TimerState) -> int | None:
    """Return the log offset of the last unit's record, None if there is no unit."""
    units = state.units.log
    for file in reversed(units.files):
        pos = units.end_in(file) - UNIT_BYTES
        if pos >= file.base:
            try:
                return int(units.unit(pos)["phys_offset"])
            except CorruptStore:
                return -1
    return None
