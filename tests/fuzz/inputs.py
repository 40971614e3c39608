"""Malicious inputs from a seed: modified frames of real clients, and invalid frames."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from duemq.net import codec, layout
from duemq.send import layout as send_layout
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from tests.support.golden_frames import read_exchanges
from tests.support.golden_stores import GOLDEN

NUMBERS = (
    "-1",
    "0",
    "1",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "99999999999999999999",
    "1e9",
    "0x10",
    "",
    " 1",
    "+1",
    "1_0",
    "١",
    "NaN",
    "null",
    "true",
)
NAMES = (
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a/b",
    "a\0b",
    "%RETRY%",
    "%RETRY%../x",
    "%DLQ%g",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "DUEMQ_MIGRATION",
    "T\x01x\x02",
    "T\n2026 ERROR forged",
    "\x1b[31m",
    "ü",
    "\ud800",
    "a" * 300,
)
OFFSET_CODES = (11, 14, 15, 29, 30, 31, 33, 36, 222, 361)
TRANSACTION_CODES = (36, 37, 39)
NOT_SENT = frozenset({25, 205, 318, 100, 101})  # requests that would affect the regular client
SENTINEL = 777_777_777
LENGTHS = "lengths"  # inputs without a response, or with a late one
FIELDS = (
    "topic",
    "queueId",
    "queueOffset",
    "consumerGroup",
    "offset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subscription",
    "subVersion",
    "expressionType",
    "msgId",
    "tranStateTableOffset",
    "commitLogOffset",
    "commitOrRollback",
    "transactionId",
    "fromTransactionCheck",
    "group",
    "originMsgId",
    "originTopic",
    "delayLevel",
    "timestamp",
    "producerGroup",
    "clientID",
    "key",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "unitMode",
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Inputs for one connection."""

    kind: str
    data: bytes
    count: int


