"""The kernel that scans log bytes, compared with the Python decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.text import java_hash
from message_store import layout
from message_store.kernels import scan
from message_store.log.record import Record
from message_store.queues.topic_table import TopicTable
from tests.message_store.kernels import naive
from tests.support.encoded_records import encode_record
from tests.support.golden_stores import STORES, golden_store

BASE = 4_096
hosts = st.tuples(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65_535)
)
messages = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "U", "%RETRY%" + "g" * 130]),
        "queue_id": st.integers(0, 9),
        "body": st.binary(max_size=40),
        "property_text": st.sampled_from([b"", b"TAGS\x01TagA\x02DELAY\x013", b"KEYS\x01k\x02"]),
        "queue_offset": st.integers(0, 1 << 40),
        "born_ms": st.integers(0, 1 << 42),
        "born_host": hosts,
        "store_ms": st.integers(0, 1 << 42),
        "store_host": hosts,
        "sys_flag": st.sampled_from([0, 1, 8, 12]),
        "prepared_offset": st.integers(-(1 << 62), 1 << 62),
    }
)
COLUMNS = ("phys_offset", "queue_offset", "store_ms", "prepared_offset", "queue_id", "sys_flag")
TAILS = [b"", b"\0" * 30, b"\0\0\1\0\xcb\xd4\x31\x94", b"\xff" * 9, b"\0\0\0\x5b\xda\xa3\x20\xa7"]


def log_of(messages_: list[dict[str, Any]]) -> bytes:
    data = b""
    for message in messages_:
        data += encode_record(phys_offset=BASE + len(data), **message)
    return data


def run_scan(
    data: bytes, base: int = BASE, topics: TopicTable | None = None, room: int = 100
) -> tuple[npt.NDArray[np.void], int, int]:
    """Return (rows, next position, reason for the end) over data between guards."""
    block = np.frombuffer(b"\xda\xa3" + data + b"\xda\xa3\x20\xa7", np.uint8)
    out = np.zeros(room, layout.SCANNED)
    arrays = (topics or TopicTable()).arrays
    count, pos, stop = scan.walk(block, 2, 2 + len(data), base, arrays, True, out)
    return out[:count], pos - 2, stop


def assert_same(
    rows: npt.NDArray[np.void],
    found: list[tuple[Record, bool]],
    data: bytes,
    topics: TopicTable,
    base: int,
) -> None:
    assert len(rows) == len(found)
    for row, (record, fits) in zip(rows, found, strict=True):
        assert [int(row[name]) for name in COLUMNS] == [getattr(record, name) for name in COLUMNS]
        assert row["record_size"] == record.total_size
        assert row["topic_index"] == topics.find(record.topic)
        assert (int(row["tags_hash"]), int(row["delay_level"])) == naive.tags_and_level(
            record.property_text
        )
        assert row["damage"] == (0 if fits else layout.DAMAGE_BODY_CRC)
        start = int(row["phys_offset"]) - base
        for name, expected in [
            ("body", record.body),
            ("topic", record.topic.encode()),
            ("prop", record.property_text),
        ]:
            at = start + int(row[f"{name}_pos"])
            assert data[at : at + int(row[f"{name}_len"])] == expected


@given(st.lists(messages, max_size=8), st.sampled_from(TAILS))
def test_scan(messages_: list[dict[str, Any]], tail: bytes) -> None:
    topics = TopicTable()
    topics.add("T")
    data = log_of(messages_) + tail
    rows, pos, stop = run_scan(data, topics=topics)
    found, wanted_pos, wanted_stop = naive.walk(data, BASE)
    assert (pos, stop) == (wanted_pos, wanted_stop)
    assert_same(rows, found, data, topics, BASE)


@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_scan_of_damaged_records(messages_: list[dict[str, Any]], data: st.DataObject) -> None:
    log = bytearray(log_of(messages_))
    for _ in range(data.draw(st.integers(1, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    made = bytes(log)
    rows, pos, stop = run_scan(made)
    found, wanted_pos, wanted_stop = naive.walk(made, BASE)
    assert (len(rows), pos, stop) == (len(found), wanted_pos, wanted_stop)


@given(st.binary(max_size=200))
def test_scan_of_random_bytes(noise: bytes) -> None:
    rows, pos, stop = run_scan(noise, base=0)
    found, wanted_pos, wanted_stop = naive.walk(noise, 0)
    assert (len(rows), pos, stop) == (len(found), wanted_pos, wanted_stop)


@given(st.lists(messages, min_size=2, max_size=6), st.integers(1, 5))
def test_scan_stops_when_the_output_is_full(messages_: list[dict[str, Any]], room: int) -> None:
    data = log_of(messages_)
    rows, pos, stop = run_scan(data, room=room)
    found, _, _ = naive.walk(data, BASE)
    assert len(rows) == min(room, len(found))
    assert (pos, stop) == (sum(r.total_size for r, _ in found[:room]), scan.STOP_FULL)


@pytest.mark.parametrize("name", [store.name for store in STORES])
def test_scan_of_apaches_logs(name: str) -> None:
    for path in sorted((golden_store(name) / "commitlog").iterdir()):
        data, base, topics = path.read_bytes(), int(path.name), TopicTable()
        rows, pos, stop = run_scan(data, base, topics, 1_000)
        found, wanted_pos, wanted_stop = naive.walk(data, base)
        assert (pos, stop) == (wanted_pos, wanted_stop)
        assert_same(rows, found, data, topics, base)
        assert not rows["damage"].any()


@given(st.lists(messages, min_size=1, max_size=1), st.data())
def test_a_frame_cut_anywhere_is_invalid(
    messages_: list[dict[str, Any]], data: st.DataObject
) -> None:
    record = log_of(messages_)
    cut = data.draw(st.integers(0, len(record) - 1))
    row = np.zeros(1, layout.SCANNED)
    block = np.frombuffer(record, np.uint8)
    assert scan.read_frame(block, 0, cut, BASE, row[0]) == -1 - scan.STOP_INVALID
    assert scan.read_frame(block, 0, len(record), BASE, row[0]) == len(record)
    assert scan.read_frame(block, 0, len(record), BASE + 1, row[0]) < 0


# -- consume queue units ------------------------------------------------------------------------

units = st.tuples(
    st.integers(-1, 1 << 62), st.integers(-1, (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
)


def block_of(units_: list[tuple[int, int, int]]) -> bytes:
    pack = layout.packer(layout.CQ_UNIT).pack
    return b"".join(pack(*unit) for unit in units_)


@given(st.lists(units, max_size=20) | st.binary(max_size=200).map(naive.leading_units))
def test_units_are_read_up_to_the_first_empty_one(units_: list[tuple[int, int, int]]) -> None:
    block = block_of(units_)
    expected = naive.leading_units(block)
    out = np.zeros(len(units_), layout.UNIT)
    data = np.frombuffer(block or b"\0", np.uint8)
    count = scan.read_units(data, out)
    found = [(int(u["phys_offset"]), int(u["size"]), int(u["tags_code"])) for u in out[:count]]
    assert found == expected
    assert scan.valid_units(data, len(units_)) == len(expected)


@given(st.lists(messages, min_size=1, max_size=6), st.data())
def test_records_of_a_queue_are_copied(
    messages_: list[dict[str, Any]], drawn: st.DataObject
) -> None:
    """Units are right, of another size, moved, or of another place in the queue."""
    for at, message in enumerate(messages_):
        message.update(topic="T", queue_id=2, queue_offset=50 + at)
    if drawn.draw(st.booleans()):
        strange = drawn.draw(st.sampled_from(["topic", "queue_id", "queue_offset"]))
        messages_[-1][strange] = {"topic": "U", "queue_id": 3, "queue_offset": 7}[strange]
    data = log_of(messages_)
    found = run_scan(data)[0]
    chosen = np.zeros(found.size, layout.UNIT)
    chosen["phys_offset"], chosen["size"] = found["phys_offset"], found["record_size"]
    chosen["index"] = np.arange(found.size)
    at = drawn.draw(st.integers(0, found.size - 1))
    for name in ("phys_offset", "size", "index"):
        chosen[at][name] += drawn.draw(st.sampled_from([0, 0, 0, 1, -1]))
    named = drawn.draw(st.sampled_from([0, 1]))
    _, total = scan.leading_inside(chosen, BASE, BASE + len(data))
    chosen = chosen[: scan.leading_inside(chosen, BASE, BASE + len(data))[0]]
    out = np.full(total + 2, 0xEE, np.uint8)
    count = scan.copy_records(
        np.frombuffer(data, np.uint8),
        chosen,
        BASE,
        np.frombuffer(b"T", np.uint8),
        (2, 50, named),
        np.zeros(1, layout.SCANNED),
        out,
    )
    expected = naive.records_of(data, BASE, chosen, ("T", 2, 50) if named else None)
    assert count == len(expected)
    copied = b"".join(expected)
    assert out.tobytes()[: len(copied)] == copied
    assert out.tobytes()[total:] == b"\xee\xee"


def test_known_units() -> None:
    block = bytes.fromhex("0000000000000000 0000009d 0000018bcfe58f10")
    assert naive.leading_units(block) == [(0, 157, 1_700_000_010_000)]
    for text, code in [("TagA", "000000000027a807"), ("refund", "ffffffffc847df78")]:
        assert java_hash(text).to_bytes(8, "big", signed=True).hex() == code
    pre_blank = block_of([(0, 0x7FFF_FFFF, 0)])
    assert pre_blank.hex() == "00" * 8 + "7fffffff" + "00" * 8


@given(st.lists(st.tuples(st.integers(90, 130), st.integers(-1, 30)), max_size=8))
def test_leading_units_inside(pairs: list[tuple[int, int]]) -> None:
    chosen = np.array([(start, 0, size, 0) for start, size in pairs], layout.UNIT)
    expected = naive.leading_inside(pairs, 100, 130)
    assert scan.leading_inside(chosen, 100, 130) == (len(expected), sum(expected))


BLANK_SIZE = 0x7FFF_FFFF
sized_units = st.tuples(st.integers(0, 200), st.sampled_from([10, 30, 70, BLANK_SIZE]))


def readable_units(
    block_units: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> int:
    """The twin of `scan.readable_units`."""
    total = 0
    for index, (offset, size) in enumerate(block_units[:count_max]):
        if offset < log_min or size == BLANK_SIZE:
            return -1
        total += size
        if index and total > bytes_max:
            return index
    return min(len(block_units), count_max)


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([10, 30, 70, BLANK_SIZE])),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 60),
    st.integers(1, 9),
    st.integers(1, 300),
)
def test_readable_units(
    block_units: list[tuple[int, int]], log_min: int, count_max: int, bytes_max: int
) -> None:
    block = np.array([(offset, 0, size, 0) for offset, size in block_units], layout.UNIT)
    count = scan.readable_units(block, log_min, BLANK_SIZE, count_max, bytes_max)
    assert count == readable_units(block_units, log_min, count_max, bytes_max)
