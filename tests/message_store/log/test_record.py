"""Decoder and encoder of records: worked examples, damage, and the encoding kernel."""

from __future__ import annotations

import contextlib
import struct
import zlib
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq_common.errors import RecordUnreadable
from message_store import layout
from message_store.kernels import encode
from message_store.log import record as record_module
from message_store.log.batch import PutBatch
from message_store.log.record import Record, decode_record, split_records
from message_store.queues.topic_table import TopicTable
from tests.support.encoded_records import encode_record
from tests.support.stores import LOOPBACK

T0 = 1_700_000_000_000
OUT = 1 << 20
OTHER = ("topic", "text", "real", "times")  # fields of a message that are no columns of a record
TIMES = {
    "out_ms": "TIMER_OUT_MS",
    "due_ms": "DUEMQ_DUE_MS",
    "enqueue_ms": "TIMER_ENQUEUE_MS",
    "dequeue_ms": "TIMER_DEQUEUE_MS",
}

# The record that a 4.9.8 broker stores for a message of level 3 (10 s) to topic T1, queue 2.
SCHEDULE_RECORD = bytes.fromhex(
    "0000009d daa320a7 3610a686 00000002 00000000 0000000000000000 0000000000000000 00000000"
    "0000018bcfe567fb 7f000001 0000c350 0000018bcfe56800 7f000001 00002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 13 5343484544554c455f544f5049435f58585858"
    "002a 544147530154616741 02 44454c41590133 02"
    "5245414c5f544f504943015431 02 5245414c5f5149440132"
)
# A plain message: queue 3, offset 7, log offset 123456, keys and tags.
PLAIN_RECORD = bytes.fromhex(
    "00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 000000000001e240 00000000"
    "0000018bcfe56800 0a000009 000015b3 0000018bcfe56864 0a000001 00002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 01 54 0012 4b455953016b3102 54414753015461674102"
)


def plain_record(**changes: bytes | int) -> bytes:
    fields = {
        "topic": "T",
        "queue_id": 3,
        "body": b"hello",
        "property_text": b"KEYS\x01k1\x02TAGS\x01TagA\x02",
        "queue_offset": 7,
        "phys_offset": 123_456,
        "born_ms": T0,
        "born_host": (bytes([10, 0, 0, 9]), 5_555),
        "store_ms": T0 + 100,
        "store_host": (bytes([10, 0, 0, 1]), 10_911),
    }
    return encode_record(**(fields | changes))


def test_plain_record_bytes() -> None:
    assert plain_record() == PLAIN_RECORD


def test_schedule_record_bytes() -> None:
    text = b"TAGS\x01TagA\x02DELAY\x013\x02REAL_TOPIC\x01T1\x02REAL_QID\x012"
    made = encode_record(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=2,
        body=b"hello",
        property_text=text,
        queue_offset=0,
        phys_offset=0,
        born_ms=T0 - 5,
        born_host=(b"\x7f\0\0\1", 50_000),
        store_ms=T0,
        store_host=(b"\x7f\0\0\1", 10_911),
    )
    assert made == SCHEDULE_RECORD
    assert len(made) == 157


def test_the_kernel_redirects_as_5_3_3_does() -> None:
    batch, topics = PutBatch(), TopicTable()
    row = batch.rows[
        batch.add(
            topic_index=topics.add("SCHEDULE_TOPIC_XXXX"),
            queue_id=2,
            body=b"hello",
            properties=b"TAGS\x01TagA\x02DELAY\x013",
            born_ms=T0 - 5,
            born_host=(b"\x7f\0\0\1", 50_000),
            store_host=LOOPBACK,
        )
    ]
    row["real_topic_index"], row["real_queue_id"] = topics.add("T1"), 2
    row["due_delay_ms"] = 10_000
    made = encoded(batch, topics, 0, T0)
    size, properties = 158, 0x2B  # one trailing separator more than in 4.9.8
    expected = (
        SCHEDULE_RECORD[4:113] + properties.to_bytes(2, "big") + SCHEDULE_RECORD[115:] + b"\2"
    )
    assert made == size.to_bytes(4, "big") + expected
    assert row["tags_code"] == T0 + 10_000


