"""Bad input through real sockets: Apache's code and a remark that helps, or the end of one
connection; the broker goes on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from duemq.broker.broker import Broker
from duemq.net.notices import BURST_LINES
from duemq_common.request import Request, Response
from tests.support.loopback_broker import (
    BODY_BYTES_MAX,
    bodies_of,
    compile_kernels,
    faults_of,
    frame,
    loopback,
    pull_request,
    send,
)
from tests.support.raw_connection import RawPeer
from tests.support.send_path import frame_of, send_request

JAVA_FIELDS = b'"a":"p","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1700","h":"0"'


class House:
    """A broker that serves all tests of this module, and what it must hold at their end."""

    def __init__(self, runner: asyncio.Runner, broker: Broker) -> None:
        self._runner, self.broker = runner, broker
        self.stored: list[bytes] = []
        self._serial = 0

    def run(self, main: Any) -> Any:
        return self._runner.run(main)

    async def send_good(self, peer: RawPeer) -> None:
        """Send a good message on a connection: it must be taken."""
        self._serial += 1
        body = b"good %d" % self._serial
        response = await send(peer, body, opaque=self._serial)
        assert (response.code, response.remark) == (0, None)
        self.stored.append(body)

    async def connect(self) -> RawPeer:
        """Connect; the log rate limit is reset."""
        self.broker._server.notices.broken._tokens = BURST_LINES
        return await RawPeer.connect(self.broker.port)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    root = tmp_path_factory.mktemp("bad input")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        running = loopback(root)
        found = House(runner, runner.run(running.__aenter__()))
        runner.run(compile_kernels(found.broker))
        yield found
        assert bodies_of(found.broker) == found.stored
        runner.run(running.__aexit__(None, None, None))
    assert faults_of(root) == []


# -- the stream is lost: this connection ends, all others go on ---------------------------------


def binary_header(
    *, remark_len: int = 0, fields: bytes = b"", fields_len: int | None = None
) -> bytes:
    head = struct.pack("!hbhiii", 310, 0, 479, 1, 0, remark_len)
    return head + struct.pack("!i", len(fields) if fields_len is None else fields_len) + fields


LOST = {
    "frame longer than 16 MiB": struct.pack("!iI", (16 << 20) + 1, 10) + b"x" * 100,
    "frame length of the biggest int": struct.pack("!iI", (1 << 31) - 1, 10),
    "negative frame length": struct.pack("!iI", -1, 10),
    "smallest int as frame length": struct.pack("!iI", -(1 << 31), 10),
    "frame too short for its header word": struct.pack("!i", 3) + b"abc",
    "frame of no bytes": struct.pack("!i", 0),
    "header longer than its frame": struct.pack("!iI", 8, 5) + b"{}{}",
    "header of 16 MiB in a small frame": struct.pack("!iI", 104, 0xFF_FFFF) + b"x" * 100,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "unknown serialize type": frame_of(b"{}", serialize_type=2),
    "serialize type 255": frame_of(b"{}", serialize_type=255),
    "garbage instead of JSON": frame_of(b"\xff\xfe\x00garbage"),
    "empty JSON header": frame_of(b""),
    "JSON that ends early": frame_of(b'{"code":310,"extFields":{"a":"p"'),
    "JSON that goes on behind its end": frame_of(b'{"code":310}{"code":310}'),
    "JSON array": frame_of(b"[1,2,3]"),
    "JSON number": frame_of(b"17"),
    "JSON nested 100,000 deep": frame_of(b"[" * 100_000 + b"]" * 100_000),
    "objects nested 100,000 deep": frame_of(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep nesting in a field that no request names": frame_of(
        b'{"code":310,"extFields":{' + JAVA_FIELDS + b',"zz":' + b"[" * 10**5 + b"]" * 10**5 + b"}}"
    ),
    "deep nesting that never ends": frame_of(b"[" * 100_000),
    "extFields is a list": frame_of(b'{"code":310,"extFields":["a"]}'),
    "extFields is a text": frame_of(b'{"code":310,"extFields":"a"}'),
    "code is a text": frame_of(b'{"code":"send","opaque":1}'),
    "code is an object": frame_of(b'{"code":{},"opaque":1}'),
    "code is a truth": frame_of(b'{"code":true,"opaque":1}'),
    "code beyond 32 bits": frame_of(b'{"code":4294967296,"opaque":1}'),
    "code of 400 digits": frame_of(b'{"code":' + b"9" * 400 + b',"opaque":1}'),
    "code of 10,000 digits": frame_of(b'{"code":' + b"9" * 10_000 + b',"opaque":1}'),
    "code is infinite": frame_of(b'{"code":1e999,"opaque":1}'),
    "opaque beyond 32 bits": frame_of(b'{"code":310,"opaque":2147483648}'),
    "opaque is a list": frame_of(b'{"code":310,"opaque":[1]}'),
    "flag is not a number": frame_of(b'{"code":310,"flag":"x","opaque":1}'),
    "binary header shorter than its fixed part": frame_of(b"\0" * 16, serialize_type=1),
    "binary remark passes the header": frame_of(
        binary_header(remark_len=1 << 20), serialize_type=1
    ),
    "binary remark of negative length": frame_of(binary_header(remark_len=-1), serialize_type=1),
    "binary fields pass the header": frame_of(binary_header(fields_len=1 << 20), serialize_type=1),
    "binary fields of negative length": frame_of(binary_header(fields_len=-5), serialize_type=1),
    "binary field name passes the fields": frame_of(
        binary_header(fields=struct.pack("!h", 30_000) + b"a"), serialize_type=1
    ),
    "binary field name of negative length": frame_of(
        binary_header(fields=struct.pack("!h", -2) + b"a"), serialize_type=1
    ),
    "binary field value passes the fields": frame_of(
        binary_header(fields=struct.pack("!h1si", 1, b"a", 1 << 30)), serialize_type=1
    ),
    "binary field value of negative length": frame_of(
        binary_header(fields=struct.pack("!h1si", 1, b"a", -9)), serialize_type=1
    ),
}


@pytest.mark.parametrize("data", LOST.values(), ids=LOST.keys())
def test_a_stream_that_is_lost_ends_its_connection_only(
    house: House, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with await house.connect() as other, await house.connect() as bad:
            await house.send_good(bad)
            bad.writer.write(data)
            assert await bad.at_end()
            await house.send_good(other)

    house.run(main())
    [line] = [r.getMessage() for r in caplog.records if "connection closed" in r.getMessage()]
    assert "127.0.0.1:" in line
    assert len(line) < 400


# -- one request is refused: its connection goes on --------------------------------------------


def letters(**changes: Any) -> bytes:
    """Return a send's frame whose fields are JSON values of any type; None leaves one out."""
    values: dict[str, Any] = dict(
        zip("abcdefgh", ("p", "T", "TBW102", "4", "1", "0", "1700", "0"), strict=True)
    )
    values |= changes
    fields = {name: value for name, value in values.items() if value is not None}
    code = fields.pop("code", 310)
    body = fields.pop("body", b"body")
    header = {"code": code, "language": "JAVA", "version": 479, "opaque": 5, "extFields": fields}
    return frame_of(json.dumps(header).encode(), body)


