"""Naive Python implementations of the kernels."""

from __future__ import annotations

from typing import Any

from duemq_common.errors import RecordUnreadable
from duemq_common.text import java_hash
from message_store import layout
from message_store.kernels import scan
from message_store.log.record import Record, decode_record

Unit = tuple[int, int, int]  # log offset, size, tags code


def entries(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return the valid (name, value) pairs of a property text."""
    pairs = (entry.partition(b"\x01") for entry in text.split(b"\x02"))
    return [(name, value) for name, _, value in pairs if value]


def find_value(text: bytes, name: bytes) -> bytes:
    """Return the last non-empty value of `name`, or b""."""
    return dict(entries(text)).get(name, b"")


def parse_number(text: str, illegal: int) -> int:
    """Return a decimal number of at most 18 digits, else `illegal`."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        return illegal
    return int(text)


def parse_level(text: str) -> int:
    """Return a DELAY value as a 32-bit number, or DELAY_ILLEGAL."""
    value = parse_number(text, layout.DELAY_ILLEGAL)
    return value if -(1 << 31) < value < 1 << 31 else layout.DELAY_ILLEGAL


def tags_and_level(text: bytes) -> tuple[int, int]:
    """Return (Java hash of TAGS, DELAY), 0 for missing ones."""
    found = dict(entries(text))
    tags = java_hash(found[b"TAGS"].decode()) if b"TAGS" in found else 0
    level = parse_level(found[b"DELAY"].decode("latin-1")) if b"DELAY" in found else 0
    return tags, level


def walk(data: bytes, log_offset: int) -> tuple[list[tuple[Record, bool]], int, int]:
    """Return ((record, whether its CRC fits) ..., end position, reason for the end)."""
    found, at = [], 0
    while at < len(data):
        head = data[at : at + 8]
        if len(head) == 8 and is_blank(head):
            return found, at, scan.STOP_BLANK
        try:
            record = decode_record(memoryview(data)[at:], log_offset + at, check_crc=False)
        except RecordUnreadable:
            return found, at, scan.STOP_INVALID
        if record.phys_offset != log_offset + at:
            return found, at, scan.STOP_INVALID
        found.append((record, crc_fits(data[at : at + record.total_size])))
        at += record.total_size
    return found, at, scan.STOP_FULL


def records_of(
    data: bytes, base: int, units: Any, place: tuple[str, int, int] | None
) -> list[bytes]:
    """Return the records of leading units that are whole, and of the queue that `place` names.

    Args:
        place: (topic, queue id, queue offset of the unit with index 0), None: any.
    """
    found: list[bytes] = []
    for unit in units:
        at, size = int(unit["phys_offset"]) - base, int(unit["size"])
        try:
            record = decode_record(memoryview(data[at : at + size]), base + at, check_crc=False)
        except RecordUnreadable:
            break
        if (record.total_size, record.phys_offset) != (size, base + at):
            break
        queued = record.topic, record.queue_id, record.queue_offset - int(unit["index"])
        if place is not None and queued != place:
            break
        found.append(data[at : at + size])
    return found


def is_blank(head: bytes) -> bool:
    size, magic = layout.packer(layout.BLANK_RECORD).unpack(head)
    return bool(magic == layout.MAGIC_BLANK and size > 0)


def crc_fits(data: bytes) -> bool:
    try:
        decode_record(memoryview(data), 0)
    except RecordUnreadable:
        return False
    return True


def group_units(rows: Any) -> dict[int, tuple[int, list[Unit]]]:
    """Return slot to (first queue offset, units), in order of appearance."""
    blocks: dict[int, tuple[int, list[Unit]]] = {}
    for row in rows:
        kind = int(row["sys_flag"]) & layout.SYS_TRANSACTION_MASK
        if row["status"] or kind in (layout.SYS_PREPARED, layout.SYS_ROLLBACK):
            continue
        block = blocks.setdefault(int(row["queue_slot"]), (int(row["queue_offset"]), []))
        unit = (int(row["phys_offset"]), int(row["record_size"]), int(row["tags_code"]))
        block[1].append(unit)
    return blocks


def leading_units(block: bytes) -> list[Unit]:
    """Return the units before the first empty or impossible one."""
    units: list[Unit] = []
    unpack = layout.packer(layout.CQ_UNIT).unpack
    for at in range(0, len(block) - layout.CQ_UNIT.itemsize + 1, layout.CQ_UNIT.itemsize):
        phys_offset, size, tags_code = unpack(block[at : at + layout.CQ_UNIT.itemsize])
        if size <= 0 or phys_offset < 0:
            break
        units.append((phys_offset, size, tags_code))
    return units


def leading_inside(units: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """Return the sizes of the units (position, size) before the first outside of the range."""
    inside = [size > 0 and start <= at and at + size <= end for at, size in units]
    count = [*inside, False].index(False)
    return [size for _, size in units[:count]]
