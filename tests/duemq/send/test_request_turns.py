"""Commits of offsets: handled at once, in the order of their connection, with all checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.layout import BINARY_TYPE
from duemq.net.limits import RemotingLimits
from duemq.net.memory import LONG_POLL_BYTES
from duemq.net.meters import RpcMeter
from duemq.net.server import RemotingServer
from duemq.send.ingest import DECODED_FRAMES_MAX
from duemq.send.request_turns import COMMIT, COMMIT_BYTES_MAX, COMMITS_MAX, RequestTurns
from duemq_common.clock import FakeClock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import RawPeer
from tests.support.send_path import SendPath, send_request

PULL, LATER = 11, 12


class Rig:
    """Ingest with handlers of commits and pulls, and connections without sockets.

    Attributes:
        handled: Opaque numbers of the requests, in the order of their handling.
        on_handled: Called with each request; `results` has what it returned.
    """

    def __init__(self) -> None:
        self.front, self.clock = SendPath(), FakeClock()
        self.meter = RpcMeter(self.clock)
        self.handled: list[int] = []
        self.on_handled: Callable[[], bool] = lambda: True
        self.results: set[bool] = set()
        self.dispatcher = Dispatcher(
            {COMMIT: self._handle, PULL: self._handle, LATER: self._handle_later},
            access=self._check,
            meter=self.meter,
        )
        self.ingest = self.front.new_ingest(
            time_s=lambda: 0.0,
            dispatcher=self.dispatcher,
        )

    def _check(self, request: Request) -> None:
        if request.fields.get("account") == "other":
            raise RequestError(ResponseCode.NO_PERMISSION, "no permission")

    def _handle(self, request: Request) -> Response:
        assert request.peer is not None
        if request.fields.get("topic") == "unknown":
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "Topic unknown not exist!")
        self.handled.append(request.opaque)
        self.results.add(self.on_handled())
        return Response(fields={})

    async def _handle_later(self, request: Request) -> Response:
        return self._handle(request)

    def receive(self, connection: Connection, data: bytes) -> None:
        connection.received.writable()[: len(data)] = data
        connection.received.received(len(data))
        self.ingest.ready(connection)


def commit(number: int, *, oneway: bool = True, **fields: str) -> Request:
    return Request(COMMIT, {"commitOffset": "7", **fields}, opaque=number, oneway=oneway)


def frames(*requests: Request, serialize_type: int = 0) -> bytes:
    return b"".join(codec.encode_request(each, serialize_type=serialize_type) for each in requests)


async def handled_in_one_turn(data: bytes) -> list[int]:
    """Return what one turn handles of the frames of a connection."""
    rig = Rig()
    connection = Connection(rig.dispatcher, limits=RemotingLimits())
    rig.receive(connection, data)
    rig.ingest.run_turn()
    await asyncio.sleep(0)  # a task begins
    return rig.handled


@pytest.mark.parametrize(
    ("requests", "numbers"),
    [
        ([commit(n) for n in range(5)], [0, 1, 2, 3, 4]),
        ([commit(0), Request(PULL, {}, opaque=1), commit(2)], [0, 1, 2]),
        ([Request(PULL, {}, opaque=0), commit(1), commit(2)], [0, 1, 2]),
        ([commit(0), commit(1, oneway=False), commit(2)], [0, 1, 2]),
        ([commit(0), commit(1, padding="x" * COMMIT_BYTES_MAX), commit(2)], [0, 1, 2]),
        ([commit(0), Request(COMMIT, {}, b"body", 1, oneway=True), commit(2)], [0, 1, 2]),
        ([commit(0), commit(1, topic="unknown"), commit(2)], [0, 2]),
        ([commit(0), commit(1, account="other"), commit(2)], [0, 2]),
    ],
    ids=[
        "alone",
        "before a pull",
        "after a pull",
        "with a response",
        "long",
        "with a body",
        "refused",
        "forbidden",
    ],
)
@pytest.mark.parametrize("serialize_type", [0, BINARY_TYPE], ids=["json", "binary"])
def test_commits_keep_the_order_of_their_connection(
    run: Run, requests: list[Request], numbers: list[int], serialize_type: int
) -> None:
    data = frames(*requests, serialize_type=serialize_type)
    assert run(handled_in_one_turn(data)) == numbers


def test_commits_behind_a_queued_request_do_not_enter_the_queue(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled_at_once: dict[int, bool] = {}
    add = RequestTurns.add

    def recorded(turns: RequestTurns, peer: Connection, request: Request, encoding: int) -> bool:
        handled_at_once[request.opaque] = add(turns, peer, request, encoding)
        return handled_at_once[request.opaque]

    monkeypatch.setattr(RequestTurns, "add", recorded)
    requests = [Request(PULL, {}, opaque=0), commit(1), Request(PULL, {}, opaque=2), commit(3)]
    assert run(handled_in_one_turn(frames(*requests))) == [0, 1, 2, 3]
    assert handled_at_once == {0: False, 1: True, 2: False, 3: True}


def test_a_flood_of_commits_leaves_memory_for_long_polls(run: Run) -> None:
    """The connections are read no faster than their frames are handled."""
    flood = frames(*(commit(0) for _ in range(1_000)))

    async def scene() -> None:
        rig = Rig()
        limits = RemotingLimits(memory_bytes_max=16 * len(flood))
        async with RemotingServer(rig.dispatcher, rig.ingest, limits, clock=FakeClock()) as server:
            rig.on_handled = lambda: server.memory.has_room(LONG_POLL_BYTES)
            await server.start("127.0.0.1", 0)
            peers = [await RawPeer.connect(server.ports[0]) for _ in range(16)]
            for peer in peers:
                peer.writer.write(flood)
                peer.send(Request(PULL, {}, opaque=1))
            for peer in peers:
                assert (await peer.read_response()).opaque == 1
                peer.writer.close()
        assert rig.handled.count(0) == 16 * 1_000
        assert server.memory.shed_count == 0
        assert rig.results == {True}

    run(scene())


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":1,"flag":2,"code":15}',  # not in the order of Java
        b'{"code":15,"opaque":1,"flag":2,"code":12}',  # the last of two members counts
        b'{"code":15,"opaque":1,"flag":2,"extFields":{"a":1}}',  # not as Java writes text
    ],
)
def test_unusual_commits_are_decoded_as_before(run: Run, header: bytes) -> None:
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    data = frames(commit(0)) + frame + frames(commit(2))
    assert sorted(run(handled_in_one_turn(data))) == [0, 1, 2]


@pytest.mark.parametrize("end", range(1, len(frames(commit(1)))))
def test_an_incomplete_commit_waits_for_its_rest(run: Run, end: int) -> None:
    async def scene() -> None:
        rig, data = Rig(), frames(commit(1))
        connection = Connection(rig.dispatcher, limits=RemotingLimits())
        rig.receive(connection, frames(commit(0)) + data[:end])
        rig.ingest.run_turn()
        assert rig.handled == [0]
        rig.receive(connection, data[end:])
        rig.ingest.run_turn()
        assert rig.handled == [0, 1]

    run(scene())


def test_commits_of_one_connection_do_not_delay_another(run: Run) -> None:
    async def scene() -> None:
        rig = Rig()
        many, one = (Connection(rig.dispatcher, limits=RemotingLimits()) for _ in range(2))
        count = 2 * (DECODED_FRAMES_MAX + COMMITS_MAX)
        rig.receive(many, frames(*(commit(0) for _ in range(count))))
        rig.receive(one, frames(commit(1)))
        rig.ingest.run_turn()
        assert rig.handled.index(1) <= DECODED_FRAMES_MAX + COMMITS_MAX
        while rig.handled.count(0) < count:
            rig.ingest.run_turn()

    run(scene())


def test_commits_are_measured_together_by_their_response(run: Run) -> None:
    async def scene() -> None:
        rig = Rig()
        connection = Connection(rig.dispatcher, limits=RemotingLimits())
        requests = commit(0), commit(1, topic="unknown"), commit(2), commit(3, account="other")
        rig.receive(connection, frames(*requests))
        rig.ingest.run_turn()
        rig.ingest.run_turn()
        counts = {key: buckets[-1][1] for key, buckets, _ in rig.meter.ms}
        assert counts == {
            (COMMIT, 0, False, True): 2,
            (COMMIT, ResponseCode.TOPIC_NOT_EXIST, False, True): 1,
            (COMMIT, ResponseCode.NO_PERMISSION, False, True): 1,
        }

    run(scene())


def test_sends_and_malformed_frames_after_commits_go_to_the_kernel(run: Run) -> None:
    async def scene() -> None:
        rig = Rig()
        server = RemotingServer(rig.dispatcher, rig.ingest, clock=FakeClock())
        async with server:
            await server.start("127.0.0.1", 0)
            async with await RawPeer.connect(server.ports[0]) as peer:
                send = send_request(opaque=2, body=b"body")
                peer.writer.write(frames(commit(0), commit(1), send, commit(3)))
                assert (await peer.read_response()).opaque == 2
                peer.writer.write(frames(commit(4), commit(5, oneway=False)))
                assert (await peer.read_response()).opaque == 5
                peer.writer.write(frames(commit(6)) + b"\xff" * 8)
                assert await peer.at_end()
        assert rig.handled == [0, 1, 3, 4, 5, 6]
        assert rig.front.log.bodies == [b"body"]

    run(scene())
