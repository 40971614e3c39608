"""Internal topic of the table journal in the commit log."""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from delayed_delivery.own_records import put_own
from delayed_delivery.plugin import SystemTopic
from delayed_delivery.quarantine import NO_HOST
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.topics import PERM_READ, TABLES_TOPIC
from message_store.replication.acknowledgement import Missing

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)


class TableKind(Enum):
    """Table that a record changes; the value is the queue id of its records."""

    TOPIC = 0
    GROUP = 1


JOURNAL_TOPIC: Final = SystemTopic(TABLES_TOPIC, len(TableKind), PERM_READ)


class StoreLog:
    """Journal queues in a store."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    @property
    def is_copied(self) -> bool:
        """Whether replicas copy the log or are configured."""
        return self._store.replicated.is_copied()

    @property
    def is_read_only(self) -> bool:
        """Whether the log is written by another broker, as on a replica."""
        return bool(self._store.read_only)

    @property
    def refusal(self) -> str:
        """Reason why appends are refused; empty: they are accepted."""
        return self._store.refusal

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """Return the first queue offset and the end offset of a queue."""
        return self._store.queue_bounds(TABLES_TOPIC, queue_id)

    def body(self, queue_id: int, offset: int) -> bytes:
        """Return the body of a record.

        Raises:
            RecordUnreadable: The record is missing or damaged.
            ValueError: The record was not written by a broker.
        """
        units = self._store.units(TABLES_TOPIC, queue_id, offset, 1)
        if not units.size:
            raise ValueError("the queue has no such unit")
        record = self._store.read_record(int(units[0]["phys_offset"]))
        position = record.topic, record.queue_id, record.queue_offset
        if position != (TABLES_TOPIC, queue_id, offset) or record.born_host != NO_HOST:
            raise ValueError("it is another record, or was written by a client")
        return record.body

    def append(self, queue_id: int, body: bytes) -> None:
        """Append a record.

        Raises:
            RequestError: The append is refused; nothing has changed.
        """
        now_ms = self._clock.now_ms()
        batch = put_own(self._store, TABLES_TOPIC, queue_id, body, now_ms=now_ms)
        if batch.rows[0]["status"]:
            reason = batch.refusal(0)
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)

    async def confirm(self) -> None:
        """Wait until the log is confirmed by disk and replicas, as for messages.

        A missing in-sync replica does not prevent changes of tables.

        Raises:
            RequestError: The confirmation timed out.
        """
        missing = await self._store.wait_confirmed(self._store.max_offset)
        if missing is Missing.NO_REPLICA:
            log.warning("topics or groups were changed, but %s", missing.text)
        elif missing:
            raise RequestError(missing.code, f"the change is in the log, but {missing.text}")
