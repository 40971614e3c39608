"""Byte layouts compared with worked examples, and the conversion of the byte order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.text import java_hash
from message_store import layout
from message_store.layout import PRE_BLANK_SIZE
from message_store.log.offset_id import decode_offset_id, encode_offset_id

T0 = 1_700_000_000_000
BIG_ENDIAN = [
    layout.RECORD_HEAD,
    layout.BLANK_RECORD,
    layout.CQ_UNIT,
    layout.INDEX_HEADER,
    layout.INDEX_ITEM,
    layout.CHECKPOINT,
]
NATIVE = [layout.PUT, layout.SCANNED, layout.KEYED, layout.UNIT]


@pytest.mark.parametrize(
    ("unit", "data"),
    [
        ((0, 157, T0 + 10_000), "0000000000000000 0000009d 0000018bcfe58f10"),  # level 3, 10 s
        ((0, PRE_BLANK_SIZE, 0), "0000000000000000 7fffffff 0000000000000000"),
        ((4_096, 300, java_hash("TagA")), "0000000000001000 0000012c 000000000027a807"),
        ((4_096, 300, java_hash("refund")), "0000000000001000 0000012c ffffffffc847df78"),
    ],
)
def test_consume_queue_units(unit: tuple[int, int, int], data: str) -> None:
    assert layout.packer(layout.CQ_UNIT).pack(*unit) == bytes.fromhex(data)
    (read,) = np.frombuffer(bytes.fromhex(data), layout.CQ_UNIT).tolist()
    assert read == unit


def test_the_blank_record() -> None:
    packed = layout.packer(layout.BLANK_RECORD).pack(4_096, layout.MAGIC_BLANK)
    assert packed == bytes.fromhex("00001000 cbd43194")


@pytest.mark.parametrize(
    ("magic", "word"),
    [
        (layout.MAGIC_V1, 0xDAA320A7),
        (layout.MAGIC_V2, 0xDAA320AB),
        (layout.MAGIC_BLANK, 0xCBD43194),
    ],
)
def test_magics(magic: int, word: int) -> None:
    assert magic & 0xFFFF_FFFF == word


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (b"\x7f\0\0\1", "7F00000100002A9F0000000000001234"),
        (bytes(15) + b"\1", "0000000000000000000000000000000100002A9F0000000000001234"),
    ],
)
def test_offset_message_ids(address: bytes, text: str) -> None:
    assert encode_offset_id(address, 10_911, 0x1234) == text
    assert decode_offset_id(text)[1:] == (10_911, 0x1234)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("magic", 4),
        ("body_crc", 8),
        ("queue_id", 12),
        ("flag", 16),
        ("queue_offset", 20),
        ("phys_offset", 28),
        ("sys_flag", 36),
        ("born_ms", 40),
        ("born_ip", 48),
        ("store_ms", 56),
        ("store_ip", 64),
        ("reconsume_times", 72),
        ("prepared_offset", 76),
        ("body_len", 84),
    ],
)
def test_offsets_in_a_record_head(name: str, at: int) -> None:
    assert layout.RECORD_HEAD.fields is not None
    assert layout.RECORD_HEAD.fields[name][1] == at


@pytest.mark.parametrize("kind", BIG_ENDIAN, ids=lambda kind: str(kind.names[0]))
def test_disk_layouts_are_big_endian_and_packed(kind: np.dtype) -> None:
    assert kind.fields is not None
    assert {field[0].byteorder for field in kind.fields.values()} == {">"}
    assert kind.itemsize == sum(field[0].itemsize for field in kind.fields.values())


@pytest.mark.parametrize("kind", NATIVE, ids=lambda kind: str(kind.names[0]))
def test_columns_are_native_and_aligned(kind: np.dtype) -> None:
    assert kind.isnative
    assert kind.fields is not None
    assert all(at % part.itemsize == 0 for part, at, *_ in kind.fields.values())


@given(st.sampled_from(BIG_ENDIAN), st.data())
def test_the_conversion_keeps_every_value(kind: np.dtype, data: st.DataObject) -> None:
    block = data.draw(st.binary(min_size=kind.itemsize * 3, max_size=kind.itemsize * 3))
    read = np.frombuffer(block, kind)
    native = layout.native_columns(read)
    assert native.dtype.isnative
    assert native.tolist() == read.tolist()
    assert b"".join(layout.packer(kind).pack(*row) for row in native.tolist()) == block
