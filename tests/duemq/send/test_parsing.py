"""Kernels of the ingest, compared with their twins."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.net import codec
from duemq.send import layout
from duemq.send.kernels import header, properties, responses, text
from duemq.send.kernels.ingest import frame_end
from duemq.send.layout import host_column
from duemq.send.responses import response_text, send_fields
from duemq_common.errors import FrameError
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Response
from message_store import layout as store_layout
from message_store.log.batch import PutBatch, property_columns
from message_store.log.offset_id import encode_offset_id
from message_store.queues.topic_table import TopicTable
from tests.support.extended import examples

json_strings = st.text(max_size=60).map(lambda t: json.dumps(t, ensure_ascii=False)[1:-1])
escaped = st.text(max_size=60).map(lambda t: json.dumps(t)[1:-1])
rubbish = st.lists(
    st.sampled_from(
        ["\\", '"', "u", "\\u", "\\ud83d", "\\udE00", "\\u00e9", "\\n", "\\x", "é", "\x1f", "0041"]
    ),
    max_size=12,
).map("".join)


def array(data: bytes) -> Any:
    return np.frombuffer(data or b"\0", np.uint8).copy()


def naive_unescape(data: bytes) -> bytes | None:
    """Return the text of a strict JSON string without its quotes, or None if it is invalid."""
    try:
        return str(json.loads(b'"' + data + b'"', strict=True)).encode()
    except (ValueError, UnicodeError):
        return None


@settings(deadline=None, max_examples=examples(300))
@given(json_strings | escaped | rubbish)
def test_unescape(string: str) -> None:
    data = string.encode()
    check_unescape(data)


@settings(deadline=None, max_examples=examples(300))
@given(st.binary(max_size=12))
def test_unescape_bytes(data: bytes) -> None:
    check_unescape(data)


def check_unescape(data: bytes) -> None:
    expected = naive_unescape(data)
    out = np.full(len(data) + 8, 0xAA, np.uint8)
    end = text.unescape(array(data), 0, len(data), out, 0)
    found = None if end < 0 else out[:end].tobytes()
    assert found == expected
    assert (out[len(data) :] == 0xAA).all()


def naive_plain_run(data: bytes, pos: int) -> int:
    while pos < len(data) and 32 <= data[pos] < 128 and data[pos] not in b'"\\':
        pos += 1
    return pos


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), st.integers(0, 8))
def test_plain_run(data: bytes, pos: int) -> None:
    pos = min(pos, len(data))
    assert text.plain_run(array(data), pos, len(data)) == naive_plain_run(data, pos)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=6) | st.characters(codec="utf-8").map(str.encode))
def test_utf8_size(data: bytes) -> None:
    sizes = [n for n in (2, 3, 4) if is_one_character(data[:n])]
    expected = sizes[0] if data[0] >= 128 and sizes else 0
    assert (text.utf8_size(array(data), 0, len(data)) if data[0] >= 128 else 0) == expected


def is_one_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@settings(deadline=None)
@given(st.from_regex(rb"[-+0-9.eE x]{0,22}", fullmatch=True))
def test_number_end(data: bytes) -> None:
    end = text.number_end(array(data), 0, len(data))
    digits = data[:end].lstrip(b"-")
    if end >= 0:
        assert json.loads(data[:end]) == int(data[:end])
        assert 0 < len(digits) <= 18
        assert end == len(data) or not data[end : end + 1].isdigit()
    else:
        whole = data.lstrip(b"-")[:19]
        assert not whole[:1].isdigit() or whole[:1] == b"0" or len(whole) == 19 or data[:2] == b"--"


scalars = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text("ab1 ", max_size=5)
names = st.sampled_from(["a", "i", "n", "o", "topic", "flag", "bname", "ReqT", "", "code"])
top_names = st.sampled_from(["code", "flag", "opaque", "version", "language"])


@settings(deadline=None, max_examples=examples(200))
@given(st.dictionaries(top_names, scalars), st.none() | st.dictionaries(names, scalars))
def test_scan_header(top: dict[str, Any], fields: dict[str, Any] | None) -> None:
    whole = top if fields is None else top | {"extFields": fields}
    data = json.dumps(whole).encode()
    spans = np.zeros((layout.SLOT_COUNT + 1, 3), np.int64)
    seen = header.scan_header(array(data), 0, len(data), spans)
    expected = {SLOTS[name]: value for name, value in top.items() if name in SLOTS}
    expected |= {field_slot(n): value for n, value in (fields or {}).items() if field_slot(n) >= 0}
    assert {slot for slot in range(layout.SLOT_OTHER) if seen >> slot & 1} == set(expected)
    others = [name for name in fields or {} if field_slot(name) < 0]
    assert bool(seen >> layout.SLOT_OTHER & 1) == bool(others)
    for slot, value in expected.items():
        start, end, kind = spans[slot].tolist()
        token = data[start:end].decode()
        if kind == layout.KIND_TEXT:
            token = f'"{token}"'
        assert json.loads(token) == value


SLOTS = {"code": layout.SLOT_CODE, "flag": layout.SLOT_FLAG, "opaque": layout.SLOT_OPAQUE}


def field_slot(name: str) -> int:
    if name in layout.SEND_FIELDS:
        return layout.SEND_FIELDS.index(name) + layout.SLOT_LONG
    return layout.SEND_LETTERS.find(name) if len(name) == 1 else -1


property_names = st.sampled_from(
    [
        "UNIQ_KEY",
        "TAGS",
        "DELAY",
        "WAIT",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "KEYS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "REAL_TOPIC",
        "INNER_NUM",
        "TIMER_ROLL_TIMES",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "DUEMQ_DUE_MS",
        "DUEMQ_SCHEDULE",
        "DUEMQ_SCHEDULE_CRON",
        "DUEMQ_SCHEDUL",
    ]
)
property_values = st.sampled_from(
    ["false", "true", "5", "-3", "+2", "x", "延é\U0001f600", "a\x01b"]
)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.tuples(property_names, property_values), max_size=6), st.booleans())
def test_scan_properties(pairs: list[tuple[str, str]], ends: bool) -> None:
    joined = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    data = (joined if ends else joined[:-1]).encode()
    fast = PutBatch(2).rows[:1]
    certain = properties.scan_properties(array(data), 0, len(data), fast[0])
    clean = all(v.isascii() and "\x01" not in v for n, v in pairs if n == "UNIQ_KEY")
    named = {name for name, _ in pairs}
    decoded = "TIMER_DEL_UNIQKEY" in named or "UNIQ_KEY" not in named  # in Python
    of_schedule = any(name.startswith("DUEMQ_SCHEDULE") for name in named)
    assert not (certain and of_schedule)
    decoded |= of_schedule
    assert certain or not clean or decoded or twice(pairs)
    if certain:
        slow = property_columns(data, 0)
        for name in ("prop_flags", "tags_hash", "delay_level", "timer_kind", "timer_value"):
            assert fast[0][name] == slow[name], name
        assert fast[0]["uniq_len"] == slow["uniq_len"]


def twice(pairs: list[tuple[str, str]]) -> bool:
    """Python decodes a message with two timer properties of which one is not a number."""
    return sum(name.startswith("TIMER_DEL") for name, _ in pairs) > 1


@settings(deadline=None)
@given(st.binary(max_size=12), st.integers(0, 40))
def test_frame_end(data: bytes, bytes_max: int) -> None:
    end = frame_end(array(data), 0, len(data), bytes_max)
    try:
        frame = codec.next_frame(memoryview(data), 0, len(data), bytes_max=bytes_max)
        assert end == (-1 if frame is None else frame.end)
    except FrameError:
        assert end == -2


HOSTS = [(bytes([127, 0, 0, 1]), 10_911), (bytes(range(240, 256)), 65_535)]


@pytest.mark.parametrize("host", HOSTS, ids=["ipv4", "ipv6"])
@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 3),  # how many connections further on
            st.integers(-(1 << 31), (1 << 31) - 1),
            st.sampled_from([0, 0, 13]),
            st.sampled_from([0, 0, layout.WIRE_ONEWAY, layout.WIRE_DECODED]),
            st.booleans(),
            st.integers(0, (1 << 62)),
            st.none() | st.tuples(st.sampled_from(["T", "Wide" * 60]), st.integers(0, 10**18)),
        ),
        max_size=8,
    ),
    wait=st.sampled_from([responses.WAIT_ANY, responses.WAIT_YES, responses.WAIT_NO]),
    region=st.sampled_from(["DefaultRegion", "r"]),
)
def test_put_responses(host: tuple[bytes, int], rows: list[Any], wait: int, region: str) -> None:
    batch, wire = PutBatch(8), np.zeros(8, layout.WIRE)
    into = response_text(8, region=region, trace_on=True, broker_name="broker-a")
    topics = TopicTable()
    expected: dict[int, bytes] = {}
    connection = 0
    for index, (step, opaque, status, flags, no_wait, offset, timer) in enumerate(rows):
        connection += step
        properties_text = f"UNIQ_KEY\x01U{index}\x02WAIT\x01{str(not no_wait).lower()}\x02".encode()
        batch.add(
            topic_index=0,
            queue_id=0,
            body=b"b",
            properties=properties_text,
            born_ms=0,
            born_host=host,
            store_host=host,
        )
        row = batch.rows[index]
        row["status"], row["phys_offset"], row["queue_offset"] = status, offset, offset // 7
        wire[index] = (opaque, connection, index, flags)
        handle = None
        if timer:
            row["real_topic_index"], row["out_ms"] = topics.add(timer[0]), timer[1]
            time_text = str(timer[1] + 1)
            handle = RecallHandle(timer[0], "broker-a", time_text, f"U{index}").encode()
        waits = responses.WAIT_NO if no_wait else responses.WAIT_YES
        if not status and not flags and wait in (responses.WAIT_ANY, waits):
            fields = send_fields(
                str(index),
                f"U{index}",
                encode_offset_id(*host, offset),
                str(offset // 7),
                region=region,
                trace_on=True,
                recall_handle=handle,
            )
            frame = codec.encode_response(Response(0, None, fields), opaque)[0]
            expected[connection] = expected.get(connection, b"") + bytes(frame)
    names = (topics.arrays.topics, topics.arrays.names)
    into.turn["count"], into.turn["wait"] = len(rows), wait
    size, refused = responses.put_responses(batch.rows, wire, batch.staging, *names, *into)
    assert size == responses.SCRATCH_BYTES + sum(map(len, expected.values()))
    assert refused == sum(row[2] != 0 for row in rows)
    start = responses.SCRATCH_BYTES
    for number in range(connection + 1):
        end = int(into.turn[0]["ends"][number])
        assert into.out[start:end].tobytes() == expected.get(number, b"")
        start = end


def test_put_responses_refuses_an_id_that_is_too_long() -> None:
    batch, wire = PutBatch(1), np.zeros(1, layout.WIRE)
    arrays = TopicTable().arrays
    into = response_text(1, region="r", trace_on=False, broker_name="b")
    batch.add(
        topic_index=0,
        queue_id=0,
        body=b"b",
        properties=b"UNIQ_KEY\x01" + b"U" * 256 + b"\x02",
        born_ms=0,
        born_host=HOSTS[0],
        store_host=HOSTS[0],
    )
    into.turn["count"] = 1
    size, _ = responses.put_responses(
        batch.rows, wire, batch.staging, arrays.topics, arrays.names, *into
    )
    assert size == -1


@pytest.mark.finding("A15")
@pytest.mark.parametrize(
    ("region", "broker_name", "topic", "fits"),
    [
        ("R" * 5_000, "b", None, True),
        ("R", "B" * 127, "T" * 255, True),
        ("R", "B" * 5_000, "T", False),
    ],
)
def test_put_responses_writes_inside_its_buffers(
    region: str, broker_name: str, topic: str | None, fits: bool
) -> None:
    rows, topics, guard = 16, TopicTable(), 1 << 16
    batch, wire = PutBatch(rows), np.zeros(rows, layout.WIRE)
    for index in range(rows):
        batch.add(
            topic_index=0,
            queue_id=0,
            body=b"b",
            properties=b"UNIQ_KEY\x01" + b"U" * 255 + b"\x02",
            born_ms=0,
            born_host=HOSTS[0],
            store_host=HOSTS[0],
        )
        if topic is not None:
            batch.rows[index]["real_topic_index"] = topics.add(topic)
            batch.rows[index]["out_ms"] = 1
    into = response_text(rows, region=region, trace_on=True, broker_name=broker_name)
    into.turn["count"] = rows
    guarded = np.full(into.out.size + guard, 0xAB, np.uint8)
    names = (topics.arrays.topics, topics.arrays.names)
    size, _ = responses.put_responses(
        batch.rows, wire, batch.staging, *names, *into._replace(out=guarded[: into.out.size])
    )
    assert (size >= 0) is fits
    assert (guarded[-guard:] == 0xAB).all()


def test_host_columns_are_those_of_a_batch() -> None:
    for host in HOSTS:
        column = host_column(*host)[0]
        batch = PutBatch(1)
        batch.add(
            topic_index=0,
            queue_id=0,
            body=b"b",
            properties=b"",
            born_ms=0,
            born_host=host,
            store_host=HOSTS[0],
        )
        row = batch.rows[0]
        assert (column["ip_hi"], column["ip_lo"], column["port"]) == (
            row["born_ip_hi"],
            row["born_ip_lo"],
            row["born_port"],
        )
        assert bool(column["ipv6"]) == bool(row["sys_flag"] & store_layout.SYS_BORN_IPV6)
