"""Retention pin of timers without the timer service, read from the store's files.

It is used with `timerWheelEnable=false`, or while the plugin is disabled or not
installed. No timer is delivered or cancelled then, so retention keeps the records of all pending
timers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from delayed_delivery import ownership
from delayed_delivery.ownership import Transfer
from delayed_delivery.records import first_log_offset
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.retention.pins import FirstPending, first_pending
from timer_store.checkpoint.snapshot import SnapshotFiles
from timer_store.names import TIMER_QUEUE

if TYPE_CHECKING:
    from message_store.store import MessageStore


def stored_pin(store: MessageStore) -> FirstPending:
    """Return the log offset of the first record that the last checkpoint or a later timer needs.

    Without a valid checkpoint (an Apache broker ran last, the checkpoint is lost, or the log was
    truncated since), every timer in the queue may be pending. None if no timer is pending.
    """
    snapshot = SnapshotFiles(store.config_path("")).load()
    if snapshot is None or snapshot.log_offset > store.unchanged_end(snapshot.generation):
        return first_pending(
            [first_log_offset(store, TIMER_TOPIC, TIMER_QUEUE, 0), *_pending_transfers(store, 0)]
        )
    return first_pending(
        [
            min(snapshot.by_file, default=None),
            first_log_offset(store, TIMER_TOPIC, TIMER_QUEUE, snapshot.queue_offset),
            *_pending_transfers(store, snapshot.handover_offset),
        ]
    )


def _pending_transfers(store: MessageStore, offset: int) -> Iterator[int | None]:
    """Yield the first log offset of each transfer whose record is at or after a queue offset."""
    for entry in ownership.read(store, offset):
        record = entry.record
        if isinstance(record, Transfer):
            yield first_log_offset(store, SCHEDULE_TOPIC, record.level - 1, record.first)
