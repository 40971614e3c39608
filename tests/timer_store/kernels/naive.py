"""The kernels' readable twins."""

from __future__ import annotations

from typing import Any

from message_store.errors import RecordUnreadable
from message_store.properties import decode_properties
from message_store.record import decode_record
from message_store.text import java_hash
from message_store.topics import QUEUES_MAX, TopicTable
from timer_store import layout
from timer_store.due import due_ms_of, number_of
from timer_store.names import TIMER_TOPIC

BROKEN = (0, 0, -1, 0, -1, layout.TIMED_BROKEN)


def timed(data: bytes, phys_offset: int, size: int, topics: TopicTable, precision_ms: int) -> Any:
    """Return (due, slot, origin, topic hash, topic index, kind) of the record at `phys_offset`."""
    piece = data[phys_offset : phys_offset + size]
    try:
        record = decode_record(memoryview(piece), phys_offset, check_crc=False)
    except RecordUnreadable:
        return BROKEN
    if (record.total_size, record.phys_offset) != (size, phys_offset) or len(piece) != size:
        return BROKEN
    if record.topic != TIMER_TOPIC or record.queue_id != 0:
        return BROKEN
    text = decode_properties(record.property_text)
    prepared = record.prepared_offset
    origin, name = (-prepared - 1 if prepared < 0 else -1), text.get("REAL_TOPIC", "")
    topic = (java_hash(name), topics.find(name)) if name else (0, -1)
    due_ms = due_ms_of(text, record.store_ms, precision_ms)
    queue_id = number_of(text.get("REAL_QID"))
    if due_ms is None or not name or queue_id is None or not 0 <= queue_id < QUEUES_MAX:
        return (0, 0, origin, *topic, layout.TIMED_BROKEN)
    kind = layout.TIMED_MARKER if "TIMER_DEL_UNIQKEY" in text else layout.TIMED_PLAIN
    return (due_ms, due_ms - 1, origin, *topic, kind)
