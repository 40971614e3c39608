"""Delivery of due messages one at a time, and the outcome of a delivery.

    due units --levels: read_due, timers: gather--> batch ----put--> topics
        |                                                       |
        +-- skipped: one at a time, `SingleDeliverer` ----------+--> quarantine
                                                                +--> refused: ends the `Outcome`

Levels and timers select the due units and read their records with their own kernels; units that
these kernels skip are delivered by `SingleDeliverer`. A message is delivered when its record is
appended: the record names its origin, so no recovery delivers the message again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.outcome import settle
from delayed_delivery.quarantine import (
    MESSAGE_ILLEGAL,
    NOT_WRITABLE,
    Reason,
    Undeliverable,
    put_quarantined,
)
from delayed_delivery.redirected import NoTarget
from duemq_common.errors import RecordUnreadable
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from message_store.store import MessageStore

NOT_PUT: Final = -1
NO_TOPIC: Final = -1
SINGLE_STAGING_BYTES: Final = 1 << 16
NO_ROWS: Final[Mapping[int, int]] = MappingProxyType({})
Numbers = npt.NDArray[np.int64]
Unit = TypeVar("Unit")
UnitIn = TypeVar("UnitIn", contravariant=True)
Convert = Callable[[PutBatch, Record, Unit], NoTarget | None]
"""Adds the message of a unit's record to a batch, or returns why it has no target."""


class Outcome:
    """Result of delivering units, in order.

    Args:
        units: Number of units.

    Attributes:
        done: Number of leading units that are settled: delivered, in quarantine, lost, or skipped.
        delivered: Number of these units that were delivered.
        quarantined: Messages moved to quarantine.
        lost: Number of messages whose record retention had removed.
        refusal: Reason why the store refused the next unit, or empty.
        illegal: The next unit cannot be delivered, and the store refused its quarantine record.
    """

    def __init__(self, units: int) -> None:
        self.done = self.delivered = self.lost = 0
        self.quarantined: list[Undeliverable] = []
        self.refusal, self.illegal = "", False
        self._store_ms = np.full(units, NOT_PUT, np.int64)
        self._topic_index = np.full(units, NO_TOPIC, np.int32)

    @property
    def store_ms(self) -> Numbers:
        """Store times of the settled units, (done,); NOT_PUT for units that were not delivered."""
        return self._store_ms[: self.done]

    @property
    def topic_index(self) -> npt.NDArray[np.int32]:
        """Real topics of the settled units, (done,); NO_TOPIC where it is unknown."""
        return self._topic_index[: self.done]

    def record(self, store_ms: int, topic_index: int, count: int = 1) -> None:
        """Settle the next `count` units, all with the same store time and topic."""
        first, self.done = self.done, self.done + count
        self._store_ms[first : self.done] = store_ms
        self._topic_index[first : self.done] = topic_index
        self.delivered += 0 if store_ms == NOT_PUT else count

    def record_batch(self, batch: PutBatch, undelivered: Mapping[int, int] = NO_ROWS) -> int:
        """Settle the leading rows of a batch after the put, up to the first refused row.

        Args:
            undelivered: Real topic of each row that is not a delivery (quarantine, lost), by index.

        Returns:
            Number of settled rows.
        """
        first = self.done
        count, illegal = settle(
            batch.rows, batch.count, self._store_ms[first:], self._topic_index[first:]
        )
        assert not illegal, "a row that the store may refuse permanently is delivered alone"
        for position, topic_index in undelivered.items():
            self._store_ms[first + position], self._topic_index[first + position] = (
                NOT_PUT,
                topic_index,
            )
        self.done = first + int(count)
        self.delivered += int(np.count_nonzero(self._store_ms[first : self.done] != NOT_PUT))
        if count < batch.count:
            self.refuse(batch, count)
        return int(count)

    def refuse(self, batch: PutBatch, position: int) -> None:
        """Record that the store refused a row of a batch."""
        self.refusal = batch.remarks.get(position, NOT_WRITABLE)

    def delivered_columns(self, due_ms: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.int32]]:
        """Return due times, store times and topics of the delivered units.

        Args:
            due_ms: Due times of all units.
        """
        columns = due_ms[: self.done], self.store_ms, self.topic_index
        if self.delivered == self.done:
            return columns
        put = self.store_ms != NOT_PUT
        return columns[0][put], columns[1][put], columns[2][put]


def has_routes(topics: TopicTable) -> bool:
    """Return whether the table has queue counts, so that a topic without queues was deleted."""
    return bool((topics.arrays.topics["write_queues"] > 0).any())


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
            if row["status"] != MESSAGE_ILLEGAL:
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
