"""Compiled helpers that turn redirected records back into messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from message_store.kernels.bytes import Bytes, get_i4, get_u4, get_u8
from message_store.kernels.kernel import kernel
from message_store.layout import SYS_BORN_IPV6, SYS_STORE_IPV6

TAGS = np.frombuffer(b"TAGS", np.uint8).copy()
REAL_TOPIC = np.frombuffer(b"REAL_TOPIC", np.uint8).copy()
REAL_QID = np.frombuffer(b"REAL_QID", np.uint8).copy()
CRC32 = np.frombuffer(b"__CRC32#", np.uint8).copy()
CRC32_ENTRY_BYTES = 20
QID_ILLEGAL = -(1 << 40)
NAME_GROWTH_MAX = 300  # bytes that a record may grow by when it gets its own topic back


@kernel
def read_hosts(data: Bytes, pos: int, sys_flag: int, row: Any) -> int:
    """Set hosts and times of `row`; `pos` is that of the born host. Return the next position."""
    row["born_ip_hi"] = row["store_ip_hi"] = np.uint64(0)
    if sys_flag & SYS_BORN_IPV6:
        row["born_ip_hi"], row["born_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += 12
    else:
        row["born_ip_lo"] = np.uint64(get_u4(data, pos))
    row["born_port"] = get_i4(data, pos + 4)
    pos += 16
    if sys_flag & SYS_STORE_IPV6:
        row["store_ip_hi"], row["store_ip_lo"] = get_u8(data, pos), get_u8(data, pos + 8)
        pos += 12
    else:
        row["store_ip_lo"] = np.uint64(get_u4(data, pos))
    row["store_port"] = get_i4(data, pos + 4)
    return pos + 8


@kernel
def set_plain(row: Any) -> None:
    """Clear the columns that only matter for messages from clients."""
    row["delay_level"] = row["timer_kind"] = row["timer_value"] = row["prop_flags"] = 0
    row["uniq_pos"] = row["uniq_len"] = row["status"] = 0
    row["due_delay_ms"] = row["phys_offset"] = -1
    row["out_ms"] = row["due_ms"] = row["enqueue_ms"] = row["dequeue_ms"] = -1
