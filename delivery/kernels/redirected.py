"""Compiled helpers that turn redirected records back into messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, crc32, get_i4, get_i8, get_u4, get_u8
from message_store.kernels.kernel import kernel
from message_store.layout import RECORD_HEAD, SYS_BORN_IPV6, SYS_STORE_IPV6

TAGS = np.frombuffer(b"TAGS", np.uint8).copy()
REAL_TOPIC = np.frombuffer(b"REAL_TOPIC", np.uint8).copy()
REAL_QID = np.frombuffer(b"REAL_QID", np.uint8).copy()
CRC32 = np.frombuffer(b"__CRC32#", np.uint8).copy()
CRC32_ENTRY_BYTES = 20
QID_ILLEGAL = -(1 << 40)
CRC_MASK = 0x7FFFFFFF  # Apache keeps the CRC of a body without its sign
assert RECORD_HEAD.fields is not None
BODY_CRC_AT, FLAG_AT, BORN_MS_AT, BORN_HOST_AT = (
    int(RECORD_HEAD.fields[name][1]) for name in ("body_crc", "flag", "born_ms", "born_ip")
)
IPV4_BYTES, IPV6_BYTES, PORT_BYTES, TIME_BYTES = 4, 16, 4, 8
NAME_GROWTH_MAX = 300  # bytes that a record may grow by when it gets its own topic back


@kernel
def read_hosts(data: Bytes, pos: int, sys_flag: int, row: Any) -> int:
    """Set the hosts of `row`; `pos` is that of the born host. Return the position after both."""
    row["born_ip_hi"] = row["store_ip_hi"] = np.uint64(0)
    if sys_flag & SYS_BORN_IPV6:
        row["born_ip_hi"], row["born_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += IPV6_BYTES
    else:
        row["born_ip_lo"] = np.uint64(get_u4(data, pos))
        pos += IPV4_BYTES
    row["born_port"] = get_i4(data, pos)
    pos += PORT_BYTES + TIME_BYTES  # the store time is between the hosts
    if sys_flag & SYS_STORE_IPV6:
        row["store_ip_hi"], row["store_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += IPV6_BYTES
    else:
        row["store_ip_lo"] = np.uint64(get_u4(data, pos))
        pos += IPV4_BYTES
    row["store_port"] = get_i4(data, pos)
    return pos + PORT_BYTES


@kernel
def is_body_sound(data: Bytes, pos: int, frame: Any) -> bool:
    """Return whether the body of the record at data[pos] has its CRC; `frame`: SCANNED."""
    body_len = np.int64(frame["body_len"])
    crc = crc32(data, pos + frame["body_pos"], body_len) & CRC_MASK
    return body_len == 0 or crc == get_i4(data, pos + BODY_CRC_AT)


@kernel
def set_message(data: Bytes, pos: int, frame: Any, phys_offset: int, row: Any) -> None:
    """Set the columns that a message has in common with the record at data[pos] it is made of.

    All but its topic, and where body and properties lie. It names the record as its origin.
    """
    row["real_topic_index"], row["real_queue_id"] = -1, 0
    row["flag"], row["sys_flag"] = get_i4(data, pos + FLAG_AT), frame["sys_flag"]
    row["born_ms"] = get_i8(data, pos + BORN_MS_AT)
    after = read_hosts(data, pos + BORN_HOST_AT, frame["sys_flag"], row)
    row["reconsume_times"] = get_i4(data, after)
    row["prepared_offset"] = -(phys_offset + 1)
    set_plain(row)


@kernel
def set_plain(row: Any) -> None:
    """Clear the columns that only messages from clients use."""
    row["delay_level"] = row["timer_kind"] = row["timer_value"] = row["prop_flags"] = 0
    row["uniq_pos"] = row["uniq_len"] = row["status"] = 0
    row["due_delay_ms"] = row["phys_offset"] = -1
    row["out_ms"] = row["due_ms"] = row["enqueue_ms"] = row["dequeue_ms"] = -1