def entry(
    body: bytes = b"b",
    properties: bytes = b"",
    *,
    total: int | None = None,
    body_len: int | None = None,
    properties_len: int | None = None,
) -> bytes:
    """Return one message of a batch body, with lengths that may lie."""
    size = 22 + len(body) + len(properties)
    head = struct.pack(
        "!iiiii",
        size if total is None else total,
        0,
        0,
        0,
        len(body) if body_len is None else body_len,
    )
    length = len(properties) if properties_len is None else properties_len
    return head + body + struct.pack("!H", length) + properties


def in_batch(body: bytes, **changes: str) -> bytes:
    return letters(code=320, body=body, **changes)


def level(text: str) -> dict[str, str]:
    return {"i": f"DELAY\x01{text}\x02"}


NUMBERS = {"d": "queues", "e": "queue id", "f": "sysFlag", "g": "born time", "h": "flag"}
NO_NUMBERS: dict[str, Any] = {
    "a word": "one",
    "empty": "",
    "a fraction": "1.5",
    "a JSON fraction": 1.5,
    "too long": "9" * 400,
    "beyond 64 bits": 1 << 70,
    "an object": {"n": 1},
    "a list": [1],
    "true": True,
    "underscore": "1_0",
    "Arabic digits": "\u0661",
    "NUL": "1\0",
}
REFUSED: dict[str, tuple[bytes, int, str]] = {
    f"{what} is {kind}": (letters(**{name: value}), 1, f"<{name}>")
    for name, what in NUMBERS.items()
    for kind, value in NO_NUMBERS.items()
}
REFUSED |= {
    f"{what} is missing": (letters(**{name: None}), 1, f"<{name}>")
    for name, what in ({"a": "producer group", "b": "topic", "c": "template"} | NUMBERS).items()
}
REFUSED |= {
    f"{name} is missing in a plain header": (
        frame(send_request(code=10, opaque=5, **{name: None})),
        1,
        f"<{name}>",
    )
    for name in ("producerGroup", "topic", "queueId", "sysFlag", "bornTimestamp", "flag")
}
REFUSED |= {
    "reconsume times is a word": (letters(j="x"), 1, "<j>"),
    "maximal reconsume times is a word": (letters(l="x"), 1, "<l>"),
    "sysFlag beyond 32 bits": (letters(f=str(1 << 31)), 1, "<f>"),
    "unknown code": (frame(Request(9999, {}, opaque=5)), 3, "9999"),
    "code 0": (frame(Request(0, {}, opaque=5)), 3, "0"),
    "negative code": (frame(Request(-7, {}, opaque=5)), 3, "-7"),
    "header without anything": (frame_of(b'{"opaque":5}'), 3, "0"),
    "no body": (letters(body=b""), 13, "no body"),
    "body over maxMessageSize": (
        letters(body=b"x" * (BODY_BYTES_MAX + 1)),
        13,
        str(BODY_BYTES_MAX),
    ),
    "body over maxMessageSize in a plain header": (
        frame(send_request(code=10, opaque=5, body=b"x" * (BODY_BYTES_MAX + 1))),
        13,
        str(BODY_BYTES_MAX),
    ),
    "body of 15 MiB": (letters(body=bytes(15 << 20)), 13, str(BODY_BYTES_MAX)),
    "properties over 32767": (letters(i="K\x01" + "v" * 32_800 + "\x02"), 13, "32767"),
    "properties of 240 KiB": (letters(i="K\x01" + "v" * (240 << 10) + "\x02"), 13, "32767"),
    "properties over 32767 with the broker's own": (
        letters(i="K\x01" + "v" * 32_700 + "\x02"),
        13,
        "32767",
    ),
    "topic is empty": (letters(b=""), 29, "blank"),
    "topic is blank": (letters(b="   "), 29, "blank"),
    "topic with a slash": (letters(b="../../etc/passwd"), 29, "character"),
    "topic with NUL": (letters(b="T\0"), 29, "character"),
    "topic in Chinese": (letters(b="延迟"), 29, "character"),
    "topic with a lone surrogate": (letters(b="T\ud800"), 29, "character"),
    "topic is a dot": (letters(b="."), 29, "character"),
    "topic of 128 characters": (letters(b="t" * 128), 29, "longer than 127"),
    "topic of 240 KiB": (letters(b="t" * (240 << 10)), 29, "longer than 127"),
    "retry topic of 256 characters": (letters(b="%RETRY%" + "g" * 250), 29, "longer than 255"),
    "topic is the schedule topic": (letters(b="SCHEDULE_TOPIC_XXXX"), 16, "SCHEDULE_TOPIC_XXXX"),
    "topic is the half topic": (letters(b="RMQ_SYS_TRANS_HALF_TOPIC"), 16, "HALF"),
    "topic unknown and no template": (letters(b="Unknown", c="Nothing"), 17, "Unknown"),
    "queue id beyond the topic": (letters(e="4"), 29, "queueId[4]"),
    "queue id of the biggest int": (letters(e=str((1 << 31) - 1)), 29, "queueId[2147483647]"),
    "level is a word": (letters(**level("soon")), 13, "soon"),
    "level is a fraction": (letters(**level("1.5")), 13, "1.5"),
    "level beyond 32 bits": (letters(**level("9999999999")), 13, "9999999999"),
    "level of 400 digits": (letters(**level("9" * 400)), 13, "not a whole number"),
    "level with a blank": (letters(**level("1 ")), 13, "not a whole number"),
    "batch with a total too long": (in_batch(entry(total=500)), 13, "byte 0"),
    "batch with a negative total": (in_batch(entry(total=-1)), 13, "byte 0"),
    "batch with a total of 0": (in_batch(entry(total=0)), 13, "byte 0"),
    "batch with the biggest total": (in_batch(entry(total=(1 << 31) - 1)), 13, "byte 0"),
    "batch with a body too long": (in_batch(entry(body_len=400)), 13, "byte 0"),
    "batch with a negative body": (in_batch(entry(body_len=-4)), 13, "byte 0"),
    "batch with the biggest body": (in_batch(entry(body_len=(1 << 31) - 1)), 13, "byte 0"),
    "batch with lying properties": (in_batch(entry(properties_len=9)), 13, "byte 0"),
    "batch whose second message lies": (in_batch(entry() + entry(total=7)), 13, "byte 23"),
    "batch that ends inside a head": (in_batch(entry() + b"\0\0\0"), 13, "byte 23"),
    "batch of garbage": (in_batch(bytes(range(256))), 13, "byte 0"),
    "batch with a level": (in_batch(entry(properties=b"DELAY\x013\x02")), 13, "delay level"),
    "batch to a retry topic": (in_batch(entry(), b="%RETRY%g"), 13, "retry"),
    "batch with oversize properties": (
        in_batch(entry(properties=b"K\x01" + b"v" * 18_000), i="K\x01" + "v" * 15_000),
        13,
        "send smaller batches",
    ),
}
PULLS = ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis")
REFUSED |= {
    f"pull: {name} is {kind}": (frame(pull_request("T", 1, 0, **{name: value})), 1, f"<{name}>")
    for name in (*PULLS, "subVersion")
    for kind, value in {"a word": "x", "too long": "9" * 30, "empty": ""}.items()
}


