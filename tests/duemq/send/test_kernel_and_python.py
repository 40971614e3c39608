"""The kernel and the Python path produce the same rows for every frame that the kernel accepts."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duemq.net import codec
from duemq.send import layout
from duemq_common.errors import FrameError
from duemq_common.request import Request
from message_store.log.properties import encode_properties
from tests.support.extended import examples
from tests.support.send_path import FastWay, SendPath, decode, frame_of, plain_way, row_of

GOLDEN = Path(__file__).parents[2] / "golden" / "frames"
SCALARS = ("queueId", "sysFlag", "flag", "defaultTopicQueueNums", "maxReconsumeTimes")


def check_same(front: SendPath, data: bytes) -> bool:
    """Process one frame in the kernel and in Python; return whether the kernel accepted it."""
    fast = FastWay(front.table)
    stop = fast.take(data)
    if stop == layout.STOP_MALFORMED:
        with pytest.raises(FrameError):
            codec.next_frame(memoryview(data), 0, len(data))
    if not fast.batch.count:
        assert fast.batch.staging_len == 0
        return False
    request = decode(data)
    assert isinstance(request, Request)
    send, batch = plain_way(front, request)
    assert row_of(fast.batch) == row_of(batch)
    assert send.transaction_id == row_of(fast.batch)["unique_id"].decode()
    line = fast.wire[0]
    assert int(line["opaque"]) == request.opaque
    assert int(line["queue_id"]) == send.queue_id
    assert bool(line["flags"] & layout.WIRE_ONEWAY) == request.oneway
    return True


# Random frames.

texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=9)
numbers = st.integers(-5, 40) | st.integers(-(1 << 63), (1 << 63) - 1)
number_texts = numbers.map(str) | st.sampled_from(["", "+1", " 1", "1.0", "007", "x", "9" * 30])
good_pairs = st.one_of(
    st.tuples(st.sampled_from(["KEYS", "TAGS", "note", "é"]), texts.filter(bool)),
    st.tuples(
        st.sampled_from(["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]),
        number_texts.filter(bool),
    ),
    st.tuples(st.just("WAIT"), st.sampled_from(["true", "false", "no"])),
    st.tuples(
        st.sampled_from(
            [
                "TIMER_OUT_MS",
                "TIMER_DEL_UNIQKEY",
                "REAL_TOPIC",
                "REAL_QID",
                "INNER_NUM",
                "TIMER_ROLL_TIMES",
                "DUEMQ_DUE_MS",
            ]
        ),
        texts.filter(bool),
    ),
)
unusual_pairs = good_pairs | st.tuples(
    st.sampled_from(["TRAN_MSG", "MSG_REGION", "CLUSTER", "UNIQ_KEY", "TAGS", ""]),
    texts | st.just("true"),
)


def rarely(draw: st.DrawFn) -> bool:
    return draw(st.sampled_from([False] * 15 + [True]))


@st.composite
def property_texts(draw: st.DrawFn) -> str:
    entries = draw(st.lists(unusual_pairs if rarely(draw) else good_pairs, max_size=5))
    if not rarely(draw):
        entries.insert(draw(st.integers(0, len(entries))), ("UNIQ_KEY", "7F0000010001"))
    text = "".join(f"{name}\x01{value}\x02" for name, value in entries)
    return text[: len(text) - draw(st.integers(0, 1))]


@st.composite
def fields_of_a_send(draw: st.DrawFn, names: str | tuple[str, ...]) -> dict[str, Any]:
    topic = draw(st.sampled_from(["X", "closed", "%RETRY%g"])) if rarely(draw) else "T"
    good = ["p", topic, "TBW102", "4", str(draw(st.integers(0, 3))), "0", "1700000000000", "3"]
    good += [draw(property_texts()), "0", "false", "0", "false", "broker-a"]
    fields: dict[str, Any] = dict(zip(names, good, strict=True))
    if rarely(draw):
        name = draw(st.sampled_from([*names, "bname", "extra", "topic", "b"]))
        fields[name] = draw(number_texts | texts | numbers | st.booleans() | st.none())
    for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        value = fields[name]
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            fields[name] = int(value)
    if rarely(draw):
        del fields[draw(st.sampled_from(sorted(fields)))]
    return fields


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Generate a send's header as any client writes it, sometimes with one invalid part."""
    code = (
        draw(st.sampled_from([320, 11, 300])) if rarely(draw) else draw(st.sampled_from([310, 10]))
    )
    fields = draw(fields_of_a_send(layout.SEND_FIELDS if code == 10 else layout.SEND_LETTERS))
    order = draw(st.permutations(sorted(fields)))
    header: dict[str, Any] = {
        "code": code,
        "extFields": {name: fields[name] for name in order},
        "flag": 1 if rarely(draw) else draw(st.sampled_from([0, 2])),
        "opaque": draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        "language": "é" if rarely(draw) else "JAVA",
        "version": 479,
    }
    keys = draw(st.permutations(sorted(header)))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")]))
    text = json.dumps(
        {key: header[key] for key in keys},
        ensure_ascii=draw(st.booleans()),
        separators=separators,
    )
    return text.encode() + (b" x" if rarely(draw) else draw(st.sampled_from([b"", b"\n"])))


