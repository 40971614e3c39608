"""Reading of a queue for pops: units that pass the filter, and records as clients expect them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from delayed_delivery.redirected import without
from duemq.pop.kernels.retries import DIGITS_MAX, OTHER_FORM, add_handles
from duemq.pop.kernels.units import HAS_GAP, count_units
from duemq.pop.receipts import RECEIPT_PROPERTY, Receipt
from duemq.pull.layout import BLANK_UNIT_SIZE
from duemq.pull.pull_plan import (
    UNITS_LOOKED_AT_MAX,
    StoreLimits,
)
from duemq.pull.record_filter import RecordFilter, units_evaluated
from duemq.registry.subscriptions import Subscription
from duemq_common.errors import RecordUnreadable, UnitsRewritten
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import entry
from message_store.layout import SCANNED, TOPIC_BYTES_V1_MAX, Rows
from message_store.log.properties import (
    ENTRY_END,
    PROPERTIES_BYTES_MAX,
    encode_properties,
)
from message_store.log.record import Record, encode_record, is_sound, split_records

if TYPE_CHECKING:
    from message_store.store import MessageStore

REWRITES_MAX: Final = 16  # attempts of one read, each after a unit was rewritten
RECEIPT_NAME: Final = RECEIPT_PROPERTY.encode() + b"\x01"


class ReadResult(Struct):
    """Result of one read of a queue: n messages; n may be 0.

    Attributes:
        start, end: Queue offsets of the first unit that was read, and after the last one.
        units: (n,) layout.UNIT: units of the messages.
        offsets: Queue offsets of the messages.
        data: Records of the messages, as stored in the log.
    """

    start: int
    end: int
    units: Rows
    offsets: tuple[int, ...]
    data: bytes

    @property
    def log_offset(self) -> int:
        """Log offset of the first message; there must be one."""
        return int(self.units["phys_offset"][0])


class RawRecords(Struct, frozen=True):
    """Messages of one queue whose records are not decoded.

    Attributes:
        offsets: Queue offsets of the messages.
        log_offsets: (n,) i8: log offsets of their records.
        data: (bytes,) u1: their records, as stored in the log.
    """

    offsets: tuple[int, ...]
    log_offsets: npt.NDArray[np.int64]
    data: Bytes

    def records(self) -> list[Record]:
        """Return the records.

        Raises:
            RecordUnreadable: A record is damaged.
        """
        return split_records(self.data.tobytes())


class QueueReader:
    """Reader of the queues of one store.

    Args:
        compiled: Whether kernels may be used.
    """

    def __init__(self, store: MessageStore, compiled: Callable[[], bool] = lambda: False) -> None:
        self._store, self._limits = store, StoreLimits(store)
        self._compiled = compiled
        self._count_units: Callable[..., int] | None = None

    def read(
        self, topic: str, queue_id: int, offset: int, count_max: int, subscription: Subscription
    ) -> ReadResult | None:
        """Return the next messages from an offset on, None if consumers can read none there."""
        for _ in range(REWRITES_MAX):
            try:
                return self._read(topic, queue_id, offset, count_max, subscription)
            except UnitsRewritten:
                continue
        return None

    def _read(
        self, topic: str, queue_id: int, offset: int, count_max: int, subscription: Subscription
    ) -> ReadResult | None:
        """Read like `read`, once.

        Raises:
            UnitsRewritten: A unit did not match its record and was rewritten; read again.
        """
        low, high = self._store.readable_bounds(topic, queue_id)
        start = max(offset, low)
        if start >= high:
            return None
        expression, compiled = subscription.filter, self._compiled()
        units_max = count_max if subscription.matches_all else max(UNITS_LOOKED_AT_MAX, count_max)
        if expression is not None:
            units_max = units_evaluated(expression, compiled=compiled)
        units = self._store.units(topic, queue_id, start, min(units_max, high - start))
        if units.size == 0:
            return None
        position = topic, queue_id, start
        if subscription.matches_all and compiled:
            result = self._leading(position, units, count_max)
            if result is not None:
                return result
        passed: bool | npt.NDArray[np.bool_] = True
        if expression is not None:
            record_filter = RecordFilter(self._store, position, expression, compiled=compiled)
            passed = record_filter.passing(units, count_max)
            units = units[: passed.size]
        present = units["phys_offset"] >= self._store.min_offset
        present &= units["size"] != BLANK_UNIT_SIZE
        passing = np.flatnonzero(present & passed & subscription.mask(units["tags_code"]))
        chosen = passing[: self._count_within(units[passing], count_max)]
        is_full = chosen.size == count_max or chosen.size < passing.size
        # The next pop may have another filter: it begins after the last message of a full result.
        read = int(chosen[-1]) + 1 if is_full else units.size
        if (
            read > chosen.size
            and subscription.skips_by_code
            and self._store.repair.compare(topic, queue_id, units[:read], start)
        ):
            raise UnitsRewritten(f"{topic}/{queue_id}/{start}")
        try:
            data = self._store.gather(*position, units[chosen])
        except RecordUnreadable:
            chosen = np.array(
                [
                    index
                    for index in chosen
                    if self._is_readable(*position, units[index : index + 1])
                ],
                int,
            )
            data = self._store.gather(*position, units[chosen])
        offsets = tuple(start + index for index in chosen.tolist())
        return ReadResult(start, start + read, units[chosen], offsets, data)

    def _leading(
        self, position: tuple[str, int, int], units: Rows, count_max: int
    ) -> ReadResult | None:
        """Return the messages of the leading units; None if one of them cannot be read.

        Raises:
            UnitsRewritten: As `_read`.
        """
        arguments = units, self._store.min_offset, count_max, self._limits().memory_bytes
        if self._count_units is None:
            find: Callable[..., Callable[..., int]] = entry
            self._count_units = find(count_units, *arguments)
        count = self._count_units(*arguments)
        if count == HAS_GAP:
            return None
        units, start = units[:count], position[2]
        try:
            data = self._store.gather(*position, units)
        except RecordUnreadable:
            return None
        return ReadResult(start, start + count, units, tuple(range(start, start + count)), data)

    def _count_within(self, units: Rows, count_max: int) -> int:
        """Return how many of these units fit into a response: at least one, if there are any."""
        sizes = np.cumsum(units["size"][:count_max], dtype=np.int64)
        fitting = int(np.searchsorted(sizes, self._limits().memory_bytes, side="right"))
        return min(max(fitting, 1), units.size)

    def _is_readable(self, topic: str, queue_id: int, offset: int, unit: Rows) -> bool:
        try:
            self._store.gather(topic, queue_id, offset, unit)
        except RecordUnreadable:
            return False
        return True

    def records(self, result: ReadResult) -> bytes:
        """Return the records as stored, without receipt handles that producers have set."""
        if RECEIPT_NAME not in result.data:
            return result.data
        parts, position = list[bytes](), 0
        for record in split_records(result.data, check_crc=False):
            part = result.data[position : position + record.total_size]
            if RECEIPT_NAME in record.property_text and is_sound(record):
                text = _with_receipt(record, None)
                part = encode_record(replace(record, property_text=text))
            parts.append(part)
            position += record.total_size
        return b"".join(parts)

    def raw_records(self, topic: str, queue_id: int, offsets: Sequence[int]) -> RawRecords | None:
        """Return the messages at ascending queue offsets.

        Returns:
            None if the caller must read the messages one by one with `message`.
        """
        first, count = offsets[0], offsets[-1] - offsets[0] + 1
        units = self._store.units(topic, queue_id, first, count)
        if units.size < count:
            return None
        chosen = units[np.array(offsets) - first]
        try:
            data = self._store.gather(topic, queue_id, first, chosen)
        except (RecordUnreadable, UnitsRewritten):
            return None
        log_offsets = np.ascontiguousarray(chosen["phys_offset"], np.int64)
        return RawRecords(tuple(offsets), log_offsets, np.frombuffer(data, np.uint8))

    def following(
        self, topic: str, queue_id: int, offset: int, count_max: int
    ) -> list[Record | RecordUnreadable]:
        """Return the messages from a queue offset on, whether consumers may read them yet or not.

        Returns:
            One entry for each queue offset; an error in place of a message that cannot be read.
        """
        units = self._store.units(topic, queue_id, offset, count_max)
        for _ in range(REWRITES_MAX):
            try:
                return list(split_records(self._store.gather(topic, queue_id, offset, units)))
            except RecordUnreadable:
                break
            except UnitsRewritten:
                units = self._store.units(topic, queue_id, offset, count_max)
        return [
            self._message_or_error(topic, queue_id, offset + index) for index in range(units.size)
        ]

    def _message_or_error(
        self, topic: str, queue_id: int, offset: int
    ) -> Record | RecordUnreadable:
        try:
            return self.message(topic, queue_id, offset)
        except RecordUnreadable as error:
            return error

    def message(self, topic: str, queue_id: int, offset: int) -> Record:
        """Return the message at a queue offset, whether consumers may read it yet or not.

        Raises:
            RecordUnreadable: The message was removed, or its record is damaged.
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
        raise RecordUnreadable(-1, f"message {offset} of {topic}/{queue_id} does not exist")

    def retry_records(self, result: ReadResult, topic: str, receipt: Receipt) -> bytes:
        """Return records of a retry topic as messages of `topic` with their receipt handles.

        A record that is damaged or has no room for the handle is omitted. It is visible again
        later: then the reviver moves it to quarantine.
        """
        if self._compiled() and RECEIPT_NAME not in result.data:
            compiled = _with_handles(result, topic.encode(), receipt)
            if compiled is not None:
                return compiled
        pieces = list[bytes]()
        for record in split_records(result.data, check_crc=False):
            text = _with_receipt(record, receipt.text(record.queue_offset))
            if len(text) <= PROPERTIES_BYTES_MAX and is_sound(record):
                pieces.append(encode_record(replace(record, topic=topic, property_text=text)))
        return b"".join(pieces)


def _with_handles(result: ReadResult, topic: bytes, receipt: Receipt) -> bytes | None:
    """Return the records that the kernel encodes, None if it does not support their form."""
    if len(topic) > TOPIC_BYTES_V1_MAX:
        return None
    handle = RECEIPT_NAME + receipt.text(0)[:-1].encode()
    growth = len(topic) + len(handle) + DIGITS_MAX + 1
    out = np.empty(len(result.data) + len(result.offsets) * growth, np.uint8)
    data, name, start = (np.frombuffer(text, np.uint8) for text in (result.data, topic, handle))
    size = add_handles(data, name, start, np.zeros(1, SCANNED), out)
    return out[:size].tobytes() if size != OTHER_FORM else None


def _with_receipt(record: Record, handle: str | None) -> bytes:
    """Return the properties of a record with this handle and no other.

    The other entries stay as they are: decoding could change and lengthen them.
    """
    text = without(record.property_text, RECEIPT_PROPERTY.encode())
    if text and not text.endswith(ENTRY_END.encode()):
        text += ENTRY_END.encode()
    return text if handle is None else text + encode_properties({RECEIPT_PROPERTY: handle})