def test_fields_round_trip() -> None:
    record = decode_record(memoryview(PLAIN_RECORD), 123_456)
    assert (record.topic, record.queue_id, record.queue_offset) == ("T", 3, 7)
    assert record.born_host == (bytes([10, 0, 0, 9]), 5_555)
    assert record.store_host == (bytes([10, 0, 0, 1]), 10_911)
    assert (record.born_ms, record.store_ms) == (T0, T0 + 100)
    assert record.body_crc == 0x3610A686
    assert record.properties == {"KEYS": "k1", "TAGS": "TagA"}


def test_bytes_after_the_record_are_unchanged() -> None:
    assert decode_record(memoryview(PLAIN_RECORD + b"next"), 0).body == b"hello"


def test_a_record_cut_anywhere_is_refused() -> None:
    for cut in range(len(PLAIN_RECORD)):
        with pytest.raises(RecordUnreadable):
            decode_record(memoryview(PLAIN_RECORD[:cut]), 0)


@pytest.mark.parametrize(
    ("at", "new", "why"),
    [
        (0, "00000074", "its size is 116 bytes; 91 to 115 bytes"),
        (0, "00000072", "properties needs 18 bytes, 17 are left"),
        (0, "0000005a", "its size is 90 bytes"),
        (0, "80000000", "its size is -2147483648 bytes"),
        (4, "cbd43194", "magic 0xCBD43194 is not a record's"),
        (4, "daa320ab", "topic needs 340 bytes"),
        (36, "00000010", "needs .* bytes|negative"),
        (84, "ffffffff", r"length of its body is negative \(-1\)"),
        (84, "7fffffff", "body needs 2147483647 bytes"),
        (93, "00", "its topic is empty"),
        (93, "80", r"length of its topic is negative \(-128\)"),
        (95, "8000", r"length of its properties is negative \(-32768\)"),
        (95, "0011", "fields end at byte 114 of 115"),
        (88, "69", "does not match its CRC"),
    ],
)
def test_damage_is_reported(at: int, new: str, why: str) -> None:
    piece = bytes.fromhex(new)
    data = PLAIN_RECORD[:at] + piece + PLAIN_RECORD[at + len(piece) :]
    with pytest.raises(RecordUnreadable, match=why) as raised:
        decode_record(memoryview(data), 4_711)
    assert raised.value.phys_offset == 4_711


def test_the_crc_is_only_checked_on_request() -> None:
    data = PLAIN_RECORD[:88] + b"j" + PLAIN_RECORD[89:]
    assert decode_record(memoryview(data), 0, check_crc=False).body == b"jello"


@given(st.binary(max_size=300))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        record = decode_record(memoryview(data), 0)
    except RecordUnreadable:
        return
    assert record_module.encode_record(record) == data[: record.total_size]


