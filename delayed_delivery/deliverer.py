"""Delivery of due messages one at a time.

    due units --levels: read_due, timers: gather--> batch ----put--> topics
        |                                                       |
        +-- skipped: one at a time, `SingleDeliverer` ----------+--> quarantine
                                                                +--> refused: ends the `Outcome`

Levels and timers select the due units and read their records with their own kernels; units that
these kernels skip are delivered by `SingleDeliverer`. A message is delivered when its record is
appended: the record names its origin, so no recovery delivers the message again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from delayed_delivery.outcome import NOT_PUT, Outcome
from delayed_delivery.quarantine import Reason, Undeliverable, put_quarantined
from delayed_delivery.redirected import NoTarget
from duemq_common.codes import ResponseCode
from duemq_common.errors import RecordUnreadable
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.store import MessageStore

SINGLE_STAGING_BYTES: Final = 1 << 16
Unit = TypeVar("Unit")
UnitIn = TypeVar("UnitIn", contravariant=True)
Convert = Callable[[PutBatch, Record, Unit], NoTarget | None]
"""Adds the message of a unit's record to a batch, or returns why it has no target."""


class UnitReader(Protocol[UnitIn]):
    """Reader of the records of units: of a level's queue, or of the near stage."""

    def is_lost(self, unit: UnitIn) -> bool:
        """Return whether retention has removed the record."""

    def read(self, unit: UnitIn) -> Record:
        """Return the record.

        Raises:
            RecordUnreadable: The record is damaged, or does not match the unit.
        """

    def undeliverable(self, reason: Reason, detail: str, unit: UnitIn) -> Undeliverable:
        """Return the quarantine item of a message that cannot be delivered."""

    def topic_of(self, unit: UnitIn, item: Undeliverable | None = None) -> int:
        """Return the real topic of a message that is not delivered, NO_TOPIC if unknown."""


def build(
    reader: UnitReader[Unit], unit: Unit, convert: Convert[Unit], batch: PutBatch
) -> Undeliverable | None:
    """Add the message of a unit to `batch`, or return its quarantine item."""
    try:
        record = reader.read(unit)
    except RecordUnreadable as error:
        return reader.undeliverable(Reason.UNREADABLE, str(error), unit)
    refused = convert(batch, record, unit)
    if refused is None:
        return None
    return reader.undeliverable(refused.reason, refused.detail, unit)


class SingleDeliverer(Generic[Unit]):
    """Deliverer of messages one at a time. Belongs to the event loop's thread."""

    def __init__(self, store: MessageStore, reader: UnitReader[Unit]) -> None:
        self._store, self._reader = store, reader
        self._batch = PutBatch(1, SINGLE_STAGING_BYTES)

    def deliver(self, unit: Unit, convert: Convert[Unit], outcome: Outcome, now_ms: int) -> None:
        """Append the message of the next unit, or its quarantine record."""
        reader, batch = self._reader, self._batch
        if reader.is_lost(unit):
            outcome.record(NOT_PUT, reader.topic_of(unit))
            outcome.lost += 1
            return
        batch.clear()
        item = build(reader, unit, convert, batch)
        if item is None:
            self._store.put(batch)
            row = batch.rows[0]
            if not row["status"]:
                outcome.record(int(row["store_ms"]), int(row["topic_index"]))
                return
            if row["status"] != ResponseCode.MESSAGE_ILLEGAL:
                outcome.refuse(batch, 0)
                return
            reason = batch.remarks.get(0, "the store does not accept the message")
            item = reader.undeliverable(Reason.ILLEGAL, reason, unit)
        outcome.refusal = put_quarantined(self._store, batch, item, now_ms=now_ms)
        if outcome.refusal:
            outcome.illegal = True
            return
        outcome.record(NOT_PUT, reader.topic_of(unit, item))
        outcome.quarantined.append(item)
