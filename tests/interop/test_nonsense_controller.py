"""A master whose controller answers nonsense: it acknowledges nothing, and serves again later."""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq_common.codes import RequestCode
from tests.interop.apache_controller import ApacheController, OurMember
from tests.interop.replicas import send_code
from tests.interop.store_work import KEYS, TOPIC, pull_topic
from tests.support.relay import Relay
from tests.support.remoting_requests import SUCCESS, call
from tests.support.wait_until import until

VERSION = "5.3.3"
LIMIT_MS = 3_000
WAIT_S = 120.0
HUGE_BYTES, SENT_BYTES, BODY_BYTES = 0x7FFF_FFFF, 1 << 20, 15 << 20
Serve = Callable[[socket.socket], None]
Answer = Callable[[int], bytes]  # of the opaque of a request


def frame(opaque: int, code: int = 0, fields: dict[str, str] | None = None) -> bytes:
    """Return a response frame without a body."""
    header = {"code": code, "language": "JAVA", "version": 435, "opaque": opaque, "flag": 1}
    data = json.dumps({**header, "extFields": fields or {}}).encode()
    return struct.pack(">II", 4 + len(data), len(data)) + data


def with_body(data: bytes, body: bytes) -> bytes:
    """Return a frame with a body added."""
    size, header_bytes = struct.unpack_from(">II", data)
    return struct.pack(">II", size + len(body), header_bytes) + data[8:] + body


def answering(response: Answer) -> Serve:
    """Return a server that sends an answer for each request."""

    def serve(client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            while head := stream.read(8):
                size, header_bytes = struct.unpack(">II", head)
                header = json.loads(stream.read(header_bytes & 0xFF_FFFF))
                stream.read(size - 4 - (header_bytes & 0xFF_FFFF))
                client.sendall(response(header["opaque"]))

    return serve


def never(client: socket.socket) -> None:
    """Read requests, and answer none."""
    while client.recv(1 << 16):
        pass


INVALID_FIELDS = {
    "isLeader": "true",
    "controllerLeaderAddress": "x",
    "masterEpoch": "99999999999",
    "masterBrokerId": "-1",
    "nextBrokerId": "0",
}
NONSENSE: dict[str, Serve] = {
    "no answer": never,
    "a closed connection": lambda client: None,
    "a truncated frame": answering(lambda opaque: frame(opaque)[:-5]),
    "a huge frame": answering(
        lambda opaque: struct.pack(">II", HUGE_BYTES, 10) + bytes(SENT_BYTES)
    ),
    "a large body": answering(lambda opaque: with_body(frame(opaque), b"x" * BODY_BYTES)),
    "an error code": answering(lambda opaque: frame(opaque, 1)),
    "not the leader": answering(lambda opaque: frame(opaque, 2007)),
    "invalid fields": answering(lambda opaque: frame(opaque, 0, INVALID_FIELDS)),
    "another request's answer": answering(lambda opaque: frame(opaque + 1)),
    "another protocol": answering(lambda opaque: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
}


def view_of(member: OurMember) -> dict[str, Any]:
    """Return the replication view of a member; empty during a change of role."""
    try:
        response = call(member.broker_port, RequestCode.GET_VIEW, {"view": "replication"})
    except OSError:
        return {}
    found: dict[str, Any] = json.loads(response.body)
    return found


class Sender:
    """Messages with increasing numbers; those that were acknowledged are kept."""

    def __init__(self, member: OurMember) -> None:
        self._member, self._numbers = member, itertools.count()
        self.acknowledged: list[bytes] = []

    def send(self) -> bool:
        """Send a message; return whether it was acknowledged."""
        number = next(self._numbers)
        try:
            is_acknowledged = send_code(self._member, number) == SUCCESS
        except OSError:
            return False
        if is_acknowledged:
            self.acknowledged.append(b"body %d" % number)
        return is_acknowledged


@pytest.mark.extended
def test_a_master_whose_controller_answers_nonsense_is_fenced_and_comes_back(
    tmp_path: Path,
) -> None:
    keys = KEYS | {"controllerHeartBeatTimeoutMills": str(LIMIT_MS)}
    with (
        ApacheController(VERSION, tmp_path / "controller") as controller,
        Relay(controller.controller_port) as relay,
        OurMember(
            controller, tmp_path / "one", keys=keys | {"controllerAddr": relay.address}
        ) as member,
    ):
        member.create_topic(TOPIC)
        sender = Sender(member)
        until(sender.send, seconds=WAIT_S, what="a master")
        for name, serve in NONSENSE.items():
            relay.replace_server(serve)
            until(
                lambda: view_of(member).get("leaseMs") == 0 and view_of(member).get("groupFailure"),
                seconds=WAIT_S,
                what=f"{name}: no lease, and a failure",
            )
            assert not any(sender.send() for _ in range(10)), name
            relay.replace_server(None)
            until(sender.send, seconds=WAIT_S, what=f"a master after {name}")
        relay.replace_server(never)
        member.stop_broker()  # not delayed: the time limit of a child is checked
        relay.replace_server(None)
        member.start()
        until(sender.send, seconds=WAIT_S, what="a master after a start")
        bodies = [record.body for record in pull_topic(member)]
        counted = [body for body in bodies if body in sender.acknowledged]
        assert sorted(counted) == sorted(sender.acknowledged)