@given(st.integers(0, len(PLAIN_RECORD) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_one_field(at: int, flip: int) -> None:
    data = bytearray(PLAIN_RECORD)
    data[at] ^= flip
    with contextlib.suppress(RecordUnreadable):
        record = decode_record(memoryview(data), 0, check_crc=False)
        assert record.total_size == len(data)


# -- the compiled encoder, side by side ----------------------------------------------------------

i4 = st.integers(-(1 << 31), (1 << 31) - 1)
i8 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.tuples(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 65_535),
)
names = st.sampled_from(["T", "%RETRY%" + "g" * 120, "%RETRY%" + "g" * 121, "x" * 255, "a-b_c|d"])
texts = st.sampled_from([b"", b"KEYS\x01k\x02", b"KEYS\x01k"]) | st.binary(max_size=60)
messages = st.fixed_dictionaries(
    {
        "topic": names,
        "queue_id": st.integers(0, 9),
        "body": st.binary(max_size=80),
        "text": texts,
        "born_ms": i8,
        "born_host": hosts,
        "store_host": hosts,
        "flag": i4,
        "sys_flag": st.sampled_from([0, 1, 8, 0x300]),
        "reconsume_times": i4,
        "prepared_offset": i8,
        "real": st.none() | st.tuples(names, st.integers(0, 70_000)),
        "times": st.none() | st.tuples(*[st.just(-1) | st.integers(0, (1 << 63) - 1)] * 4),
    }
)


def encoded(batch: PutBatch, topics: TopicTable, log_start: int, store_ms: int) -> bytes:
    """Return the bytes that the kernels write for a batch."""
    while True:
        at, total, refused = encode.prepare(
            batch.rows, batch.count, batch.staging, topics.arrays, 1 << 20, 1 << 20
        )
        if at == batch.count:
            break
        topics.slot(
            int(batch.rows[at]["topic_index"]), int(batch.rows[at]["queue_id"]), create=True
        )
    assert not refused
    out = np.full(OUT, 0xEE, np.uint8)
    span = (0, batch.count)
    end, size, _ = encode.encode(
        batch.rows, span, batch.staging, topics.arrays, out, log_start, OUT, store_ms
    )
    assert (end, size) == (batch.count, total)
    assert (out[size:] == 0xEE).all()
    return out[:size].tobytes()


def fill(batch: PutBatch, topics: TopicTable, messages_: list[dict[str, Any]]) -> None:
    for message in messages_:
        at = batch.add(
            topic_index=topics.add(message["topic"]),
            properties=message["text"],
            **{k: v for k, v in message.items() if k not in OTHER},
        )
        for name, value in zip(TIMES, message["times"] or (), strict=False):
            batch.rows[at][name] = value
        if message["real"]:
            batch.rows[at]["real_topic_index"] = topics.add(message["real"][0])
            batch.rows[at]["real_queue_id"] = message["real"][1]


def written_text(message: dict[str, Any]) -> bytes:
    """Return the property text as stored, by the rule of `put_properties`."""
    text, real = message["text"], message["real"]
    times = dict(zip(TIMES.values(), message["times"] or (), strict=False))
    added = "".join(f"{name}\x01{ms}\x02" for name, ms in times.items() if ms >= 0)
    if real is not None:
        added += f"REAL_TOPIC\x01{real[0]}\x02REAL_QID\x01{real[1]}\x02"
    if added and text and not text.endswith(b"\x02"):
        text += b"\x02"
    return bytes(text + added.encode())


@given(st.lists(messages, min_size=1, max_size=6), st.integers(0, 1 << 50), st.integers(0, 1 << 45))
def test_kernel_and_python_encoder_write_the_same_bytes(
    messages_: list[dict[str, Any]], log_start: int, store_ms: int
) -> None:
    batch, topics = PutBatch(2, 1), TopicTable()
    fill(batch, topics, messages_)
    made = encoded(batch, topics, log_start, store_ms)
    expected, numbers = b"", dict[Any, Any]()
    for message in messages_:
        queue = (message["topic"], message["queue_id"])
        queue_offset = numbers.setdefault(queue, 0)
        numbers[queue] += 1
        expected += encode_record(
            topic=message["topic"],
            property_text=written_text(message),
            queue_offset=queue_offset,
            phys_offset=log_start + len(expected),
            store_ms=store_ms,
            **{k: v for k, v in message.items() if k not in OTHER},
        )
    assert made == expected


@pytest.mark.parametrize("kind", [layout.SYS_PREPARED, layout.SYS_ROLLBACK])
def test_prepared_and_rollback_records_take_no_queue_offset(kind: int) -> None:
    batch, topics = PutBatch(), TopicTable()
    index = topics.add("T")
    for sys_flag in (0, kind, 0):
        batch.add(
            topic_index=index,
            queue_id=0,
            body=b"",
            properties=b"",
            born_ms=0,
            born_host=LOOPBACK,
            store_host=LOOPBACK,
            sys_flag=sys_flag,
        )
    encoded(batch, topics, 0, 1)
    assert batch.filled["queue_offset"].tolist() == [0, 0, 1]


def test_an_empty_body_has_crc_0() -> None:
    assert zlib.crc32(b"") == 0
    assert decode_record(memoryview(plain_record(body=b"")), 0).body_crc == 0


WHOLE = {bits: st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64)}
ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
FIELDS = st.fixed_dictionaries(
    {
        "topic": st.one_of(st.text(max_size=8), st.sampled_from(["x" * 127, "x" * 128, "é" * 64])),
        "queue_id": WHOLE[32],
        "body": st.binary(max_size=20),
        "property_text": st.binary(max_size=20),
        "queue_offset": WHOLE[64],
        "phys_offset": WHOLE[64],
        "born_ms": WHOLE[64],
        "born_host": st.tuples(ADDRESSES, WHOLE[32]),
        "store_ms": WHOLE[64],
        "store_host": st.tuples(ADDRESSES, WHOLE[32]),
        "flag": WHOLE[32],
        "sys_flag": WHOLE[32],
        "reconsume_times": WHOLE[32],
        "prepared_offset": WHOLE[64],
    }
)
MODULE = "message_store.log.record"