def without(name: str) -> bytes:
    request = pull_request("T", 1, 0)
    del request.fields[name]
    return frame(request)


REFUSED |= {
    f"pull: {name} is missing": (without(name), 1, f"<{name}>")
    for name in (*PULLS, "subVersion", "consumerGroup", "topic")
}
BEATS = {
    "nothing": b"",
    "garbage": b"\xff\x00garbage",
    "a list": b"[]",
    "a number": b"7",
    "nested 100,000 deep": b"[" * 100_000,
    "no client id": b'{"consumerDataSet":[]}',
    "client id of a wrong type": b'{"clientID":7}',
    "subscription of a wrong type": (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[7]}]}'
    ),
    "version that is a list": (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
        b'[{"topic":"T","subVersion":[]}]}]}'
    ),
    "fingerprint of 19 letters": b'{"clientID":"c","heartbeatFingerprint":"aaaaaaaaaaaaaaaaaaa"}',
    "cut in the middle": b'{"clientID":"c","consumerDataSet":[{"grou',
}
REFUSED |= {
    f"heartbeat: {what}": (frame(Request(34, {}, body, opaque=5)), 1, "heartbeat")
    for what, body in BEATS.items()
}
REFUSED |= {
    "pull of an unknown topic": (frame(pull_request("Nowhere", 0, 0)), 17, "Nowhere"),
    "pull of a queue beyond the topic": (frame(pull_request("T", 9, 0)), 29, "9"),
    "pull of a negative queue": (frame(pull_request("T", -1, 0)), 29, "-1"),
    "pull with a kind of filter that is not served": (
        frame(pull_request("T", 1, 0, subscription="a > 1", expressionType="SQL93")),
        23,
        "SQL93",
    ),
    "pull with too many tags": (
        frame(pull_request("T", 1, 0, subscription="||".join(f"t{n}" for n in range(10_000)))),
        23,
        "tags",
    ),
    "pull with too long an expression": (
        frame(pull_request("T", 1, 0, subscription="||".join(f"t{n}" for n in range(25_000)))),
        23,
        "the limit is 131072",
    ),
    "pull of a negative offset": (frame(pull_request("T", 1, -5)), 21, "OFFSET_TOO_SMALL"),
    "pull far beyond the end": (
        frame(pull_request("T", 1, (1 << 63) - 1)),
        21,
        "OFFSET_OVERFLOW_BADLY",
    ),
}


