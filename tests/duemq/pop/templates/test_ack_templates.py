"""Templates of acknowledgement frames: the kernel reads the numbers that the codec decodes."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from duemq.net import codec
from duemq.pop.kernels.acks import (
    COLUMNS,
    INVISIBLE_MS,
    OFFSET,
    OPAQUE,
    POP_MS,
    QUEUE,
    REVIVE_QUEUE,
    START,
)
from duemq.pop.kernels.matching_frames import read_matching
from duemq.pop.templates.ack_templates import AckTemplate
from duemq.pop.templates.frame_templates import HEADER_BYTES_MAX
from duemq_common.codes import RequestCode
from duemq_common.errors import FrameError
from duemq_common.request import Request

NUMBERS = {
    "opaque": 7,
    "queueId": 3,
    "offset": 41,
    "start": 40,
    "pop_ms": 1_700_000_000_123,
    "invisible_ms": 60_000,
    "revive_queue": 5,
}
COLUMN = {
    "opaque": OPAQUE,
    "queueId": QUEUE,
    "offset": OFFSET,
    "start": START,
    "pop_ms": POP_MS,
    "invisible_ms": INVISIBLE_MS,
    "revive_queue": REVIVE_QUEUE,
}
JAVA = (
    b'{"code":200051,"extFields":{"consumerGroup":"g","extraInfo":"$handle","offset":"$offset",'
    b'"queueId":"$queueId","topic":"T"},"flag":0,"language":"JAVA","opaque":$opaque,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
GO = (
    b'{"code":200051,"language":"GO","version":317,"opaque":$opaque,"flag":0,"remark":"",'
    b'"extFields":{"consumerGroup":"g","extraInfo":"$handle","offset":"$offset",'
    b'"queueId":"$queueId","topic":"T"}}'
)
PYTHON = (
    b'{"code":200051,"extFields":{"queueId":"$queueId","offset":"$offset","topic":"T",'
    b'"extraInfo":"$handle","consumerGroup":"g"},"flag":0,"language":"PYTHON",'
    b'"version":479,"opaque":$opaque}'
)
ORDERS = {"java": JAVA, "go": GO, "python": PYTHON}


def handle_of(numbers: dict[str, Any]) -> str:
    start = " ".join(str(numbers[name]) for name in ("start", "pop_ms", "invisible_ms"))
    rest = f"0 test {numbers['queueId']} {numbers['offset']}"
    return f"{start} {numbers['revive_queue']} {rest}"


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    word = serialize_type << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def header_of(form: bytes, **changes: Any) -> bytes:
    numbers = NUMBERS | changes
    header = form.replace(b"$handle", handle_of(numbers).encode())
    for name in ("offset", "queueId", "opaque"):
        header = header.replace(b"$" + name.encode(), str(numbers[name]).encode())
    return header


def decoded(data: bytes) -> Request:
    place = codec.next_frame(memoryview(data), 0, len(data))
    assert place is not None
    request = codec.decode_frame(memoryview(data), place)
    assert isinstance(request, Request)
    return request


def template_of(data: bytes) -> AckTemplate | None:
    return AckTemplate.of(data, decoded(data))


def read(template: AckTemplate, data: bytes) -> list[int] | None:
    """Return the numbers that the kernel reads from a frame; None: the frame does not match."""
    numbers, ends = np.zeros((1, COLUMNS), np.int64), np.zeros(1, np.int64)
    buffer = np.frombuffer(data, np.uint8).copy()
    if not read_matching(buffer, 0, buffer.size, template.parts, numbers, ends):
        return None
    assert ends[0] == len(data)
    return numbers[0].tolist()


def numbers_of(request: Request) -> list[int]:
    """Return the numbers that the codec decodes, as a row."""
    fields = request.fields
    handle = fields["extraInfo"].split(" ")
    texts = [request.opaque, fields["queueId"], fields["offset"], *handle[:4], *handle[6:]]
    return [int(text) for text in texts]  # type: ignore[call-overload]


@pytest.mark.parametrize("order", ORDERS)
def test_a_template_reads_the_frames_of_a_client(order: str) -> None:
    template = template_of(frame(header_of(ORDERS[order])))
    assert template is not None
    assert (template.group, template.topic, template.broker_name) == ("g", "T", "test")
    for changes in (
        {"opaque": 2**31 - 1, "offset": 0, "queueId": 15},
        {"start": 10**17, "pop_ms": 0, "invisible_ms": 1, "revive_queue": 999},
    ):
        data = frame(header_of(ORDERS[order], **changes))
        row = read(template, data)
        assert row is not None
        expected = NUMBERS | changes
        assert {name: row[column] for name, column in COLUMN.items()} == expected
        assert row == numbers_of(decoded(data))


def test_frames_of_the_codec_have_a_template() -> None:
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "offset": "1",
        "extraInfo": handle_of(NUMBERS),
    }
    request = Request(RequestCode.ACK_MESSAGE, fields, opaque=9)
    assert template_of(codec.encode_request(request)) is not None
    request.body = b"x"
    assert template_of(codec.encode_request(request)) is None


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'":', b'": ', id="spaces of Python's json"),
        pytest.param(b'"offset":"41"', b'"offset":41', id="number without quotes"),
        pytest.param(b'"offset":"41"', b'"offset":"041"', id="leading zero"),
        pytest.param(b'"offset":"41"', b'"offset":"-1"', id="negative"),
        pytest.param(b'"offset":"41"', b'"offset":"41","offset":"41"', id="twice"),
        pytest.param(b'"offset":"41"', b'"offset":"41","offset" :"41"', id="twice, with a space"),
        pytest.param(b'"offset":"41"', b'"offset":"41","o\\u0066fset":"41"', id="twice, escaped"),
        pytest.param(b'"offset":"41"', b'"o\\u0066fset":"41"', id="escaped"),
        pytest.param(b'"topic":"T"', b'"topic":"T\\"offset\\":"', id="escaped quotes"),
        pytest.param(b'"topic":"T"', b'"topic":"T","opaque":"7"', id="opaque as a field"),
        pytest.param(b'"flag":0', b'"flag":0,"offset":"41"', id="offset after the fields"),
        pytest.param(b'"flag":0', b'"flag":0,"x":{"y":1}', id="another object"),
        pytest.param(b'"opaque":7', b'"opaque":7 ', id="space after a number"),
        pytest.param(b'"opaque":7', b'"opaque":"7"', id="number in quotes"),
        pytest.param(b"123 60000 5", b"123 060000 5", id="leading zero in the handle"),
        pytest.param(b" 3 41", b" 3 41 0", id="longer handle"),
        pytest.param(b"0 test", b"0  test", id="two spaces"),
    ],
)
def test_frames_of_another_form_have_no_template(order: str, old: bytes, new: bytes) -> None:
    header = header_of(ORDERS[order])
    assert old in header
    assert template_of(frame(header.replace(old, new))) is None


@pytest.mark.parametrize("order", ORDERS)
def test_a_field_named_opaque_is_not_read_as_the_opaque_number(order: str) -> None:
    """The opaque number of a header without the member is 0."""
    header = header_of(ORDERS[order], opaque=0).replace(b'"opaque":0', b'"remark":null')
    data = frame(header.replace(b'"topic":"T"', b'"topic":"T","opaque":0'))
    assert (decoded(data).opaque, decoded(data).fields["opaque"]) == (0, "0")
    assert template_of(data) is None


def test_a_long_header_has_no_template() -> None:
    def named(size: int) -> bytes:
        header = header_of(JAVA)
        group = b"g" * (size - len(header) + 1)
        return frame(header.replace(b'"consumerGroup":"g"', b'"consumerGroup":"%b"' % group))

    assert template_of(named(HEADER_BYTES_MAX)) is not None
    assert template_of(named(HEADER_BYTES_MAX + 1)) is None


SCRAPS = st.sampled_from(
    [
        b'"offset":"41"',
        b'"offset" :"41"',
        b'"o\\u0066fset":"41"',
        b'"queueId":"3"',
        b'"opaque":7',
        b'"opaque" : 7',
        b'"\\u006fpaque":7',
        b'"extraInfo":"x"',
        b'"x":{"offset":"41"}',
        b'"x":{"opaque":7}',
        b'"x":"\\"offset\\":\\"41"',
        b'"x":["opaque"]',
        b'"y":"offset"',
        b'"extFields":{"offset":"41"}',
        b'"extFields":null',
        b'"remark":"{"',
        b'"remark":"}{"',
    ]
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Headers of a client with additional members, some of them synonyms."""
    header = header_of(draw(st.sampled_from(list(ORDERS.values()))))
    for scrap in draw(st.lists(SCRAPS, max_size=2)):
        commas = [at for at, byte in enumerate(header) if byte == ord(",")]
        at = draw(st.sampled_from(commas))
        header = header[:at] + b"," + scrap + header[at:]
    return header


@given(headers(), st.data())
def test_a_template_never_reads_other_numbers_than_the_codec(
    header: bytes, data: st.DataObject
) -> None:
    """Each number of the frame is replaced by each other number in turn."""
    try:
        request = decoded(frame(header))
        numbers_of(request)
    except (FrameError, KeyError, IndexError, ValueError):
        assume(False)
    template = AckTemplate.of(frame(header), request)
    assume(template is not None)
    assert template is not None
    for _ in range(4):
        digits = [at for at, byte in enumerate(header) if chr(byte).isdigit()]
        at = data.draw(st.sampled_from(digits))
        new = data.draw(st.sampled_from([b"1", b"0", b"55", b"", b"9" * 11, b"-", b'"', b"x"]))
        changed = frame(header[:at] + new + header[at + 1 :])
        row = read(template, changed)
        if row is not None:
            again = decoded(changed)
            assert row == numbers_of(again)
            assert again.code == RequestCode.ACK_MESSAGE
            fields = again.fields
            assert (fields["consumerGroup"], fields["topic"]) == (template.group, template.topic)
            assert fields["extraInfo"].split(" ")[5] == template.broker_name
            assert json.loads(header)["flag"] == again.flag