class NoHead:
    """A packer that no record fits."""

    def pack(self, *values: int) -> None:
        raise struct.error


def decoded(data: bytes, *, by_field: bool) -> str | Record:
    """Return the record, or why there is none."""
    with contextlib.ExitStack() as stack:
        if by_field:
            stack.enter_context(patch(f"{MODULE}._decode_plain", lambda data, size: None))
        try:
            return decode_record(memoryview(data), 0, check_crc=False)
        except RecordUnreadable as error:
            return str(error)


@given(FIELDS)
def test_the_plain_form_is_encoded_as_field_by_field(fields: dict[str, Any]) -> None:
    with patch(f"{MODULE}._HEAD", NoHead()):
        expected = encode_record(**fields)
    assert encode_record(**fields) == expected


@given(FIELDS, st.data())
def test_the_plain_form_is_decoded_as_field_by_field(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    found = bytearray(encode_record(**fields))
    for _ in range(data.draw(st.integers(0, 2))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    found = bytes(found[: data.draw(st.integers(len(found) - 3, len(found)))])  # type: ignore[assignment]
    assert decoded(found, by_field=False) == decoded(found, by_field=True)


@pytest.mark.parametrize("name", ["queue_id", "flag", "queue_offset", "born_ms", "reconsume_times"])
def test_a_number_that_does_not_fit_is_refused(name: str) -> None:
    for value in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            plain_record(**{name: value})
    with pytest.raises(OverflowError):
        plain_record(property_text=b"x" * 32_768)


@given(st.lists(FIELDS.filter(lambda fields: fields["topic"]), max_size=4))
def test_records_without_gaps_are_split(all_fields: list[dict[str, Any]]) -> None:
    records = [encode_record(**fields) for fields in all_fields]
    found = split_records(b"".join(records))
    assert [record.body for record in found] == [fields["body"] for fields in all_fields]
    assert [record_module.encode_record(record) for record in found] == records


def test_a_cut_or_damaged_record_is_not_split() -> None:
    data = PLAIN_RECORD + SCHEDULE_RECORD
    assert len(split_records(data)) == 2
    assert split_records(b"") == []
    for cut in range(len(PLAIN_RECORD) + 1, len(data)):
        with pytest.raises(RecordUnreadable):
            split_records(data[:cut])
    with pytest.raises(RecordUnreadable, match="CRC"):
        split_records(data.replace(b"hello", b"jello"))
