"""Log record: its bytes, and a `Record` with its fields.

`kernels.scan` and `kernels.encode` do the same for whole buffers; tests compare both.
"""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from duemq_common.errors import RecordUnreadable
from duemq_common.layout import packer, position
from message_store.log import layout
from message_store.log.properties import decode_properties

Host = tuple[bytes, int]


class Record(Struct, dict=True):
    """A decoded record; hosts are (address bytes, port), times are ms.

    `dict`: for the cached properties.
    """

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    phys_offset: int
    sys_flag: int
    born_ms: int
    born_host: Host
    store_ms: int
    store_host: Host
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    property_text: bytes

    @cached_property
    def properties(self) -> dict[str, str]:
        """Decoded properties."""
        return decode_properties(self.property_text)


_HEAD: Final = packer(layout.RECORD_HEAD_FIELDS)
_BORN_IP: Final = position("born_ip", layout.RECORD_HEAD_FIELDS)
_STORE_IP: Final = position("store_ip", layout.RECORD_HEAD_FIELDS)
_IPV6_BITS: Final = layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6
_PROPERTIES_LEN: Final = layout.PROPERTIES_LENGTH


class _Fields:
    """Reader of the fields of one record, in order and never past its end."""

    def __init__(self, data: bytes, phys_offset: int) -> None:
        self.data, self.position, self.phys_offset = data, 0, phys_offset

    def fault(self, reason: str) -> RecordUnreadable:
        return RecordUnreadable(self.phys_offset, reason)

    def take(self, name: str, size: int) -> bytes:
        if size < 0:
            raise self.fault(f"the length of its {name} is negative ({size})")
        if size > len(self.data) - self.position:
            left = len(self.data) - self.position
            raise self.fault(f"it is cut off: {name} needs {size} bytes, {left} are left")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, name: str, size: int) -> int:
        return int.from_bytes(self.take(name, size), "big", signed=True)

    def counted(self, name: str, length_size: int) -> bytes:
        return self.take(name, self.number(f"length of the {name}", length_size))

    def host(self, name: str, is_ipv6: int) -> Host:
        return self.take(name, 16 if is_ipv6 else 4), self.number(f"port of the {name}", 4)


def decode_record(view: memoryview, phys_offset: int, *, check_crc: bool = True) -> Record:
    """Decode the record at the start of `view`; ignore the bytes after it.

    Args:
        phys_offset: Log offset of the record, for the error only; it is not checked.
    Raises:
        RecordUnreadable: The bytes are damaged or cut off; the text names the field.
    Source: MessageDecoder.decode
    """
    total_size = int.from_bytes(view[:4], "big", signed=True)
    if layout.RECORD_FIXED_BYTES <= total_size <= len(view):
        plain = _decode_plain(bytes(view[:total_size]), total_size)
        if plain is not None and (not check_crc or is_sound(plain)):
            return plain
    data = _Fields(bytes(view[: max(total_size, 4)]), phys_offset)
    if not layout.RECORD_FIXED_BYTES <= total_size <= len(view):
        raise data.fault(
            f"its size is {total_size} bytes; "
            f"{layout.RECORD_FIXED_BYTES} to {len(view)} bytes are possible"
        )
    record = _decode_fields(data, total_size)
    if check_crc and not is_sound(record):
        raise data.fault("the body does not match its CRC")
    return record


def is_sound(record: Record) -> bool:
    """Return whether the body of a record matches its CRC."""
    return not record.body or zlib.crc32(record.body) & layout.CRC_MASK == record.body_crc


def split_records(data: bytes, *, check_crc: bool = True) -> list[Record]:
    """Return the records that follow each other in `data` without gaps.

    Raises:
        RecordUnreadable: One of them is damaged.
    """
    records, position, view = [], 0, memoryview(data)
    while position < len(data):
        record = decode_record(view[position:], position, check_crc=check_crc)
        records.append(record)
        position += record.total_size
    return records


