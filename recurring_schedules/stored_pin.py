"""Retention pin of schedules that do not run, read from the store's files.

It is used with `timerWheelEnable=false`, or while the plugin is disabled or not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duemq_common.topics import SCHEDULES_TOPIC
from message_store.retention.pins import FirstPending, first_pending
from recurring_schedules.checkpoint import read_checkpoint
from recurring_schedules.names import JOURNAL_QUEUE

if TYPE_CHECKING:
    from message_store.store import MessageStore


def stored_pin(store: MessageStore) -> FirstPending:
    """Return the log offset of the first definition or later record that a start needs.

    With a valid checkpoint, it is the oldest definition in it, or the log after it; without one,
    the first record of the journal. None if there is no schedule.
    """
    first, end = store.queue_bounds(SCHEDULES_TOPIC, JOURNAL_QUEUE)
    if end <= first:
        return None
    table = read_checkpoint(store)
    if table is None:
        return _log_offset(store, first)
    is_newer = _log_offset(store, end - 1) >= table.log_offset
    return first_pending([table.oldest_definition(), table.log_offset if is_newer else None])


def _log_offset(store: MessageStore, queue_offset: int) -> int:
    """Return the log offset of a record of the journal, 0 if its unit is missing."""
    units = store.units(SCHEDULES_TOPIC, JOURNAL_QUEUE, queue_offset, 1)
    return int(units[0]["phys_offset"]) if units.size else 0
