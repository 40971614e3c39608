"""Reader of single redirected records that the kernels skip: decoded, or bytes for quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delayed_delivery.quarantine import origin_of
from duemq_common.errors import RecordUnreadable
from message_store.layout import Row
from message_store.log.batch import PutBatch
from message_store.log.record import Record, decode_record

if TYPE_CHECKING:
    from message_store.reader import StoreReader
    from message_store.store import MessageStore

CLIENT_COLUMNS = ("delay_level", "timer_kind", "timer_value", "prop_flags", "uniq_pos", "uniq_len")


def read_record(store: MessageStore, phys_offset: int, size: int) -> Record:
    """Return the record at a log offset.

    Raises:
        RecordUnreadable: The record is damaged, or contains another log offset.
    """
    record = decode_record(store.record_bytes(phys_offset, size), phys_offset)
    if record.phys_offset != phys_offset:
        raise RecordUnreadable(phys_offset, "the record there names another log offset")
    return record


def read_damaged(store: MessageStore, phys_offset: int, size: int) -> tuple[bytes, Record | None]:
    """Return the bytes at a log offset, and the record in them if they can be decoded.

    Unreadable pages read as zeros; the bytes of a removed record are empty.
    """
    data = b""
    try:
        data = store.log_view(phys_offset, size).tobytes()
        return data, decode_record(memoryview(data), phys_offset, check_crc=False)
    except RecordUnreadable:
        return data, None


def first_log_offset(store: StoreReader, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the log offset of the first record at or after a queue offset, None without one."""
    first, _ = store.queue_bounds(topic, queue_id)
    units = store.units(topic, queue_id, max(offset, first), 1)
    return int(units[0]["phys_offset"]) if units.size else None


def add_message(
    batch: PutBatch, record: Record, topic_index: int, queue_id: int, text: bytes
) -> int:
    """Add the delivered message of a redirected record; return the index of its row.

    Args:
        text: Property text of the message.
    """
    row_index = batch.add(
        topic_index=topic_index,
        queue_id=queue_id,
        body=record.body,
        properties=text,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=record.reconsume_times,
        prepared_offset=origin_of(record.phys_offset),
    )
    batch.trusted = True
    return row_index


def clear_client_columns(row: Row) -> None:
    """Clear the columns of a row that only messages from clients use."""
    for column in CLIENT_COLUMNS:
        row[column] = 0