def framed(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """Return a frame with correct lengths."""
    word = serialize_type << 24 | len(header)
    return struct.pack("!iI", 4 + len(header) + len(body), word) + header + body


def sentinel() -> bytes:
    """Return a request whose response shows that all earlier input was processed."""
    return codec.encode_request(Request(9_999, {}, opaque=SENTINEL))


class Inputs:
    """Generator of chunks of all kinds, in turn."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        recorded = [
            exchange.request
            for stream in sorted((GOLDEN / "frames").glob("*.jsonl.gz"))
            for exchange in read_exchanges(stream)
            if exchange.server == "broker" and exchange.request.code not in NOT_SENT
        ]
        by_code: dict[int, list[Request]] = {}
        for request in recorded:
            by_code.setdefault(request.code, []).append(request)
        self._golden = by_code
        self._codes = sorted(by_code)
        self._opaque = 0
        self.kinds: dict[str, tuple[Callable[[], bytes], int]] = {
            "frames": (self._frame, 4),
            "json": (self._json, 4),
            LENGTHS: (self._length, 1),
            "header fields": (self._fields, 40),
            "binary headers": (self._binary, 4),
            "batches": (self._batch, 40),
            "transactions": (self._transaction, 40),
            "offsets": (self._offset, 40),
            "names": (self._name, 40),
        }

    def chunks(self, count: int) -> Iterator[Chunk]:
        """Yield chunks with `count` inputs in total, distributed evenly over the kinds."""
        each = -(-count // len(self.kinds))
        left = dict.fromkeys(self.kinds, each)
        while left:
            for kind in list(left):
                make, size = self.kinds[kind]
                size = min(size, left[kind])
                yield Chunk(kind, b"".join(make() for _ in range(size)), size)
                left[kind] -= size
                if not left[kind]:
                    del left[kind]

    # One input of each kind.

    def _frame(self) -> bytes:
        data = bytearray(codec.encode_request(self._request()))
        for _ in range(self._random.choice((1, 1, 2, 8))):
            at = self._random.randrange(len(data))
            change = self._random.randrange(4)
            if change == 0:
                data[at] ^= 1 << self._random.randrange(8)
            elif change == 1:
                data[at] = self._random.choice(b'\x00\x01\x02\x7f\x80\xff"\\{}[]')
            elif change == 2:
                del data[at : at + self._random.randrange(1, 9)]
            else:
                data[at:at] = self._random.randbytes(self._random.randrange(1, 9))
            if len(data) < 8:
                data += bytes(8)
        header = min(int.from_bytes(data[5:8]), len(data) - 8)
        data[:8] = struct.pack("!iI", len(data) - 4, data[4] << 24 | header)
        return bytes(data)

    def _length(self) -> bytes:
        """Return a frame with wrong lengths, after which the stream cannot be decoded."""
        data = bytearray(codec.encode_request(self._request()))
        at = self._random.randrange(8)
        data[at] = self._random.choice((0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1))
        return bytes(data[: self._random.randrange(1, len(data))])

    def _json(self) -> bytes:
        request = self._request()
        header = json.dumps({"code": request.code, "extFields": request.fields, "opaque": 5})
        depth = self._random.choice((1, 50, 1_000, 100_000))
        deep = "[" * depth + "]" * depth
        tricks = (
            lambda: header.replace("{", "{" * self._random.randrange(1, 4)),
            lambda: header.replace('"code": ', f'"code": {self._random.choice(NUMBERS)}1'),
            lambda: header.replace(": ", f": {deep}, ", 1),
            lambda: '{"code":11,"extFields":{"topic":' + deep + "}}",
            lambda: '{"code":11,"extFields":' + deep + "}",
            lambda: '{"a":' * depth + "1" + "}" * depth,
            lambda: '{"code":34,"code":11,"opaque":1e400}',
            lambda: '{"code":310,"extFields":{"b":"T","b":null,"i":"\\ud800\\u0000"}}',
            lambda: '{"code":11,"remark":"' + "r" * self._random.randrange(100_000) + '"}',
            lambda: deep,
            lambda: header[: self._random.randrange(len(header))],
            lambda: header + "x",
        )
        text = self._random.choice(tricks)()
        data = text.encode()
        if self._random.random() < 0.1:
            data = data.replace(b"o", b"\xff\xc0\xed\xa0\x80")
        return framed(data, self._random.choice((b"", deep.encode(), request.body)))

    def _fields(self) -> bytes:
        request = self._request()
        fields = dict(request.fields)
        for _ in range(self._random.randrange(1, 4)):
            name = self._random.choice([*fields, *FIELDS])
            fields[name] = self._value()
        for name in list(fields):
            if self._random.random() < 0.05:
                del fields[name]
        body = request.body
        if self._random.random() < 0.2 and body:
            body = body[: self._random.randrange(len(body))]
        return self._encode(replace(request, fields=fields, body=body))

    def _binary(self) -> bytes:
        request = self._request()
        data = bytearray(codec.encode_request(request, serialize_type=layout.BINARY_TYPE))
        for _ in range(self._random.randrange(1, 5)):
            data[self._random.randrange(8, len(data))] = self._random.choice(b"\0\1\x7f\x80\xff")
        return bytes(data)

    def _batch(self) -> bytes:
        entries = bytearray()
        for _ in range(self._random.randrange(1, 6)):
            body = self._random.randbytes(self._random.randrange(1, 40))
            text = self._random.choice((b"", b"TAGS\x01a\x02", b"K\x01", b"\x01\x02" * 5))
            size = 22 + len(body) + len(text)
            entries += struct.pack("!iiiii", size, 0, 0, 0, len(body)) + body
            entries += struct.pack("!h", len(text)) + text
        for _ in range(self._random.randrange(3)):
            entries[self._random.randrange(len(entries))] = self._random.randrange(256)
        shared = self._random.choice(("", "X\x01" + "x" * 3_000 + "\x02", "DELAY\x013\x02"))
        values = ("p", "fuzz", "TBW102", "1", "0", "0", "1", "0", shared, "0", "false", "0", "true")
        fields = dict(zip(send_layout.SEND_LETTERS, values, strict=False))
        return self._encode(Request(self._random.choice((320, 310)), fields, bytes(entries)))

    def _transaction(self) -> bytes:
        fields = {name: self._value() for name in FIELDS if self._random.random() < 0.9}
        fields["commitOrRollback"] = self._random.choice(("0", "4", "8", "12", "-1"))
        code = self._random.choice(TRANSACTION_CODES)
        if self._random.random() < 0.3:
            text = f"TRAN_MSG\x01true\x02PGROUP\x01g\x02REAL_TOPIC\x01{self._value()}\x02"
            values = ("p", "fuzz", "TBW102", "1", "0", "4", "1", "0", text, "0", "false")
            return self._encode(
                Request(310, dict(zip(send_layout.SEND_LETTERS, values, strict=False)), b"half")
            )
        return self._encode(Request(code, fields))

    def _offset(self) -> bytes:
        fields = {
            "topic": self._random.choice(("fuzz", "regular", self._value())),
            "consumerGroup": self._random.choice(("g", self._value())),
            "group": "g",
            "queueId": self._random.choice(("0", self._value())),
            "queueOffset": self._value(),
            "commitOffset": self._value(),
            "offset": self._value(),
            "maxMsgNums": self._random.choice(("32", self._value())),
            "sysFlag": self._random.choice(("4", "6", "7", self._value())),
            "suspendTimeoutMillis": self._random.choice(("0", "1000", self._value())),
            "subscription": self._random.choice(("*", "a||b", self._value())),
            "subVersion": "0",
            "timestamp": self._value(),
            "originTopic": "fuzz",
            "delayLevel": self._value(),
            "isForce": "true",
        }
        if fields["topic"] == "regular":  # the offsets of the regular client
            fields["consumerGroup"] = fields["group"] = "stranger"
        return self._encode(Request(self._random.choice(OFFSET_CODES), fields))

    def _name(self) -> bytes:
        code = self._random.choice((310, 17, 105, 35, 34, 38, 200, 300, 351))
        name = self._random.choice(NAMES)
        if code == RequestCode.SEND_MESSAGE_V2:
            values = ("p", name, "TBW102", "1", "0", "0", "1", "0", "K\x01v\x02", "0", "false")
            return self._encode(
                Request(code, dict(zip(send_layout.SEND_LETTERS, values, strict=False)), b"x")
            )
        fields = dict.fromkeys(("topic", "group", "consumerGroup", "groupName"), name)
        fields |= {"defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        group = {"groupName": name, "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}
        beat = {"clientID": name, "producerDataSet": [], "consumerDataSet": [group]}
        return self._encode(Request(code, fields, json.dumps(beat).encode()))

    # Parts.

    def _request(self) -> Request:
        return self._random.choice(self._golden[self._random.choice(self._codes)])

    def _value(self) -> str:
        if self._random.random() < 0.5:
            return self._random.choice(NUMBERS)
        if self._random.random() < 0.9:
            return self._random.choice(NAMES)
        return "v" * self._random.randrange(5_000)

    def _encode(self, request: Request) -> bytes:
        self._opaque += 1
        header = {
            "code": request.code,
            "extFields": request.fields,
            "flag": 2 if self._random.random() < 0.05 else 0,
            "language": "JAVA",
            "opaque": self._opaque,
            "version": 479,
        }
        return framed(json.dumps(header).encode(), request.body)
