"""Level tables in the log: what a master promised, for replicas with another configuration.

    DUEMQ_LEVELS, queue 0    [0: 1s 5s 10s]  ...  [0: 1s 5s 10s, 70_000: 2s 5s 10s]  ...
                                                  ^ the table has changed at log offset 70_000

A record has the tables of all retained records before it, each with the log offset at which it
begins. A master that has replicas appends one when its table changes, before the first message of
the new one, and again when retention has removed the last one.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from delivery.own_records import put_own
from delivery.quarantine import NO_HOST
from message_store.errors import RecordUnreadable
from schedule_service.levels import LevelHistory, history_of, rows_of
from schedule_service.names import LEVELS_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
QUEUE: Final = 0
KIND: Final = "levels"
SKIPPED_MAX: Final = 1_000
SHOWN_CHARACTERS: Final = 200


def newest(store: MessageStore) -> tuple[int, LevelHistory] | None:
    """Return the log offset and the tables of the last record; None: the log has none.

    Records that are damaged or not a broker's are skipped.
    """
    first, end = store.queue_bounds(LEVELS_TOPIC, QUEUE)
    for at in range(end - 1, max(first, end - SKIPPED_MAX) - 1, -1):
        try:
            return _read(store, at)
        except (RecordUnreadable, ValueError, TypeError, LookupError) as error:
            why = str(error)[:SHOWN_CHARACTERS]
            log.error("%s: queue offset %d is skipped: %s", LEVELS_TOPIC, at, why)
    return None


def _read(store: MessageStore, at: int) -> tuple[int, LevelHistory]:
    """Return the record of a queue offset.

    Raises:
        RecordUnreadable: It is gone or damaged.
        ValueError, TypeError, LookupError: It is not a broker's.
    """
    units = store.units(LEVELS_TOPIC, QUEUE, at, 1)
    if not units.size:
        raise ValueError("the queue has no such unit")
    record = store.read_record(int(units[0]["phys_offset"]))
    place = record.topic, record.queue_id, record.queue_offset
    if place != (LEVELS_TOPIC, QUEUE, at) or record.born_host != NO_HOST:
        raise ValueError("it is another record, or a client's")
    value = json.loads(record.body)
    if value["kind"] != KIND:
        raise ValueError("it is not a table of levels")
    return record.phys_offset, history_of(value["history"])


def append(store: MessageStore, history: LevelHistory, now_ms: int) -> str:
    """Append a record; return why the store refused it, empty if it did not."""
    value = {"kind": KIND, "history": rows_of(history)}
    body = json.dumps(value, separators=(",", ":")).encode()
    batch = put_own(store, LEVELS_TOPIC, QUEUE, body, now_ms=now_ms)
    if not batch.rows[0]["status"]:
        return ""
    return str(batch.remarks.get(0, "the store is not writable"))