@cache
def front() -> SendPath:
    return SendPath()


@settings(max_examples=examples(200), deadline=None)
@given(headers(), st.binary(min_size=1, max_size=20))
def test_kernel_and_python_add_equal_rows_for_random_sends(header: bytes, body: bytes) -> None:
    check_same(front(), frame_of(header, body))


@settings(max_examples=examples(200), deadline=None)
@given(headers(), st.data())
def test_kernel_and_python_add_equal_rows_for_mutated_sends(
    header: bytes, data: st.DataObject
) -> None:
    frame = bytearray(frame_of(header))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(
            st.integers(0, 255) | st.sampled_from(list(b'"\\{}:,\x00\xff'))
        )
    check_same(front(), bytes(frame))


@settings(max_examples=examples(200), deadline=None)
@given(headers(), st.data(), st.binary(min_size=1, max_size=40))
def test_bytes_after_the_frame_are_not_read(
    header: bytes, data: st.DataObject, tail: bytes
) -> None:
    whole = frame_of(header)
    cut = data.draw(st.integers(0, len(whole)))
    outcomes = []
    for behind in (b"", tail, bytes(64), b'"' * 64, b"9" * 64):
        fast = FastWay(front().table)
        stop = fast.take(whole[:cut], behind)
        outcomes.append((stop, fast.batch.count, fast.batch.staging_len))
    assert len(set(outcomes)) == 1
    if cut < len(whole):
        assert outcomes[0] in [(layout.STOP_INCOMPLETE, 0, 0), (layout.STOP_MALFORMED, 0, 0)]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(headers().map(frame_of), min_size=1, max_size=8))
def test_the_kernel_accepts_each_frame_of_a_stream_or_stops_at_it(frames: list[bytes]) -> None:
    fast = FastWay(front().table)
    stream, taken = b"".join(frames), 0
    while True:
        stop = fast.take(stream)
        taken += fast.batch.count
        stream = stream[fast.pos :]
        if stop != layout.STOP_DECODE:
            break
        stream = stream[len(frames[taken]) :]
        taken += 1
    assert (stop, taken, stream) == (layout.STOP_INCOMPLETE, len(frames), b"")


# What the kernel must take.

JAVA = (
    b'{"code":310,"extFields":{"a":"p","b":"T","c":"TBW102","d":"4","e":"1","f":"0",'
    b'"g":"1700000000000","h":"0","i":"%s","j":"0","k":"false","m":"false"},"flag":0,'
    b'"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":435}'
)
CPP = (
    b'{"code":10,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"a/b+c=","batch":"0",'
    b'"bornTimestamp":"1700000000000","defaultTopic":"TBW102","defaultTopicQueueNums":4,"flag":0,'
    b'"producerGroup":"p","properties":"%s","queueId":1,"reconsumeTimes":"0","sysFlag":0,'
    b'"topic":"T","unitMode":"0"},"flag":0,"language":"CPP","opaque":7,"remark":"","version":63}\n'
)
GO = (
    b'{"code":10,"language":"GO","version":317,"opaque":7,"flag":0,"remark":"","extFields":{'
    b'"batch":"false","queueId":"1","bornTimestamp":"1700000000000","reconsumeTimes":"0",'
    b'"unitMode":"false","maxReconsumeTimes":"0","defaultTopic":"TBW102",'
    b'"defaultTopicQueueNums":"4","properties":"%s","producerGroup":"p","topic":"T","sysFlag":"0",'
    b'"flag":"0"}}'
)
TAKEN = {
    "plain": rb"UNIQ_KEY\u0001U\u0002",
    "no separator at the end": rb"UNIQ_KEY\u0001U",
    "level": rb"DELAY\u00013\u0002UNIQ_KEY\u0001U\u0002WAIT\u0001true\u0002",
    "illegal level": rb"DELAY\u0001three\u0002UNIQ_KEY\u0001U\u0002",
    "timer": rb"TIMER_DELIVER_MS\u00011700000000000\u0002UNIQ_KEY\u0001U\u0002",
    "raw UTF-8": "TAGS\\u0001Tagé延\U0001f600\\u0002UNIQ_KEY\\u0001U\\u0002".encode(),
    "escaped UTF-16": rb"TAGS\u0001\u5ef6\ud83d\ude00\u0002UNIQ_KEY\u0001U\u0002",
    "escapes": rb"note\u0001\"\\\/\b\f\n\r\t\u0002UNIQ_KEY\u0001U\u0002",
    "value with 0x01": rb"note\u0001a\u0001b\u0002UNIQ_KEY\u0001U\u0002",
    "wait": rb"WAIT\u0001false\u0002UNIQ_KEY\u0001U\u0002",
}


