"""Bytes of records from their fields."""

from __future__ import annotations

from typing import Any

from message_store.log import record
from message_store.log.record import Record

UNSET = {
    "total_size": 0,
    "magic": 0,
    "body_crc": 0,
    "flag": 0,
    "sys_flag": 0,
    "reconsume_times": 0,
    "prepared_offset": 0,
}
"""Fields that have these values, or are computed, unless they are given."""


def encode_record(**fields: Any) -> bytes:
    """Return the bytes of a record with these fields."""
    return record.encode_record(Record(**(UNSET | fields)))
