"""Kernels that check a store, compared with the Python decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.errors import RecordUnreadable
from duemq_common.text import index_hash, java_hash
from message_store import layout
from message_store.kernels import index as index_kernels
from message_store.kernels import verify as kernels
from message_store.kernels.scan import read_frame
from message_store.log.record import Record, decode_record
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK

BASE = 4_096
T0 = 1_700_000_000_000
SIZE = 600


def record(phys_offset: int, **changes: Any) -> bytes:
    fields = {
        "topic": "T",
        "queue_id": 3,
        "body": b"body",
        "property_text": b"TAGS\1a\2KEYS\1k l\2",
        "queue_offset": 7,
        "born_ms": T0,
        "born_host": LOOPBACK,
        "store_ms": T0,
        "store_host": LOOPBACK,
    }
    return encode_record(phys_offset=phys_offset, **(fields | changes))


def decoded(data: bytes, pos: int) -> Record | None:
    """Return the record at `pos` if it contains its own position."""
    try:
        found = decode_record(memoryview(data)[pos:], BASE + pos, check_crc=False)
    except RecordUnreadable:
        return None
    return found if found.phys_offset == BASE + pos else None


placed = st.lists(
    st.tuples(st.integers(0, SIZE), st.sampled_from(["good", "moved", "cut", "magic", "zeros"])),
    max_size=6,
)


@given(st.binary(max_size=80), placed, st.integers(0, SIZE))
def test_the_next_record_is_found(noise: bytes, pieces: list[tuple[int, str]], start: int) -> None:
    data = bytearray(noise * 8)[:SIZE].ljust(SIZE, b"\0")
    for pos, kind in pieces:
        piece = record(BASE + pos + (kind == "moved"))
        piece = piece[:50] if kind == "cut" else piece[4:8] if kind == "magic" else piece
        piece = bytes(60) if kind == "zeros" else piece
        data[pos : pos + len(piece)] = piece[: max(SIZE - pos, 0)]
    scratch = np.zeros(1, layout.SCANNED)
    # without padding: a byte read past the end would be one of the guard
    guarded = np.frombuffer(bytes(data) + record(0)[:40], np.uint8)
    found = kernels.find_record(guarded, start, SIZE, BASE, scratch[0])
    expected = (pos for pos in range(start, SIZE) if decoded(bytes(data), pos))
    assert found == next(expected, -1)


UNIT = {"phys_offset": BASE + 10, "tags_code": java_hash("a")}
LEVEL = b"TAGS\1a\2DELAY\x013\2"


@pytest.mark.parametrize(
    ("changes", "unit", "is_due", "expected"),
    [
        ({}, {}, 0, kernels.GOOD),
        ({}, {"phys_offset": BASE + 11}, 0, kernels.NO_RECORD),
        ({}, {"phys_offset": BASE - 1}, 0, kernels.ELSEWHERE),
        ({}, {"phys_offset": BASE + 400}, 0, kernels.ELSEWHERE),
        ({}, {"phys_offset": BASE + 399}, 0, kernels.NO_RECORD),
        ({}, {"size": 1}, 0, kernels.WRONG_SIZE),
        ({"topic": "U"}, {}, 0, kernels.WRONG_TOPIC),
        ({"topic": "TT"}, {}, 0, kernels.WRONG_TOPIC),
        ({"queue_id": 2}, {}, 0, kernels.WRONG_QUEUE),
        ({"queue_offset": 8}, {}, 0, kernels.WRONG_NUMBER),
        ({}, {"tags_code": 5}, 0, kernels.WRONG_CODE),
        ({}, {"tags_code": -(1 << 62)}, 0, kernels.GOOD),  # an address in ConsumeQueueExt
        ({"property_text": b""}, {"tags_code": 0}, 0, kernels.GOOD),
        ({"property_text": LEVEL}, {"tags_code": T0}, 1, kernels.GOOD),
        ({"property_text": LEVEL}, {"tags_code": T0 - 1}, 1, kernels.WRONG_CODE),
        ({"property_text": LEVEL}, {}, 1, kernels.WRONG_CODE),
        ({"property_text": LEVEL}, {}, 0, kernels.GOOD),
        ({"property_text": b"TAGS\1a"}, {}, 1, kernels.GOOD),
    ],
)
def test_a_unit_is_compared_with_its_record(
    changes: dict[str, Any], unit: dict[str, int], is_due: int, expected: int
) -> None:
    piece = record(BASE + 10, **changes)
    data = np.frombuffer(bytes(10) + piece + bytes(600), np.uint8)
    units = np.zeros(2, layout.UNIT)
    for name, value in ({"size": len(piece)} | UNIT | unit).items():
        units[1][name] = value
    out = np.full(2, kernels.ELSEWHERE, np.uint8)
    scratch = np.zeros(1, layout.SCANNED)
    topic = np.frombuffer(b"T", np.uint8)
    kernels.check_units(units, data, (BASE, BASE + 400), topic, (3, 6, is_due), scratch, out)
    assert out.tolist() == [kernels.ELSEWHERE, expected]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({}, kernels.GOOD),
        ({"key_hash": abs(java_hash("T#l"))}, kernels.GOOD),
        ({"key_hash": abs(java_hash("T#m"))}, kernels.NO_KEY),
        ({"key_hash": abs(java_hash("T#T#a"))}, kernels.GOOD),  # as Apache 5.5 indexes tags
        ({"key_hash": abs(java_hash("T#T#b"))}, kernels.NO_KEY),
        ({"phys_offset": BASE + 11}, kernels.NO_RECORD),
        ({"phys_offset": BASE - 1}, kernels.ELSEWHERE),
        ({"store_ms": T0 - 999}, kernels.GOOD),
        ({"store_ms": T0 - 1_000}, kernels.WRONG_TIME),
        ({"store_ms": T0 + 1}, kernels.WRONG_TIME),
        ({"store_ms": T0 + 1, "at_begin": 1}, kernels.GOOD),  # the clock was set back
        ({"store_ms": T0 - 1_000, "at_begin": 1}, kernels.WRONG_TIME),
    ],
)
def test_an_item_is_compared_with_its_record(item: dict[str, int], expected: int) -> None:
    data = np.frombuffer(bytes(10) + record(BASE + 10) + bytes(100), np.uint8)
    items = np.zeros(1, layout.KEYED)
    whole = {"phys_offset": BASE + 10, "key_hash": abs(java_hash("T#k")), "store_ms": T0} | item
    for name, value in whole.items():
        items[0][name] = value
    out = np.full(1, kernels.ELSEWHERE, np.uint8)
    scratch, keys = np.zeros(1, layout.SCANNED), np.zeros(20_000, layout.KEYED)
    kernels.check_items(items, data, (BASE, BASE + data.size), scratch, keys, out)
    assert out.tolist() == [expected]


@given(st.text("tüT€", min_size=1), st.text("aé#", max_size=9), st.booleans())
def test_the_key_of_a_tag_is_that_of_the_text(topic: str, tag: str, is_first: bool) -> None:
    entries = [f"TAGS\1{tag}\2", "TAGSX\1x\2"]
    text = "".join(entries if is_first else reversed(entries)).encode()
    data = np.frombuffer(record(BASE, topic=topic, property_text=text), np.uint8)
    row = np.zeros(1, layout.SCANNED)[0]
    assert read_frame(data, 0, data.size, BASE, row) > 0
    assert kernels.tag_key(data, 0, row) == (index_hash(f"{topic}#T#{tag}") if tag else -1)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(10, 60), st.integers(-1, 25)), max_size=3),
)
def test_reachable_items_are_those_that_a_query_finds(
    hashes: list[int], slots: int, changes: list[tuple[int, int]]
) -> None:
    words = np.zeros(10 + slots + 30 * 5, np.uint32)
    keys = np.zeros(len(hashes), layout.KEYED)
    keys["key_hash"], keys["phys_offset"] = hashes, np.arange(len(hashes))
    count = index_kernels.put_keys(words, slots, 30, keys) + 1
    for at, value in changes:
        words[min(at, words.size - 1)] = index_kernels.swap(value)
    data, reached = words.view(np.uint8), np.zeros(count, np.uint8)
    used = kernels.mark_chains(data, slots, count, reached)
    heads = np.frombuffer(data, layout.INDEX_SLOT, slots, 40)
    items = np.frombuffer(data, layout.INDEX_ITEM, count, 40 + slots * 4)
    assert used == sum(1 for head in heads if head > 0)
    if not changes:
        assert reached[1:].all()
    for number in np.flatnonzero(reached).tolist():
        item, out = items[number], np.zeros(100, np.int64)
        found = index_kernels.find_key(words, slots, int(item["key_hash"]), (0, 1 << 62), out)
        assert item["phys_offset"] in out[:found] or item["time_diff_s"] < 0