@pytest.mark.parametrize("style", [JAVA, CPP, GO], ids=["java", "cpp", "go"])
@pytest.mark.parametrize("properties", TAKEN.values(), ids=TAKEN.keys())
def test_the_kernel_accepts_common_sends(style: bytes, properties: bytes) -> None:
    assert check_same(front(), frame_of(style % properties))


LEFT = {
    "no unique id": rb"KEYS\u0001k\u0002",
    "transaction": rb"TRAN_MSG\u0001true\u0002UNIQ_KEY\u0001U\u0002",
    "no value": rb"KEYS\u0001\u0002UNIQ_KEY\u0001U\u0002",
    "no name": rb"\u0001k\u0002UNIQ_KEY\u0001U\u0002",
    "the broker's own": rb"CLUSTER\u0001c\u0002UNIQ_KEY\u0001U\u0002",
    "unusual unique id": rb"UNIQ_KEY\u0001a b\u0002",
    "lone surrogate": rb"KEYS\u0001\ud800\u0002UNIQ_KEY\u0001U\u0002",
    "bad UTF-8": b"KEYS\\u0001\xff\\u0002UNIQ_KEY\\u0001U\\u0002",
    "bad escape": rb"KEYS\u0001\x\u0002UNIQ_KEY\u0001U\u0002",
    "too long": rb"KEYS\u0001" + b"k" * 32_700 + rb"\u0002UNIQ_KEY\u0001U\u0002",
}


@pytest.mark.parametrize("properties", LEFT.values(), ids=LEFT.keys())
def test_uncommon_properties_are_decoded_in_python(properties: bytes) -> None:
    assert not check_same(front(), frame_of(JAVA % properties))


CHANGES = {
    "unknown topic": (b'"b":"T"', b'"b":"absent"'),
    "closed topic": (b'"b":"T"', b'"b":"closed"'),
    "retry topic": (b'"b":"T"', b'"b":"%RETRY%g"'),
    "queue too high": (b'"e":"1"', b'"e":"4"'),
    "queue below 0": (b'"e":"1"', b'"e":"-1"'),
    "batch": (b'"m":"false"', b'"m":"tRuE"'),
    "batch as literal": (b'"m":"false"', b'"m":true'),
    "no group": (b'"a":"p",', b""),
    "null": (b'"a":"p"', b'"a":null'),
    "twice": (b'"a":"p"', b'"a":"p","a":"q"'),
    "nested": (b'"a":"p"', b'"a":{}'),
    "prepared": (b'"f":"0"', b'"f":"4"'),
    "answer": (b'"flag":0', b'"flag":1'),
    "other code": (b'"code":310', b'"code":11'),
    "no code": (b'"code":310,', b""),
    "escaped key": (b'"a"', b'"\\u0061"'),
    "fraction": (b'"opaque":7', b'"opaque":7.0'),
    "wide opaque": (b'"opaque":7', b'"opaque":2147483648'),
    "rubbish behind": (b'"version":435}', b'"version":435}}'),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES.keys())
def test_uncommon_headers_are_decoded_in_python(old: bytes, new: bytes) -> None:
    header = (JAVA % TAKEN["plain"]).replace(old, new)
    assert header != JAVA % TAKEN["plain"]
    fast = FastWay(front().table)
    assert fast.take(frame_of(header)) == layout.STOP_DECODE
    assert fast.batch.count == 0


