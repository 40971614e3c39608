"""Naive Python implementations of the kernels."""

from __future__ import annotations

from typing import Any

from duemq_common.errors import RecordUnreadable
from duemq_common.text import java_hash
from duemq_common.topics import HALF_TOPIC, TIMER_TOPIC
from message_store.log.properties import decode_properties
from message_store.log.record import decode_record
from message_store.queues.topic_table import QUEUES_MAX, TopicTable
from timer_store import layout
from timer_store.enqueue.due_time import due_ms_of, number_of

BROKEN = (0, 0, -1, 0, -1, layout.TIMED_BROKEN)


def out_ms_of(due_ms: int, precision_ms: int) -> int:
    """Return TIMER_OUT_MS: an exact multiple of the precision lies in the slot before it."""
    return (due_ms - 1) // precision_ms * precision_ms


def timed(
    data: bytes,
    phys_offset: int,
    size: int,
    topics: TopicTable,
    precision_ms: int,
    queue_offset: int,
) -> Any:
    """Return (due, slot, origin, topic hash, topic index, kind) of the record at `phys_offset`."""
    piece = data[phys_offset : phys_offset + size]
    try:
        record = decode_record(memoryview(piece), phys_offset, check_crc=False)
    except RecordUnreadable:
        return BROKEN
    if (record.total_size, record.phys_offset) != (size, phys_offset) or len(piece) != size:
        return BROKEN
    if record.topic != TIMER_TOPIC or (record.queue_id, record.queue_offset) != (0, queue_offset):
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


def redirect(
    message: dict[str, Any], topics: TopicTable, now_ms: int, max_ms: int, precision_ms: int
) -> tuple[int, int]:
    """Return (status, TIMER_OUT_MS or -1) of a message after the put hook."""
    status, properties, topic = message["status"], message["properties"], message["topic"]
    if status or message["sys_flag"] & 12 not in (0, 8) or topic == HALF_TOPIC:
        return status, -1
    if topic == TIMER_TOPIC:
        due_ms = due_ms_of(properties, now_ms, precision_ms)
        target = topics.find(properties.get("REAL_TOPIC", "")) >= 0 and "REAL_QID" in properties
        return (0 if due_ms is not None and due_ms - now_ms <= max_ms and target else 13), -1
    if topic.startswith("%") and "TIMER_OUT_MS" in properties:
        return 0, -1
    for name, factor in (
        ("TIMER_DELAY_SEC", 1_000),
        ("TIMER_DELAY_MS", 1),
        ("TIMER_DELIVER_MS", 1),
    ):
        if name in properties:
            number = number_of(properties[name])
            if number is None:
                return 13, -1
            due_ms = number * factor + (0 if name == "TIMER_DELIVER_MS" else now_ms)
            if due_ms <= now_ms:
                return (13 if "TIMER_DEL_UNIQKEY" in properties else 0), -1
            return (13, -1) if due_ms - now_ms > max_ms else (0, out_ms_of(due_ms, precision_ms))
    return 0, -1
