"""Codec: vectors, tolerant decoding, malformed frames, round trips of random commands."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.net import codec, layout
from duemq_common.errors import FrameError
from duemq_common.request import Request, Response

BOTH = pytest.mark.parametrize("serialize_type", [layout.JSON_TYPE, layout.BINARY_TYPE])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-(1 << 31), (1 << 31) - 1)


def decode(data: bytes) -> Request | codec.ReceivedResponse:
    view = memoryview(data)
    frame = codec.next_frame(view, 0, len(data))
    assert frame is not None
    assert frame.end == len(data)
    return codec.decode_frame(view, frame)


def json_frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("!iI", 4 + len(header) + len(body), len(header)) + header + body


def test_request_vector_json() -> None:
    data = codec.encode_request(Request(105, {"topic": "T"}, opaque=1))
    assert data[:8].hex() == "0000007f0000007b"
    assert data[8:].decode() == (
        '{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,'
        '"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_request_vector_binary() -> None:
    data = codec.encode_request(Request(105, {"topic": "T"}, opaque=1), serialize_type=1)
    assert data.hex() == (
        "000000250100002100690001df0000000100000000000000000000000c0005746f7069630000000154"
    )


@BOTH
@given(
    code=st.integers(0, 0x7FFF),
    opaque=int32,
    fields=st.dictionaries(texts, texts, max_size=8),
    remark=st.none() | texts.filter(bool),
    body=st.binary(max_size=100),
    oneway=st.booleans(),
    language=st.sampled_from(codec.LANGUAGES),
)
def test_request_round_trip(
    serialize_type: int,
    code: int,
    opaque: int,
    fields: dict[str, str],
    remark: str | None,
    body: bytes,
    oneway: bool,
    language: str,
) -> None:
    flag = codec.FLAG_ONEWAY if oneway else 0
    request = Request(code, fields, body, opaque, flag, language, 407, remark, oneway)
    assert decode(codec.encode_request(request, serialize_type=serialize_type)) == request


@BOTH
@given(
    code=st.integers(0, 0x7FFF),
    opaque=int32,
    fields=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=8),
    remark=st.none() | texts.filter(bool),
    body=st.lists(st.binary(max_size=40), max_size=3),
)
def test_response_round_trip(
    serialize_type: int,
    code: int,
    opaque: int,
    fields: dict[str, str] | None,
    remark: str | None,
    body: list[bytes],
) -> None:
    response = Response(code, remark, fields, [memoryview(part) for part in body])
    data = b"".join(codec.encode_response(response, opaque, serialize_type=serialize_type))
    assert decode(data) == codec.ReceivedResponse(
        opaque, Response(code, remark, fields, b"".join(body)), codec.VERSION
    )


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        (b'{"extFields":{"a":1,"b":true,"c":false}}', {"a": "1", "b": "true", "c": "false"}),
        (b'{"extFields":{"a":null,"b":-7}}', {"b": "-7"}),
        (b'{"extFields":{"a":1.5}}', {"a": "1.5"}),
        (b'{"extFields":{"a":{"b":[1]}}}', {"a": '{"b":[1]}'}),
        (b'{"extFields":null}', {}),
        (b' { "extFields" : { "a" : "b" } } \n', {"a": "b"}),
        (b'{"unknown":{"x":[1,2]},"extFields":{"a":"b"}}', {"a": "b"}),
        (b'{"extFields":{"a":"\xff"}}', {"a": "�"}),
        (b'{"extFields":{"a":"\\ud83d"}}', {"a": "?"}),
        (b'{"extFields":{"a":"\\ud83d\\ude00"}}', {"a": "\U0001f600"}),
    ],
)
def test_scalars_become_text(header: bytes, fields: dict[str, str]) -> None:
    request = decode(json_frame(header))
    assert isinstance(request, Request)
    assert request.fields == fields


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b'{"code":"ten"}',
        b'{"code":{}}',
        b'{"code":99999999999}',
        b'{"opaque":1e400}',
        b'{"extFields":[1]}',
        b'{"extFields":"a"}',
        b'{"a":' * 5_000,
        b"[" * 100_000,
        b"\x00\x01\x02",
        b'{"code":1}x',
        pytest.param(b'{"code":1}' + b" " * (1 << 20), marks=pytest.mark.finding("E6"), id="long"),
    ],
)
def test_undecodable_json_header_is_a_frame_error(header: bytes) -> None:
    with pytest.raises(FrameError):
        decode(json_frame(header))


@given(st.binary(max_size=200))
def test_garbage_header_decodes_or_is_a_frame_error(header: bytes) -> None:
    for serialize_type in (0, 1):
        word = serialize_type << 24 | len(header)
        data = struct.pack("!iI", 4 + len(header), word) + header
        try:
            decode(data)
        except FrameError:
            continue


@given(st.data())
def test_damaged_binary_header_decodes_or_is_a_frame_error(data: st.DataObject) -> None:
    request = Request(11, {"topic": "T", "queueId": "3"}, remark="r", opaque=4)
    whole = bytearray(codec.encode_request(request, serialize_type=1))
    index = data.draw(st.integers(8, len(whole) - 1))
    whole[index] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole))
    except FrameError:
        return


@pytest.mark.parametrize("cut", range(0, 8 + 4))
def test_incomplete_frame_waits(cut: int) -> None:
    data = json_frame(b"{}", b"xy")
    assert codec.next_frame(memoryview(data), 0, cut) is None


@pytest.mark.parametrize(
    ("data", "error_text"),
    [
        (struct.pack("!iI", 3, 0), "frame length 3"),
        (struct.pack("!iI", -1, 0), "frame length -1"),
        (struct.pack("!iI", codec.FRAME_BYTES_MAX + 1, 0), "frame length"),
        (struct.pack("!iI", 10, 7), "header of 7 bytes in a frame of 10"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"GET / HTTP/1.1\r\n", "not a RocketMQ client"),
        (b"PRI * HTTP/2.0\r\n", "a gRPC client: it must connect to grpcServerPort"),
    ],
)
def test_impossible_length_is_a_frame_error(data: bytes, error_text: str) -> None:
    with pytest.raises(FrameError, match=error_text):
        codec.next_frame(memoryview(data), 0, len(data))


def test_unknown_serialize_type_is_a_frame_error() -> None:
    with pytest.raises(FrameError, match="serialize type 2"):
        decode(struct.pack("!iI", 6, 2 << 24 | 2) + b"{}")


def test_answer_over_the_frame_limit_is_refused() -> None:
    with pytest.raises(FrameError, match="exceeds the limit"):
        codec.encode_response(Response(body=bytes(codec.FRAME_BYTES_MAX)), 1)


def test_binary_answer_with_a_wide_code_is_refused() -> None:
    with pytest.raises(FrameError, match="binary header"):
        codec.encode_response(Response(200_050), 1, serialize_type=1)


def test_answer_header_is_compact_and_all_text() -> None:
    data = codec.encode_response(Response(0, None, {"queueId": "1"}), 4)[0]
    assert json.loads(bytes(data)[8:]) == {
        "code": 0,
        "extFields": {"queueId": "1"},
        "flag": 1,
        "language": "JAVA",
        "opaque": 4,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    assert b" " not in bytes(data)[8:]


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_encode_success_equals_an_empty_response(opaque: int) -> None:
    assert codec.encode_success(opaque) == b"".join(codec.encode_response(Response(), opaque))


@pytest.mark.finding("3S7")
def test_a_binary_header_has_a_limit_of_fields() -> None:
    fields = {str(number): "v" for number in range(codec.BINARY_FIELDS_MAX)}
    data = codec.encode_request(Request(1, fields), serialize_type=layout.BINARY_TYPE)
    decoded = decode(data)
    assert isinstance(decoded, Request)
    assert decoded.fields == fields
    data = codec.encode_request(Request(1, fields | {"x": "v"}), serialize_type=layout.BINARY_TYPE)
    with pytest.raises(FrameError, match="more than 4096 extFields"):
        decode(data)


@pytest.mark.finding("3S7")
@BOTH
def test_a_long_header_is_refused_before_it_is_decoded(serialize_type: int) -> None:
    text = "x" * codec.HEADER_BYTES_MAX
    with pytest.raises(FrameError, match="the limit is 262144"):
        decode(codec.encode_request(Request(1, {"a": text}), serialize_type=serialize_type))


@pytest.mark.parametrize("language", ["X", "java", 7, ["JAVA"], "x" * 100_000])
def test_the_language_of_an_unknown_client_is_other(language: object) -> None:
    decoded = decode(json_frame(json.dumps({"code": 105, "language": language}).encode()))
    assert isinstance(decoded, Request)
    assert decoded.language == "OTHER"