def test_binary_headers_and_empty_bodies_are_decoded_in_python() -> None:
    fast = FastWay(front().table)
    header = JAVA % TAKEN["plain"]
    assert fast.take(frame_of(header, b"")) == layout.STOP_DECODE
    assert fast.take(frame_of(header, serialize_type=1)) == layout.STOP_DECODE
    assert fast.take(frame_of(header, bytes(20_001))) == layout.STOP_DECODE
    assert fast.take(frame_of(header, bytes(20_000))) == layout.STOP_INCOMPLETE


@pytest.mark.parametrize("rows", [0, 63, 64])
def test_a_full_batch_stops_the_kernel(rows: int) -> None:
    fast = FastWay(front().table)
    stop = fast.take(frame_of(JAVA % TAKEN["plain"]) * (rows + 1))
    assert fast.batch.count == min(rows + 1, 64)
    assert stop == (layout.STOP_FULL if rows == 64 else layout.STOP_INCOMPLETE)


@pytest.mark.parametrize("born", [(bytes([1, 2, 3, 4]), 5), (bytes(range(16)), 65_535)])
def test_born_hosts_are_stored_in_the_rows(born: tuple[bytes, int]) -> None:
    frame = frame_of(JAVA % TAKEN["plain"])
    fast = FastWay(front().table, born)
    fast.take(frame)
    request = decode(frame)
    assert isinstance(request, Request)
    batch = type(fast.batch)(4)
    front().sender.fill(request, born, batch)
    assert row_of(fast.batch) == row_of(batch)


# Recorded frames.

STYLES = {
    "JAVA": {"ensure_ascii": False, "separators": (",", ":")},
    "CPP": {"ensure_ascii": False, "separators": (",", ":")},
    "GO": {"ensure_ascii": True, "separators": (",", ":")},
}


def golden_frames() -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Yield (place, header, body) of every recorded frame."""
    for path in sorted(GOLDEN.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                entry = json.loads(line)
                body = base64.b64decode(entry.get("body_b64", ""))
                yield f"{path.name}:{number}", entry["header"], body


def as_sent(header: dict[str, Any], body: bytes) -> bytes:
    style = STYLES[header["language"]]
    end = b"\n" if header["language"] == "CPP" else b""
    return frame_of(json.dumps(header, **style).encode() + end, body)


def test_kernel_and_python_add_equal_rows_for_recorded_sends() -> None:
    taken, left = 0, []
    for where, header, body in golden_frames():
        if header["code"] in (10, 310) and not header["flag"] & 1:
            fields = header["extFields"]
            topic = fields.get("b") or fields["topic"]
            if front().topics.find(topic) is None and not topic.startswith("%"):
                front().topics.install(topic, 8)
            if check_same(front(), as_sent(header, body)):
                taken += 1
            else:
                left.append((where, fields.get("i") or fields["properties"]))
    assert taken > 150
    python_only = ("TRAN_MSG", "TIMER_DEL_UNIQKEY")
    assert all(any(name in text for name in python_only) for _, text in left), left


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_recorded_frames_are_unchanged_after_decoding_and_encoding(serialize_type: int) -> None:
    count = 0
    for where, header, body in golden_frames():
        first = decode(as_sent(header, body))
        if isinstance(first, Request):
            again = codec.encode_request(first, serialize_type=serialize_type)
        else:
            again = b"".join(
                codec.encode_response(first.response, first.opaque, serialize_type=serialize_type)
            )
            # a response has the version of its sender
            first = codec.ReceivedResponse(first.opaque, first.response, codec.VERSION)
        second = decode(again)
        assert without_nothing(second) == without_nothing(first), where
        count += 1
    assert count > 1_500


def without_nothing(command: Request | codec.ReceivedResponse) -> Any:
    """Return the command with None for empty fields and remark, as binary frames decode."""
    if isinstance(command, Request):
        command.remark = command.remark or None
        return command
    command.response.fields = command.response.fields or None
    command.response.remark = command.response.remark or None
    return command


def test_the_kernel_appends_the_broker_properties() -> None:
    fast = FastWay(front().table)
    fast.take(frame_of(JAVA % TAKEN["plain"]))
    stored = fast.batch.properties(0)
    assert stored == {
        "UNIQ_KEY": "U",
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "DefaultCluster",
        "TRACE_ON": "true",
    }
    assert fast.batch.property_text(0) == encode_properties(stored)
