"""Level journal: level tables of a master in the log, for replicas with another configuration.

    DUEMQ_LEVELS, queue 0    [0: 1s 5s 10s]  ...  [0: 1s 5s 10s, 70_000: 2s 5s 10s]  ...
                                                  ^ the table has changed at log offset 70_000

A record contains all level tables that apply to the retained log before it, each with the log
offset at which it begins, and the queue offset of each level before which all messages are
delivered. A master with replicas appends a record when its table changes, before the first message
of the new table, and again when retention has removed the last record. It also appends one if an
Apache broker was the master before it: deliveries by Apache do not name their source records, and a
member that was down meanwhile reads the progress of the levels from this record.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from delayed_delivery.own_records import put_own
from delayed_delivery.ownership import JournalEntry, Return
from delayed_delivery.quarantine import NO_HOST
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import LEVELS_TOPIC
from schedule_service.levels import LevelHistory, history_of, rows_of
from schedule_service.recovery import Saved

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
QUEUE: Final = 0
KIND: Final = "levels"
SKIPPED_MAX: Final = 1_000
SHOWN_CHARACTERS: Final = 200


class LevelRecord(NamedTuple):
    """Record of the level journal.

    Attributes:
        phys_offset: Log offset of the record.
        delivered: Level to the first queue offset that may be undelivered.
    """

    phys_offset: int
    history: LevelHistory
    delivered: Mapping[int, int]


def newest(store: MessageStore) -> LevelRecord | None:
    """Return the last record, None if the log has none.

    Damaged records and records of clients are skipped.
    """
    first, end = store.queue_bounds(LEVELS_TOPIC, QUEUE)
    for index in range(end - 1, max(first, end - SKIPPED_MAX) - 1, -1):
        try:
            return _read(store, index)
        except (RecordUnreadable, ValueError, TypeError, LookupError, AttributeError) as error:
            reason = str(error)[:SHOWN_CHARACTERS]
            log.error("%s: queue offset %d is skipped: %s", LEVELS_TOPIC, index, reason)
    return None


def _read(store: MessageStore, position: int) -> LevelRecord:
    """Return the record of a queue offset.

    Raises:
        RecordUnreadable: The record was removed or is damaged.
        ValueError, TypeError, LookupError, AttributeError: A broker did not write the record.
    """
    units = store.units(LEVELS_TOPIC, QUEUE, position, 1)
    if not units.size:
        raise ValueError("the queue has no such unit")
    record = store.read_record(int(units[0]["phys_offset"]))
    unit = record.topic, record.queue_id, record.queue_offset
    if unit != (LEVELS_TOPIC, QUEUE, position) or record.born_host != NO_HOST:
        raise ValueError("it is another record, or a client's")
    value = json.loads(record.body)
    if value["kind"] != KIND:
        raise ValueError("it is not a table of levels")
    delivered = {int(level): int(offset) for level, offset in value["delivered"].items()}
    return LevelRecord(record.phys_offset, history_of(value["history"]), delivered)


def append(
    store: MessageStore, history: LevelHistory, delivered: Mapping[int, int], now_ms: int
) -> str:
    """Append a record; return the reason if the store refuses it, otherwise an empty text."""
    value = {"kind": KIND, "history": rows_of(history), "delivered": dict(delivered)}
    body = json.dumps(value, separators=(",", ":")).encode()
    batch = put_own(store, LEVELS_TOPIC, QUEUE, body, now_ms=now_ms)
    if not batch.rows[0]["status"]:
        return ""
    return batch.refusal(0)


def advanced(saved: Saved, newest: LevelRecord | None, journal: Iterable[JournalEntry]) -> Saved:
    """Return `saved` advanced to the offsets in a record of the level journal.

    It is unchanged if units were returned from the timers since: they may be pending again.
    """
    if newest is None or any(
        isinstance(entry.record, Return) and entry.phys_offset > newest.phys_offset
        for entry in journal
    ):
        return saved
    levels = {*saved.offsets, *newest.delivered}
    offsets = {n: max(saved.offsets.get(n, 0), newest.delivered.get(n, 0)) for n in levels}
    return replace(saved, offsets=offsets)
