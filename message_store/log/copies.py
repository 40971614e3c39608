"""Copies of stored messages for other queues, as rows of a `PutBatch`."""

from __future__ import annotations

from collections.abc import Mapping

from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from message_store.replication.acknowledgement import Missing

SMALL_BATCH_ROWS = 4
STAGING_EXTRA_BYTES = 1_024  # for properties that a copy has in addition
STORED = (0, *(missing.code for missing in Missing))  # statuses of rows that are in the log
RECONSUME_TIMES_MAX = 0x7FFF_FFFF
KEPT_FLAGS = 0x7FF & ~(layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6)


def batch_for(*records: Record) -> PutBatch:
    """Return an empty batch with staging space for copies of these records."""
    size = sum(len(r.body) + len(r.property_text) + STAGING_EXTRA_BYTES for r in records)
    return PutBatch(SMALL_BATCH_ROWS, size)


def add_copy(
    batch: PutBatch,
    record: Record,
    *,
    topic_index: int,
    queue_id: int,
    properties: Mapping[str, str] | bytes,
    store_host: tuple[bytes, int],
    sys_flag: int | None = None,
    reconsume_times: int | None = None,
    prepared_offset: int = 0,
) -> int:
    """Add a message with body, flag, born time and born host of `record`; return its row.

    Args:
        sys_flag, reconsume_times: Values of the copy; None: those of `record`.
        prepared_offset: Log offset of the half message of a commit; 0: none.
    """
    text = properties if isinstance(properties, bytes) else encode_properties(properties)
    return batch.add(
        topic_index=topic_index,
        queue_id=queue_id,
        body=record.body,
        properties=text,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=store_host,
        flag=record.flag,
        sys_flag=(record.sys_flag & KEPT_FLAGS) if sys_flag is None else sys_flag,
        reconsume_times=record.reconsume_times if reconsume_times is None else reconsume_times,
        prepared_offset=prepared_offset,
    )


def next_reconsume_times(record: Record) -> int:
    """Return the reconsume times of a retry of `record`: one more, up to the largest number."""
    return min(record.reconsume_times + 1, RECONSUME_TIMES_MAX)


def refusal(batch: PutBatch, row: int = 0) -> str | None:
    """Return the reason for which a row was not stored; None if it was stored."""
    status = int(batch.rows[row]["status"])
    if status in STORED:
        return None
    return batch.remarks.get(row) or f"the store returned status {status}"