@pytest.mark.parametrize(("data", "code", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_request_gets_its_code_and_the_connection_continues(
    house: House, data: bytes, code: int, reason: str
) -> None:
    async def main() -> Response:
        async with await house.connect() as peer:
            await house.send_good(peer)
            peer.writer.write(data)
            answer = await peer.read_response()
            await house.send_good(peer)
            return answer.response

    response = house.run(main())
    assert response.code == code, response.remark
    assert reason in (response.remark or "")
    assert len(response.remark or "") <= 1_000


TAKEN = {
    "level 0 is no delay": (level("0"), 1),
    "negative level is no delay": (level("-3"), 1),
    "level with a sign": (level("+0"), 1),
    "numbers without quotes": ({"d": 4, "e": 1, "f": 0, "g": 1700, "h": 0}, 1),
    "fields that are not defined": ({"zz": "x", "yy": {"deep": [1, 2]}}, 1),
    "negative queue id": ({"e": "-1"}, 0),
    "binary garbage and NUL in properties": ({"i": "\x00\x01\x03\x7f\x02\x02\x01K\x01v"}, 1),
    "properties without separators": ({"i": "garbage"}, 1),
    "a lone surrogate in properties": ({"i": "K\x01\ud800\x02"}, 1),
}


@pytest.mark.parametrize(("changes", "queue_known"), TAKEN.values(), ids=TAKEN.keys())
def test_odd_but_legal_sends_are_taken(
    house: House, changes: dict[str, Any], queue_known: int
) -> None:
    body = b"bad " + repr(sorted(changes)).encode()

    async def main() -> Response:
        async with await house.connect() as peer:
            peer.writer.write(letters(**{"b": "Other"} | changes, body=body))
            answer = await peer.read_response()
            await house.send_good(peer)
            return answer.response

    response = house.run(main())
    assert (response.code, response.remark) == (0, None)
    queues = [1] if queue_known else [0, 1, 2, 3]
    assert any(body in bodies_of(house.broker, "Other", queue) for queue in queues)


BROKEN_UTF8 = {
    "properties": letters(b="Other", i="K\x01@@\x02"),
    "properties in a plain header": frame(
        send_request(code=10, opaque=5, topic="Other", properties="K\x01@@\x02")
    ),
}


@pytest.mark.parametrize("data", BROKEN_UTF8.values(), ids=BROKEN_UTF8.keys())
def test_broken_utf8_becomes_substitutes_as_in_java(house: House, data: bytes) -> None:
    async def main() -> Response:
        async with await house.connect() as peer:
            peer.writer.write(data.replace(b"@@", b"\xff\xfe"))
            return (await peer.read_response()).response

    assert house.run(main()).code == 0
