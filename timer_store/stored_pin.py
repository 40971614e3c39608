"""Retention pin of timers without the timer service, read from the store's files.

It is used with `timerWheelEnable=false`, or while the plugin is disabled or not
installed. No timer is delivered or cancelled then, so retention keeps the records of all pending
timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delivery import ownership
from delivery.ownership import Transfer
from message_store.retention.pins import FirstPending, first_pending
from timer_store.checkpoint.snapshot import SnapshotFiles
from timer_store.names import SCHEDULE_TOPIC, TIMER_QUEUE, TIMER_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore


def stored_pin(store: MessageStore) -> FirstPending:
    """Return the log offset of the first record that the last checkpoint or a later timer needs.

    Without a valid checkpoint (an Apache broker ran last, the checkpoint is lost, or the log was
    truncated since), every timer in the queue may be pending. None if no timer is pending.
    """
    snapshot = SnapshotFiles(store.config_path("")).load()
    if snapshot is None or snapshot.log_offset > store.unchanged_end(snapshot.generation):
        return first_pending([_first_timer(store, 0), *_pending_transfers(store, 0)])
    return first_pending(
        [
            min(snapshot.by_file, default=None),
            _first_timer(store, snapshot.queue_offset),
            *_pending_transfers(store, snapshot.handover_offset),
        ]
    )


def _first_timer(store: MessageStore, offset: int) -> int | None:
    """Return the log offset of the first record of the timer queue at or after a queue offset."""
    first, _ = store.queue_bounds(TIMER_TOPIC, TIMER_QUEUE)
    return _phys_offset(store, TIMER_TOPIC, TIMER_QUEUE, max(offset, first))


def _pending_transfers(store: MessageStore, offset: int) -> Iterator[int | None]:
    """Yield the first log offset of each transfer whose record is at or after a queue offset."""
    for entry in ownership.read(store, offset):
        record = entry.record
        if isinstance(record, Transfer):
            first, _ = store.queue_bounds(SCHEDULE_TOPIC, record.level - 1)
            yield _phys_offset(store, SCHEDULE_TOPIC, record.level - 1, max(record.first, first))


def _phys_offset(store: MessageStore, topic: str, queue: int, offset: int) -> int | None:
    units = store.units(topic, queue, offset, 1)
    return int(units[0]["phys_offset"]) if units.size else None
