"""Synchronous remoting requests that prepare a broker and check its readiness."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass, field

from tests.support.free_ports import LOOPBACK

CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_ROUTE = 105
SUCCESS = 0
TIMEOUT_S = 60.0
FRAME_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Response frame."""

    code: int
    remark: str
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


def call(port: int, code: int, fields: dict[str, str], body: bytes = b"") -> Answer:
    """Send one request to `port` on loopback and return the response.

    Raises:
        OSError: The connection was refused or lost.
    """
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 435,
            "opaque": 1,
            "flag": 0,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    with socket.create_connection((LOOPBACK, port), timeout=TIMEOUT_S) as peer:
        frame_bytes = 4 + len(header) + len(body)
        peer.sendall(struct.pack(">II", frame_bytes, len(header)) + header + body)
        frame_bytes, header_bytes = struct.unpack(">II", _read(peer, 8))
        header_bytes &= 0xFFFFFF
        if not header_bytes + 4 <= frame_bytes <= FRAME_BYTES_MAX:
            raise ConnectionError(f"invalid response: {frame_bytes} bytes, header {header_bytes}")
        response = json.loads(_read(peer, header_bytes))
        response_body = _read(peer, frame_bytes - 4 - header_bytes)
    fields = response.get("extFields") or {}
    return Answer(response["code"], response.get("remark") or "", fields, response_body)


def has_route(namesrv_port: int, topic: str) -> bool:
    """Return whether the name server knows a broker for `topic`."""
    try:
        return call(namesrv_port, GET_ROUTE, {"topic": topic}).code == SUCCESS
    except OSError:
        return False


def create_topic(
    broker_port: int, topic: str, *, queue_count: int = 4, attributes: str = ""
) -> None:
    """Create or change `topic` with a number of queues for reading and writing."""
    fields = topic_fields(topic, queue_count)
    if attributes:
        fields["attributes"] = attributes
    response = call(broker_port, CREATE_TOPIC, fields)
    assert response.code == SUCCESS, f"create topic {topic}: {response.code} {response.remark}"


def topic_fields(topic: str, queue_count: int) -> dict[str, str]:
    """Return the fields of a request that creates or changes a topic."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def max_offset(broker_port: int, topic: str, queue_id: int) -> int:
    """Return the offset after the last message of a queue."""
    response = call(broker_port, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
    assert response.code == SUCCESS, f"max offset of {topic}/{queue_id}: {response.remark}"
    return int(response.fields["offset"])


def _read(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(size - len(parts))
        if not part:
            raise ConnectionError("connection closed within a response")
        parts += part
    return bytes(parts)
