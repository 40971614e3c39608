"""Turns with thousands of ready connections: order, fairness, and cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.send.ingest import (
    CONNECTIONS_PER_CLOCK_READ,
    DECODED_FRAMES_MAX,
    FEW_BYTES,
    TURN_S,
)
from duemq_common.request import Request, Response
from tests.support.processor_time import costs_s
from tests.support.send_path import SendPath, send_request

INCOMPLETE = bytes(3)
PULL, OTHER = 11, 30


class ReadyRig:
    """Ingest whose clock passes a turn at certain events, and connections without sockets.

    Args:
        read_s, handle_s: What passes at each reading of the clock, and at each request.
    Attributes:
        handled: Bodies of the handled requests, in order.
    """

    def __init__(self, *, read_s: float = 2 * TURN_S, handle_s: float = 0.0) -> None:
        self.front, self._read_s, self._handle_s = SendPath(), read_s, handle_s
        self.now_s = 0.0
        self.handled: list[bytes] = []
        self.ingest = self.front.new_ingest(
            time_s=self._time_s,
        )
        self.dispatcher = Dispatcher({PULL: self._handle, OTHER: self._handle})

    def _time_s(self) -> float:
        self.now_s += self._read_s
        return self.now_s

    def _handle(self, request: Request) -> Response:
        self.now_s += self._handle_s
        self.handled.append(request.body)
        return Response()

    def many(self) -> int:
        return sum(body.startswith(b"many") for body in self.handled)

    def connection(self, data: bytes = b"") -> Connection:
        made = Connection(self.dispatcher, limits=RemotingLimits())
        if data:
            self.receive(made, data)
        return made

    def receive(self, connection: Connection, data: bytes) -> None:
        connection.received.writable()[: len(data)] = data
        connection.received.received(len(data))
        self.ingest.ready(connection)


def frames(count: int, name: str, code: int = OTHER) -> bytes:
    requests = (Request(code, {}, f"{name}{number}".encode()) for number in range(count))
    return b"".join(codec.encode_request(request) for request in requests)


def test_every_connection_has_a_turn_among_some_with_endless_frames() -> None:
    async def scene() -> None:
        rig = ReadyRig()
        busy = [rig.connection() for _ in range(8)]
        for _ in range(60):
            for each in busy:
                if len(each.received) <= FEW_BYTES:
                    rig.receive(each, frames(60, "many"))
            rig.ingest.run_turn()
        quiet = rig.connection(frames(1, "one"))
        turns = 0
        while b"one0" not in rig.handled:
            turns += 1
            for each in busy:
                if len(each.received) <= FEW_BYTES:
                    rig.receive(each, frames(60, "many"))
            rig.ingest.run_turn()
        assert turns < 3 * len(busy)
        before = rig.many()
        for _ in range(100):
            rig.receive(quiet, frames(1, "one"))  # a quiet one does not stop the busy ones either
            rig.ingest.run_turn()
        assert rig.many() > before + 25

    asyncio.run(scene())


def test_requests_do_not_wait_for_the_commits_of_other_connections() -> None:
    """Consumers commit the offset of each queue every 5 s, and do not wait for it."""

    async def scene() -> None:
        rig = ReadyRig()
        commit = codec.encode_request(Request(15, {"offset": "1"}, oneway=True))
        consumers = [rig.connection(commit * 10) for _ in range(40)]
        rig.ingest.run_turn()
        for each in consumers[:4]:
            rig.receive(each, commit)
        rig.connection(frames(1, "one"))
        for _ in range(4):
            rig.ingest.run_turn()
        assert b"one0" in rig.handled
        turns = 4
        while any(len(each.received) for each in consumers):
            turns += 1
            rig.connection(frames(1, "other"))
            rig.ingest.run_turn()
        assert turns < 3 * 10 * len(consumers)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "rig_of", [lambda: ReadyRig(read_s=TURN_S / 8), lambda: ReadyRig(read_s=0, handle_s=TURN_S / 4)]
)
def test_requests_and_sends_do_not_wait_for_the_pulls_of_other_connections(
    rig_of: Callable[[], ReadyRig],
) -> None:
    """Turns have not enough time to parse the pulls, or to handle them."""

    async def scene() -> None:
        rig = rig_of()
        for _ in range(200):
            rig.connection(frames(10, "many", PULL))
        for _ in range(10):
            rig.ingest.run_turn()
        rig.connection(frames(1, "one"))
        rig.connection(codec.encode_request(send_request(body=b"sent")))
        for _ in range(3):
            rig.ingest.run_turn()
        assert b"one0" in rig.handled
        assert rig.front.log.bodies == [b"sent"]
        before = len(rig.handled), rig.many()
        for _ in range(100):
            for _ in range(20):  # more than a turn handles: they get half of it
                rig.connection(frames(1, "other"))
            rig.ingest.run_turn()
        handled, pulls = len(rig.handled) - before[0], rig.many() - before[1]
        assert handled / 3 < pulls < handled * 2 / 3

    asyncio.run(scene())


def test_frames_of_a_connection_with_queued_requests_follow_them() -> None:
    async def scene() -> None:
        rig = ReadyRig()
        connections = [rig.connection(frames(5, f"{number}-")) for number in range(20)]
        for number, each in enumerate(connections):
            rig.ingest.run_turn()
            rig.receive(each, frames(1, f"{number}-later"))
        await rig.ingest.drain()
        for number in range(20):
            own = [body for body in rig.handled if body.startswith(b"%d-" % number)]
            expected = [b"%d-%d" % (number, index) for index in range(5)]
            assert own == [*expected, b"%d-later0" % number]

    asyncio.run(scene())


def test_a_connection_queues_no_more_requests_than_one_turn_decodes() -> None:
    async def scene() -> None:
        rig = ReadyRig(read_s=0.0, handle_s=2 * TURN_S)
        connection = rig.connection(frames(400, "m"))
        frame_bytes = len(frames(1, "m0"))
        for _ in range(1_000):
            rig.ingest.run_turn()
            decoded = 400 - len(connection.received) // frame_bytes
            assert decoded - len(rig.handled) <= 2 * DECODED_FRAMES_MAX
        assert len(rig.handled) == 400

    asyncio.run(scene())


def test_sends_after_queued_requests_are_appended_in_order() -> None:
    async def scene() -> None:
        rig = ReadyRig()
        sends = [send_request(opaque=n, body=b"%d" % n) for n in range(40)]
        connection = rig.connection()
        for number, send in enumerate(sends):
            rig.receive(connection, frames(2, "between") + codec.encode_request(send))
            if number % 3 == 0:
                rig.ingest.run_turn()
        await rig.ingest.drain()
        assert rig.front.log.bodies == [b"%d" % n for n in range(40)]
        assert len(rig.handled) == 80

    asyncio.run(scene())


@pytest.mark.parametrize("data", [INCOMPLETE, frames(1, "x")], ids=["incomplete", "request"])
def test_a_turn_costs_the_same_with_thousands_of_ready_connections(data: bytes) -> None:
    """One that ends after some connections does not visit the others, nor sort them."""

    def turns_of(count: int) -> Callable[[], None]:
        rig = ReadyRig()
        connections = [rig.connection() for _ in range(count)]

        def turns() -> None:
            for each in connections:
                if not len(each.received):
                    rig.receive(each, data)
            for _ in range(count // CONNECTIONS_PER_CLOCK_READ // 4):
                rig.ingest.run_turn()

        turns()
        return turns

    async def scene() -> list[float]:
        return costs_s(turns_of(200), turns_of(4_000))

    few, many = asyncio.run(scene())
    assert many / 4_000 < 3 * few / 200
