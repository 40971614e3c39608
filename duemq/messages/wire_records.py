"""Stored form of one message with other coordinates than its record has."""

from __future__ import annotations

from typing import Final

from message_store import layout
from message_store.log.record import Record

HEAD: Final = layout.packer(layout.RECORD_HEAD)
TOPIC_BYTES_V1_MAX = 127


def encode_record(
    record: Record,
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    phys_offset: int,
    properties: bytes,
) -> bytes:
    """Return `record` as a message of another queue. MessageDecoder.encode.

    Hosts are written as IPv4; an IPv6 host becomes 0.0.0.0, for clients read four bytes.
    """
    name = topic.encode()
    long_name = len(name) > TOPIC_BYTES_V1_MAX
    tail = len(name).to_bytes(2 if long_name else 1, "big") + name
    tail += len(properties).to_bytes(2, "big") + properties
    sys_flag = record.sys_flag & ~(layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6)
    head = HEAD.pack(
        HEAD.size + len(record.body) + len(tail),
        layout.MAGIC_V2 if long_name else layout.MAGIC_V1,
        record.body_crc,
        queue_id,
        record.flag,
        queue_offset,
        phys_offset,
        sys_flag,
        record.born_ms,
        _ipv4(record.born_host[0]),
        record.born_host[1],
        record.store_ms,
        _ipv4(record.store_host[0]),
        record.store_host[1],
        record.reconsume_times,
        record.prepared_offset,
        len(record.body),
    )
    return head + record.body + tail


def _ipv4(address: bytes) -> int:
    return int.from_bytes(address, "big") if len(address) == 4 else 0
