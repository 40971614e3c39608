"""Copies of popped messages that were appended before the start of the broker.

Each copy contains the log offset of its source. Log offsets are compared and not times, because
after a failover another clock is in use.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from duemq_common.errors import RecordUnreadable
from duemq_common.topics import QUARANTINE_TOPIC

if TYPE_CHECKING:
    from message_store.store import MessageStore

UNITS_MAX: Final = 512  # units of a queue that are read together


class EarlierCopies:
    """Copies in retry topics and in quarantine, read from their queues when they are needed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._topics: dict[str, tuple[int, dict[tuple[int, str], int]]] = {}
        self._log_end = 0  # at the start

    def begin(self) -> None:
        """Set the end of the log at the start."""
        self._log_end = self._store.max_offset

    @property
    def is_used(self) -> bool:
        return bool(self._topics)

    def clear(self) -> None:
        """Forget the copies."""
        self._topics.clear()

    def of(self, target: str, since: int) -> dict[tuple[int, str], int]:
        """Return the copies that were put into a retry topic or quarantine before the start.

        Args:
            since: Log offset; copies before it belong to other checkpoints.
        Returns:
            Log offset of the last copy, by the log offset of its source and the group of a
            quarantine record.
        """
        read_from, copies = self._topics.get(target, (self._log_end, {}))
        if since < read_from:
            offset = self._store.queue_end_before(target, 0, since)
            end = self._store.queue_end_before(target, 0, read_from)
            while offset < end:
                units = self._store.units(target, 0, offset, min(UNITS_MAX, end - offset))
                if not units.size:
                    break
                for phys_offset in units["phys_offset"].tolist():
                    with suppress(RecordUnreadable):
                        record = self._store.read_record(phys_offset)
                        is_copy = target != QUARANTINE_TOPIC
                        group = "" if is_copy else record.properties.get("DUEMQ_GROUP", "")
                        source = record.prepared_offset, group
                        copies[source] = max(copies.get(source, 0), phys_offset)
                offset += int(units.size)
            self._topics[target] = since, copies
        return copies
