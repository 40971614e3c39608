"""The part of the commit log that holds the table journal: one internal topic."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from delivery.own_records import put_own
from delivery.plugin import SystemTopic
from delivery.quarantine import NO_HOST
from duemq.net.codes import ResponseCode
from duemq.registry.internal_topics import TABLES_TOPIC
from duemq.registry.table_journal import TableKind
from message_store.clock import Clock
from message_store.errors import RequestError
from message_store.replication.acknowledgement import Missing

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
PERM_READ: Final = 4
JOURNAL_TOPIC: Final = SystemTopic(TABLES_TOPIC, len(TableKind), PERM_READ)


class StoreLog:
    """The journal's queues in a store."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    @property
    def is_copied(self) -> bool:
        """Whether replicas copy the log, or are configured to."""
        return self._store.replicated.is_copied()

    @property
    def is_read_only(self) -> bool:
        """Whether another broker's changes come with the log, as on a replica."""
        return bool(self._store.read_only)

    @property
    def refusal(self) -> str:
        """Why nothing can be appended; empty if it can."""
        return self._store.refusal

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset of a queue and its end."""
        return self._store.queue_bounds(TABLES_TOPIC, queue_id)

    def body(self, queue_id: int, offset: int) -> bytes:
        """Return the body of a record.

        Raises:
            RecordUnreadable: It is gone or damaged.
            ValueError: It is not a broker's.
        """
        units = self._store.units(TABLES_TOPIC, queue_id, offset, 1)
        if not units.size:
            raise ValueError("the queue has no such unit")
        record = self._store.read_record(int(units[0]["phys_offset"]))
        place = record.topic, record.queue_id, record.queue_offset
        if place != (TABLES_TOPIC, queue_id, offset) or record.born_host != NO_HOST:
            raise ValueError("it is another record, or a client's")
        return record.body

    def append(self, queue_id: int, body: bytes) -> None:
        """Append a record.

        Raises:
            RequestError: It is refused; nothing has changed.
        """
        now_ms = self._clock.now_ms()
        batch = put_own(self._store, TABLES_TOPIC, queue_id, body, now_ms=now_ms)
        if batch.rows[0]["status"]:
            why = batch.remarks.get(0, "the store is not writable")
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, why)

    async def confirm(self) -> None:
        """Wait until disk and replicas have the log as far as messages need it.

        A master that has no replica in sync changes its tables all the same.

        Raises:
            RequestError: They do not have it in time.
        """
        missing = await self._store.wait_confirmed(self._store.max_offset)
        if missing is Missing.NO_REPLICA:
            log.warning("topics or groups were changed, but %s", missing.text)
        elif missing:
            raise RequestError(missing.code, f"the change is in the log, but {missing.text}")
