"""Conversion of log records to v5 messages.

Source: GrpcConverter
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from duemq.send.send_header import PRIORITY, priority_of
from duemq.v5.checks import TIME_MS_MAX
from duemq.v5.protocol import definition as v2
from message_store.layout import SYS_COMPRESSED
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Host, Record

INT32_MAX: Final = (1 << 31) - 1
TIME_DIGITS_MAX: Final = 18
RESERVED: Final = frozenset(
    {
        "TRACE_ON",
        "MSG_REGION",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "DUP_INFO",
        "EXTEND_UNIQ_INFO",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "__SHARDINGKEY",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRACE_CONTEXT",
        PRIORITY,
        "__LITE_TOPIC",
        "ORIGIN_GROUP",  # from 5.4 on
    }
)
"""System properties: applications cannot set them."""
HIDDEN: Final = RESERVED - {
    "__SHARDINGKEY",
    "__transactionId__",
    "TRACE_CONTEXT",
    "TRANSACTION_CHECK_TIMES",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
}
"""Properties that are no user properties of a received message: MessageConst.STRING_HASH_SET."""


def message_of(record: Record, *, topic: str, receipt_handle: str = "") -> v2.Message:
    """Convert a record to a message; clamp numbers to the ranges of the protocol.

    A producer can store out-of-range numbers; one such record must not fail its whole batch.

    Args:
        topic: Topic from the client's request; a record in a retry topic has another.
        receipt_handle: Receipt handle of the pop; empty: the message was not popped.
    """
    properties = record.properties
    message = v2.Message(topic=v2.Resource(name=topic), body=record.body)
    for name, value in properties.items():
        if name not in HIDDEN:
            message.user_properties[name] = value
    system = message.system_properties
    _set_texts(system, record, properties)
    system.body_digest.type = v2.MD5
    system.body_digest.checksum = (
        hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    )
    system.body_encoding = v2.GZIP if record.sys_flag & SYS_COMPRESSED else v2.IDENTITY
    system.message_type = message_types(properties)[0]
    if (priority := priority_of(properties)) >= 0:
        system.priority = priority
    _set_time(system.born_timestamp, record.born_ms)
    _set_time(system.store_timestamp, record.store_ms)
    deliver_ms = properties.get("TIMER_DELIVER_MS", "")
    if deliver_ms.isascii() and deliver_ms.isdigit():
        _set_time(system.delivery_timestamp, int(deliver_ms[:TIME_DIGITS_MAX]))
    system.store_host = host_text(record.store_host)
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    system.delivery_attempt = min(record.reconsume_times + 1, INT32_MAX)
    if receipt_handle:
        system.receipt_handle = receipt_handle
    return message


def _set_time(field: Timestamp, time_ms: int) -> None:
    field.FromMilliseconds(min(max(time_ms, 0), TIME_MS_MAX))


def _set_texts(system: v2.SystemProperties, record: Record, properties: Mapping[str, str]) -> None:
    if tag := properties.get("TAGS"):
        system.tag = tag
    if keys := properties.get("KEYS"):
        system.keys.extend(keys.split(" "))
    system.message_id = message_id(record)
    system.born_host = properties.get("__BORNHOST") or host_text(record.born_host)
    if group := properties.get("__SHARDINGKEY"):
        system.message_group = group
    if trace := properties.get("TRACE_CONTEXT"):
        system.trace_context = trace
    dead_topic = properties.get("DLQ_ORIGIN_TOPIC")
    dead_id = properties.get("DLQ_ORIGIN_MESSAGE_ID")
    if dead_topic and dead_id:
        system.dead_letter_queue.topic = dead_topic
        system.dead_letter_queue.message_id = dead_id


def message_id(record: Record) -> str:
    """Return the client's id of a message; if missing, the offset id of the record."""
    address, port = record.store_host
    return record.properties.get("UNIQ_KEY") or encode_offset_id(address, port, record.phys_offset)


def message_types(properties: Mapping[str, str]) -> tuple[v2.MessageType, ...]:
    """Return the type of a message; PRIORITY follows DELAY if a delayed message has a priority.

    Source: TopicMessageType.parseFromMessageProperty
    """
    if properties.get("TRAN_MSG") == "true":
        return (v2.TRANSACTION,)
    is_ordered = "__SHARDINGKEY" in properties
    priority = (v2.PRIORITY,) if PRIORITY in properties and not is_ordered else ()
    if not properties.keys().isdisjoint(_DELAYS):
        return (v2.DELAY, *priority)
    return (v2.FIFO,) if is_ordered else priority or (v2.NORMAL,)


_DELAYS: Final = frozenset({"DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"})


def host_text(host: Host) -> str:
    """Return `address:port`."""
    return f"{ipaddress.ip_address(host[0])}:{host[1]}"
