"""Deletions of topics at the master, which its table journal has in the log.

    DUEMQ_TABLES, queue 0   ... T: deleted ... T: created ...
                                   |
                                   +--> queues of T whose first record is before: removed

Without the records of the journal, as of an Apache master, a replica detects a deletion only when a
record of the new topic has a queue offset that the queue already has. Queues of the deleted topic
that get no message remain until then, and a new master would return their messages again.

A replica may end before it has removed the queues, killed or with a full disk: a start reads the
newest records of the journal again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from duemq.registry.journal_log import StoreLog, TableKind
from duemq.registry.table_journal import decode
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import Clock
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import TABLES_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
KIND = TableKind.TOPIC
READ_AGAIN_MAX: Final = 256  # records of the journal that a start reads


class TopicDeletions:
    """Reader of the table journal of a replica that removes the queues of deleted topics."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store, self._log = store, StoreLog(store, clock)
        _, self._read_again_before = self._log.bounds(KIND.value)
        self._next = self._read_again_before - READ_AGAIN_MAX
        self.on_replicated([])

    def on_replicated(self, slots: list[int]) -> None:
        """Remove the queues of topics that new records of the journal delete."""
        first, end = self._log.bounds(KIND.value)
        self._next = max(self._next, first)
        while self._next < end:
            names, log_offset = self._deleted(self._next)
            is_new = self._next >= self._read_again_before
            try:
                for name in names:
                    if is_new or self._has_queue_before(name, log_offset):
                        self._store.raw.delete_topic(name, log_offset + 1)
            except OSError as error:
                log.error("queues of deleted topics cannot be removed, trying again: %s", error)
                return
            self._next += 1

    def _has_queue_before(self, name: str, log_offset: int) -> bool:
        """Return whether a queue of a topic begins before the log offset of its deletion."""
        store = self._store
        index = store.topics.find(name)
        queues = int(store.topics.arrays.topics[index]["slots_len"]) if index >= 0 else 0
        firsts = (
            store.log_offset_at(name, queue_id, store.queue_bounds(name, queue_id)[0])
            for queue_id in range(queues)
        )
        return any(0 <= first < log_offset for first in firsts)

    def _deleted(self, position: int) -> tuple[list[str], int]:
        """Return the topics that a record of the journal deletes, and its log offset."""
        units = self._store.units(TABLES_TOPIC, KIND.value, position, 1)
        try:
            record = decode(self._log.body(KIND.value, position), KIND, TopicConfig.from_json)
        except (RecordUnreadable, ValueError) as error:
            log.error("record %d of the topics table is skipped: %s", position, error)
            return [], 0
        names = [name for name, row in record.rows.items() if row is None]
        return names, int(units[0]["phys_offset"])
