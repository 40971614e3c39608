"""Messages in quarantine: the reason, and the message itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

from delayed_delivery.names import OCCURRENCE_NAMES
from duemq.client.admin.resends import UndeliveredMessage
from duemq_common.errors import RecordUnreadable
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(UndeliveredMessage):
    """Message of the quarantine topic; `original` is the pending or popped record."""

    mark: ClassVar[str] = RESENT
    removed: ClassVar[frozenset[str]] = REMOVED

    reason: str
    detail: str

    @property
    def repaired(self) -> str:
        """Log offset of the original record, which `duemq reconcile repair` names."""
        return "" if self.original is None else str(self.original.phys_offset)

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
        broker=broker,
        record=record,
        topic=properties.get("DUEMQ_TOPIC", ""),
        group=properties.get("DUEMQ_GROUP", ""),
        original=original,
        reason=properties.get("DUEMQ_REASON", ""),
        detail=properties.get("DUEMQ_DETAIL", ""),
    )
