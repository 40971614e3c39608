"""Messages in quarantine: the reason, and the message itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from delayed_delivery.names import OCCURRENCE_NAMES
from duemq_common.errors import RecordUnreadable
from message_store.log.offset_id import encode_offset_id
from message_store.log.properties import own_id
from message_store.log.record import Record, decode_record
from timer_store.names import STALE_NAMES

RESENT: Final = "DUEMQ_QUARANTINED"
"""Property of a message that was sent again: offset message id of its record in quarantine."""
REMOVED: Final = frozenset(
    {
        "REAL_TOPIC",
        "REAL_QID",
        "DELAY",
        "DELAy",
        "1ST_POP_TIME",
        "ORIGIN_GROUP",
        "POP_CK",
        "TRAN_MSG",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        *STALE_NAMES,
        *OCCURRENCE_NAMES,
    }
)
"""Properties that would delay or redirect the message again."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Message of the quarantine topic; see `UndeliveredMessage`.

    Attributes:
        topic: Topic that the message could not reach; empty if unknown.
        original: The pending or popped record; None if it cannot be decoded.
    """

    mark: ClassVar[str] = RESENT
    removed: ClassVar[frozenset[str]] = REMOVED

    broker: str
    record: Record
    topic: str
    reason: str
    detail: str
    original: Record | None

    @property
    def group(self) -> str:
        """Group that popped the message; empty if none did."""
        return self.record.properties.get("DUEMQ_GROUP", "")

    @property
    def name(self) -> str:
        """Broker and offset in the quarantine topic, as `BROKER/17`."""
        return f"{self.broker}/{self.record.queue_offset}"

    @property
    def repaired(self) -> str:
        """Log offset of the original record, which `duemq reconcile repair` names."""
        return "" if self.original is None else str(self.original.phys_offset)

    @property
    def offset_message_id(self) -> str:
        """Offset message id of the record of the quarantine topic."""
        return encode_offset_id(*self.record.store_host, self.record.phys_offset)

    @property
    def unique_id(self) -> str:
        """Unique id of the message, else the offset message id."""
        own = own_id(self.original.property_text) if self.original is not None else ""
        return own or self.record.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def names(self) -> set[str]:
        """Texts that select the message: `17`, `BROKER/17`, its unique id."""
        return {str(self.record.queue_offset), self.name, self.unique_id}


def quarantined(broker: str, record: Record) -> Quarantined:
    """Return a record of the quarantine topic with the message in it."""
    properties, original = record.properties, None
    with suppress(RecordUnreadable):
        original = decode_record(memoryview(record.body), 0, check_crc=False)
    return Quarantined(
        broker,
        record,
        properties.get("DUEMQ_TOPIC", ""),
        properties.get("DUEMQ_REASON", ""),
        properties.get("DUEMQ_DETAIL", ""),
        original,
    )
