"""Conversion of records to v5 messages, for any record that a producer can store."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duemq.v5.checks import TIME_MS_MAX
from duemq.v5.messages import INT32_MAX, message_of, message_types
from duemq.v5.protocol import definition as v2
from message_store.layout import SYS_COMPRESSED
from message_store.log.properties import ENTRY_END, NAME_END
from message_store.log.record import Record

HOST = bytes([10, 0, 0, 7]), 4_711
PLAIN = Record(
    total_size=100,
    magic=0,
    body_crc=0,
    queue_id=3,
    flag=0,
    queue_offset=5,
    phys_offset=640,
    sys_flag=0,
    born_ms=1_000,
    born_host=HOST,
    store_ms=2_000,
    store_host=HOST,
    reconsume_times=1,
    prepared_offset=0,
    body=b"body",
    topic="T",
    property_text=b"",
)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), INT32_MAX)
HOSTS = st.tuples(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), INT32)
NAMES = st.sampled_from(
    [
        "TIMER_DELIVER_MS",
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "__BORNHOST",
        "__SHARDINGKEY",
        "TRAN_MSG",
        "TRACE_CONTEXT",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "own",
        "",
    ]
)
VALUES = st.binary(max_size=20) | st.sampled_from(["²".encode(), b"9" * 30, b"-1", b"", b"  "])


def record(**properties: str) -> Record:
    text = "".join(f"{k}{NAME_END}{v}{ENTRY_END}" for k, v in properties.items())
    return replace(PLAIN, property_text=text.encode())


@st.composite
def records(draw: st.DrawFn) -> Record:
    pairs = draw(st.dictionaries(NAMES, VALUES, max_size=6))
    text = b"".join(
        name.encode() + NAME_END.encode() + value + ENTRY_END.encode()
        for name, value in pairs.items()
    )
    return replace(
        PLAIN,
        queue_id=draw(INT32),
        queue_offset=draw(INT64),
        sys_flag=draw(INT32),
        born_ms=draw(INT64),
        store_ms=draw(INT64),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        body=draw(st.binary(max_size=10)),
        property_text=text,
    )


@given(records())
def test_any_record_converts_to_a_message(found: Record) -> None:
    made = message_of(found, topic="T", receipt_handle="h")
    again = v2.Message.FromString(made.SerializeToString())
    assert (again.body, again.system_properties.receipt_handle) == (found.body, "h")


@pytest.mark.parametrize(
    ("born_ms", "expected_ms"), [(-5, 0), (7, 7), (1 << 62, TIME_MS_MAX)], ids=str
)
def test_times_are_clamped_to_the_range_of_the_protocol(born_ms: int, expected_ms: int) -> None:
    found = replace(record(TIMER_DELIVER_MS="9" * 30), born_ms=born_ms, store_ms=born_ms)
    system = message_of(found, topic="T").system_properties
    assert system.born_timestamp.ToMilliseconds() == expected_ms
    assert system.store_timestamp.ToMilliseconds() == expected_ms
    assert system.delivery_timestamp.ToMilliseconds() == TIME_MS_MAX


def test_attempts_are_counted_from_one() -> None:
    assert message_of(PLAIN, topic="T").system_properties.delivery_attempt == 2
    last = replace(PLAIN, reconsume_times=INT32_MAX)
    assert message_of(last, topic="T").system_properties.delivery_attempt == INT32_MAX


@pytest.mark.finding("3C3")
def test_system_properties_are_not_user_properties() -> None:
    """Apache's proxy also hides only the names in STRING_HASH_SET."""
    found = record(UNIQ_KEY="id", TAGS="t", KEYS="a b", own="1", POP_CK="x", __SHARDINGKEY="g")
    made = message_of(found, topic="T")
    system = made.system_properties
    assert dict(made.user_properties) == {"own": "1", "__SHARDINGKEY": "g"}
    visible = {"__transactionId__": "t", "TRACE_CONTEXT": "c", "TRANSACTION_CHECK_TIMES": "1"}
    shown = message_of(record(**visible, TRAN_MSG="true", BORN_TIMESTAMP="1"), topic="T")
    assert dict(shown.user_properties) == visible
    assert (system.message_id, system.tag, list(system.keys)) == ("id", "t", ["a", "b"])
    assert system.message_group == "g"
    assert (system.born_host, system.store_host) == ("10.0.0.7:4711", "10.0.0.7:4711")


def test_a_message_without_an_id_gets_its_offset_id() -> None:
    assert message_of(PLAIN, topic="T").system_properties.message_id == (
        "0A0000070000126700000000000002" + "80"
    )


@pytest.mark.parametrize("kind", [0, 1 << 8, 2 << 8, 3 << 8], ids=["none", "lz4", "zstd", "zlib"])
def test_a_compressed_body_is_not_decompressed(kind: int) -> None:
    """Clients detect the compression type, as with Apache's proxy."""
    body = gzip.compress(b"body")
    found = replace(PLAIN, body=body, sys_flag=SYS_COMPRESSED | kind)
    made = message_of(found, topic="T")
    digest = made.system_properties.body_digest
    assert (made.body, made.system_properties.body_encoding) == (body, v2.GZIP)
    assert (digest.type, digest.checksum) == (v2.MD5, hashlib.md5(body).hexdigest().upper())
    assert message_of(PLAIN, topic="T").system_properties.body_encoding == v2.IDENTITY


@pytest.mark.parametrize(
    ("properties", "kinds"),
    [
        ({}, [v2.NORMAL]),
        ({"__SHARDINGKEY": "g"}, [v2.FIFO]),
        ({"DELAY": "1", "__SHARDINGKEY": "g"}, [v2.DELAY]),
        ({"TIMER_DELIVER_MS": "1"}, [v2.DELAY]),
        ({"TRAN_MSG": "true", "DELAY": "1"}, [v2.TRANSACTION]),
        ({"TRAN_MSG": "false"}, [v2.NORMAL]),
        ({"_SYS_MSG_PRIORITY_": "3"}, [v2.PRIORITY]),
        ({"_SYS_MSG_PRIORITY_": "3", "DELAY": "1"}, [v2.DELAY, v2.PRIORITY]),
        ({"_SYS_MSG_PRIORITY_": "3", "__SHARDINGKEY": "g"}, [v2.FIFO]),
        ({"_SYS_MSG_PRIORITY_": "3", "TRAN_MSG": "true"}, [v2.TRANSACTION]),
    ],
)
def test_the_types_of_a_message(properties: dict[str, str], kinds: list[int]) -> None:
    assert list(message_types(properties)) == kinds
