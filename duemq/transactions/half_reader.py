"""Reader of the half topic and the op topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from duemq.transactions.half_messages import OP_TAG, parse_op
from duemq_common.errors import RecordUnreadable
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
READ_UNITS_MAX = 1_024


class HalfReader:
    """Reader of one store's half messages and op records."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def half(self, offset: int) -> Record:
        """Return the half message at a queue offset.

        Raises:
            RecordUnreadable: It is damaged, or retention has removed it.
        """
        units = self._store.units(HALF_TOPIC, 0, offset, 1)
        if not units.size:
            raise RecordUnreadable(-1, f"half message {offset} does not exist")
        return self._store.read_record(int(units[0]["phys_offset"]))

    def half_or_none(self, offset: int) -> Record | None:
        """Return the half message at a queue offset, None if it cannot be read."""
        try:
            return self.half(offset)
        except RecordUnreadable as fault:
            log.warning("a half message cannot be read: %s", fault)
            return None

    def halves(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield queue offset and log offset of the half messages of a range."""
        while first < end:
            units = self._store.units(HALF_TOPIC, 0, first, min(READ_UNITS_MAX, end - first))
            yield from enumerate(units["phys_offset"].tolist(), first)
            first += max(int(units.size), 1)

    def ops(self, offset: int) -> Iterator[tuple[int, list[int]]]:
        """Yield queue offset and half offsets of the op records from a queue offset on."""
        while (units := self._store.units(OP_HALF_TOPIC, 0, offset, READ_UNITS_MAX)).size:
            for index, phys_offset in enumerate(units["phys_offset"].tolist(), offset):
                yield index, self._op_body(phys_offset)
            offset += int(units.size)

    def _op_body(self, phys_offset: int) -> list[int]:
        try:
            record = self._store.read_record(phys_offset)
        except RecordUnreadable as fault:
            log.warning("an op record cannot be read: %s", fault)
            return []
        return parse_op(record.body) if record.properties.get("TAGS") == OP_TAG else []