def _decode_plain(data: bytes, total_size: int) -> Record | None:
    """Return a record of the common form (IPv4 hosts, a short topic), None for other forms."""
    (
        _,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        phys_offset,
        sys_flag,
        born_ms,
        _,
        born_port,
        store_ms,
        _,
        store_port,
        reconsume_times,
        prepared_offset,
        body_len,
    ) = _HEAD.unpack_from(data)
    body_end = layout.RECORD_HEAD_BYTES + body_len
    if magic != layout.MAGIC_V1 or sys_flag & _IPV6_BITS or not 0 <= body_len < total_size:
        return None
    if not body_end < total_size or not 0 < data[body_end] <= layout.TOPIC_BYTES_V1_MAX:
        return None
    topic_end = body_end + 1 + data[body_end]
    properties_at = topic_end + _PROPERTIES_LEN.size
    if properties_at > total_size:
        return None
    (properties_len,) = _PROPERTIES_LEN.unpack_from(data, topic_end)
    if properties_len < 0 or properties_at + properties_len != total_size:
        return None
    return Record(
        total_size,
        magic,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        phys_offset,
        sys_flag,
        born_ms,
        (data[_BORN_IP : _BORN_IP + 4], born_port),
        store_ms,
        (data[_STORE_IP : _STORE_IP + 4], store_port),
        reconsume_times,
        prepared_offset,
        data[layout.RECORD_HEAD_BYTES : body_end],
        data[body_end + 1 : topic_end].decode("utf-8", "replace"),
        data[properties_at:total_size],
    )


def _decode_fields(data: _Fields, total_size: int) -> Record:
    """Return the record of any form, field by field.

    Raises:
        RecordUnreadable: As `decode_record`.
    """
    number = data.number
    record = Record(
        total_size=number("size", 4),
        magic=_magic(data),
        body_crc=number("body CRC", 4),
        queue_id=number("queue id", 4),
        flag=number("flag", 4),
        queue_offset=number("queue offset", 8),
        phys_offset=number("log offset", 8),
        sys_flag=(sys_flag := number("system flag", 4)),
        born_ms=number("born time", 8),
        born_host=data.host("born host", sys_flag & layout.SYS_BORN_IPV6),
        store_ms=number("store time", 8),
        store_host=data.host("store host", sys_flag & layout.SYS_STORE_IPV6),
        reconsume_times=number("reconsume times", 4),
        prepared_offset=number("prepared offset", 8),
        body=data.counted("body", 4),
        topic=_topic(data),
        property_text=data.counted("properties", 2),
    )
    if data.position != total_size:
        raise data.fault(f"its fields end at byte {data.position} of {total_size}")
    return record


def _magic(fields: _Fields) -> int:
    magic = fields.number("magic", 4)
    if magic not in (layout.MAGIC_V1, layout.MAGIC_V2):
        raise fields.fault(f"magic 0x{magic & 0xFFFFFFFF:08X} is not a record's")
    return magic


def _topic(fields: _Fields) -> str:
    wide = fields.data[4:8] == layout.MAGIC_V2.to_bytes(4, "big", signed=True)
    name = fields.counted("topic", 2 if wide else 1)
    if not name:
        raise fields.fault("its topic is empty")
    return name.decode("utf-8", "replace")


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record; its size, magic, body CRC and IPv6 bits are computed.

    Raises:
        OverflowError: A number does not fit its field.
    Source: MessageExtEncoder.encode
    """
    sys_flag = record.sys_flag & ~_IPV6_BITS
    sys_flag |= layout.SYS_BORN_IPV6 if len(record.born_host[0]) == 16 else 0
    sys_flag |= layout.SYS_STORE_IPV6 if len(record.store_host[0]) == 16 else 0
    wide = len(record.topic.encode()) > layout.TOPIC_BYTES_V1_MAX
    record = replace(
        record,
        magic=layout.MAGIC_V2 if wide else layout.MAGIC_V1,
        body_crc=zlib.crc32(record.body) & layout.CRC_MASK,
        sys_flag=sys_flag,
    )
    after_magic = b"".join(
        [
            _number(record.body_crc, 4),
            _number(record.queue_id, 4),
            _number(record.flag, 4),
            _number(record.queue_offset, 8),
            _number(record.phys_offset, 8),
            _number(record.sys_flag, 4),
            _number(record.born_ms, 8),
            _host(record.born_host),
            _number(record.store_ms, 8),
            _host(record.store_host),
            _number(record.reconsume_times, 4),
            _number(record.prepared_offset, 8),
            _counted(record.body, 4),
            _counted(record.topic.encode(), 2 if record.magic == layout.MAGIC_V2 else 1),
            _counted(record.property_text, 2),
        ]
    )
    return _number(8 + len(after_magic), 4) + _number(record.magic, 4) + after_magic


def _number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big", signed=True)


def _counted(data: bytes, length_size: int) -> bytes:
    return _number(len(data), length_size) + data


def _host(host: Host) -> bytes:
    return host[0] + _number(host[1], 4)
