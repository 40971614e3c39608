"""Reading of a queue for pops: units that pass the filter, and records as clients expect them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from duemq.pop.receipts import RECEIPT_PROPERTY, Receipt
from duemq.pull.hidden_units import HiddenUnits
from duemq.pull.pull_plan import (
    BLANK_UNIT_SIZE,
    UNITS_LOOKED_AT_MAX,
    StoreLimits,
)
from duemq.pull.record_filter import RecordFilter, units_evaluated
from duemq.registry.subscriptions import Subscription
from message_store.errors import RecordUnreadable, UnitsRewritten
from message_store.layout import Rows
from message_store.log.properties import ENTRY_END, encode_properties
from message_store.log.record import Record, encode_again, split_records

if TYPE_CHECKING:
    from message_store.store import MessageStore

REWRITES_MAX: Final = 16  # units of one read that did not name their record
RECEIPT_NAME: Final = RECEIPT_PROPERTY.encode() + b"\x01"


@dataclass(frozen=True, slots=True)
class Found:
    """Messages of one queue: units (n,) layout.UNIT and their queue offsets, n may be 0.

    Attributes:
        start, end: Queue offsets before and after what was read.
        data: Records of the messages, as in the log.
    """

    start: int
    end: int
    units: Rows
    offsets: tuple[int, ...]
    data: bytes


class QueueReader:
    """Reader of the queues of one store.

    Args:
        compiled: Whether the kernel of property filters may be used.
    """

    def __init__(self, store: MessageStore, compiled: Callable[[], bool] = lambda: False) -> None:
        self._store, self._limits = store, StoreLimits(store)
        self._compiled, self._hidden = compiled, HiddenUnits(store)

    def read(
        self, topic: str, queue_id: int, offset: int, count_max: int, subscription: Subscription
    ) -> Found | None:
        """Return the next messages from an offset on, None if consumers can read none there."""
        for _ in range(REWRITES_MAX):
            try:
                return self._read(topic, queue_id, offset, count_max, subscription)
            except UnitsRewritten:
                continue
        return None

    def _read(
        self, topic: str, queue_id: int, offset: int, count_max: int, subscription: Subscription
    ) -> Found | None:
        """As `read`.

        Raises:
            UnitsRewritten: A unit was not that of its record, and is now.
        """
        low, high = self._store.readable_bounds(topic, queue_id)
        start = max(offset, low)
        if start >= high:
            return None
        expression, compiled = subscription.filter, self._compiled()
        wanted = count_max if subscription.matches_all else max(UNITS_LOOKED_AT_MAX, count_max)
        if expression is not None:
            wanted = units_evaluated(expression, compiled=compiled)
        units = self._store.units(topic, queue_id, start, min(wanted, high - start))
        if units.size == 0:
            return None
        place = topic, queue_id, start
        passed: bool | npt.NDArray[np.bool_] = True
        if expression is not None:
            record_filter = RecordFilter(self._store, place, expression, compiled=compiled)
            passed = record_filter.passing(units, count_max)
            units = units[: passed.size]
        present = units["phys_offset"] >= self._store.min_offset
        present &= units["size"] != BLANK_UNIT_SIZE
        passing = np.flatnonzero(present & passed & subscription.mask(units["tags_code"]))
        chosen = passing[: self._count_within(units[passing], count_max)]
        read = units.size if chosen.size == passing.size else int(passing[chosen.size])
        if read > chosen.size and self._hidden.repaired(place, units[:read], subscription):
            raise UnitsRewritten(f"{topic}/{queue_id}/{start}")
        try:
            data = self._store.gather(*place, units[chosen])
        except RecordUnreadable:
            chosen = np.array(
                [at for at in chosen if self._is_readable(*place, units[at : at + 1])], int
            )
            data = self._store.gather(*place, units[chosen])
        offsets = tuple(start + at for at in chosen.tolist())
        return Found(start, start + read, units[chosen], offsets, data)

    def _count_within(self, units: Rows, count_max: int) -> int:
        """Return how many of these units fit into an answer: one at least, if there are any."""
        sizes = np.cumsum(units["size"][:count_max], dtype=np.int64)
        fitting = int(np.searchsorted(sizes, self._limits().memory_bytes, side="right"))
        return min(max(fitting, 1), units.size)

    def _is_readable(self, topic: str, queue_id: int, offset: int, unit: Rows) -> bool:
        try:
            self._store.gather(topic, queue_id, offset, unit)
        except RecordUnreadable:
            return False
        return True

    def records(self, found: Found) -> bytes:
        """Return records as they are, without receipt handles that a producer put into them."""
        if RECEIPT_NAME not in found.data:
            return found.data
        return b"".join(
            encode_again(replace(record, property_text=_with_receipt(record, None)))
            for record in split_records(found.data)
        )

    def messages(self, topic: str, queue_id: int, offsets: Sequence[int]) -> list[Record] | None:
        """Return the messages at ascending queue offsets, None if `message` must read each."""
        first, count = offsets[0], offsets[-1] - offsets[0] + 1
        units = self._store.units(topic, queue_id, first, count)
        if units.size < count:
            return None
        chosen = units[np.array(offsets) - first]
        try:
            return split_records(self._store.gather(topic, queue_id, first, chosen))
        except (RecordUnreadable, UnitsRewritten):
            return None

    def message(self, topic: str, queue_id: int, offset: int) -> Record:
        """Return the message at a queue offset, whether consumers may read it yet or not.

        Raises:
            RecordUnreadable: It was removed, or is damaged.
        """
        for _ in range(REWRITES_MAX):
            units = self._store.units(topic, queue_id, offset, 1)
            if not units.size:
                break
            try:
                self._store.gather(topic, queue_id, offset, units)  # checks the unit
            except UnitsRewritten:
                continue
            return self._store.read_record(int(units["phys_offset"][0]))
        raise RecordUnreadable(-1, f"message {offset} of {topic}/{queue_id} is not there")

    def retry_records(self, found: Found, topic: str, receipt: Receipt) -> bytes:
        """Return records of a retry topic as messages of `topic` with their receipt handles."""
        return b"".join(
            encode_again(
                replace(
                    record,
                    topic=topic,
                    property_text=_with_receipt(record, receipt.text(record.queue_offset)),
                )
            )
            for record in split_records(found.data)
        )


def _with_receipt(record: Record, handle: str | None) -> bytes:
    """Return the properties of a record with this handle and no other."""
    text = record.property_text
    if RECEIPT_NAME not in text and (not text or text.endswith(ENTRY_END.encode())):
        return text if handle is None else text + encode_properties({RECEIPT_PROPERTY: handle})
    properties = {k: v for k, v in record.properties.items() if k != RECEIPT_PROPERTY}
    if handle is not None:
        properties[RECEIPT_PROPERTY] = handle
    return encode_properties(properties)
