"""The length of an ingest turn is bounded for any input of one peer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.send.ingest import DECODED_FRAMES_MAX, TURN_S
from duemq.send.request_turns import LARGE_BYTES
from duemq.send.responses import DecodedSend
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from message_store.log.batch import PutBatch
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import WAIT_S, RawPeer
from tests.support.send_path import SendPath, send_request

MANY, LARGE = 500, 100


class Slow:
    """Handler that advances its clock by more than one turn at each request."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handled: list[bytes] = []

    def begin(self, request: Request) -> Response:
        self.now_s += TURN_S * 2
        self.handled.append(request.body)
        return Response()


@pytest.mark.finding("E5")
def test_many_requests_of_one_peer_do_not_delay_another_peer(run: Run) -> None:
    async def main() -> None:
        front, slow = SendPath(), Slow()
        ingest = front.new_ingest(
            time_s=lambda: slow.now_s,
        )
        server = RemotingServer(Dispatcher({11: slow.begin}), ingest, clock=FakeClock())
        async with server:
            await server.start("127.0.0.1", 0)
            port = server.ports[0]
            async with await RawPeer.connect(port) as many, await RawPeer.connect(port) as one:
                for number in range(MANY):
                    many.send(Request(11, {}, b"many", opaque=number))
                await many.read_response()  # the others are there by now, or soon
                one.send(Request(11, {}, b"one", opaque=1))
                await one.read_response()
                before = slow.handled.index(b"one")
                assert before < MANY // 2
                for _ in range(1, MANY):
                    await many.read_response()
        assert slow.handled.count(b"many") == MANY

    run(main())


def test_frames_beyond_a_turn_keep_their_order(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        server = RemotingServer(Dispatcher(), front.ingest, clock=FakeClock())
        async with server:
            await server.start("127.0.0.1", 0)
            async with await RawPeer.connect(server.ports[0]) as peer:
                count = 3 * DECODED_FRAMES_MAX
                for number in range(count):  # every other one is left to Python
                    text = f"UNIQ_KEY\x01U{number}\x02" if number % 2 else ""
                    peer.send(send_request(opaque=number, body=b"%d" % number, properties=text))
                codes = [(await peer.read_response()).response.code for _ in range(count)]
        assert codes == [0] * count
        assert front.log.bodies == [b"%d" % number for number in range(count)]

    run(main())


def test_stop_handles_every_received_frame(run: Run) -> None:
    async def main() -> None:
        front, slow = SendPath(), Slow()
        ingest = front.new_ingest(
            time_s=lambda: slow.now_s,
        )
        server = RemotingServer(Dispatcher({11: slow.begin}), ingest, clock=FakeClock())
        await server.start("127.0.0.1", 0)
        async with await RawPeer.connect(server.ports[0]) as peer:
            for number in range(100):
                peer.send(Request(11, {}, opaque=number))
            await peer.read_response()
            await server.stop()
            async with asyncio.timeout(WAIT_S):
                rest = await peer.reader.read()
        assert rest.count(b'"code":0') == len(slow.handled) - 1

    run(main())


@pytest.mark.finding("3D14")
def test_large_requests_of_many_peers_do_not_delay_a_small_one(run: Run) -> None:
    async def main() -> None:
        front = SendPath()
        handled: list[int] = []

        async def handle(request: Request) -> Response:
            handled.append(len(request.body))
            return Response()

        server = RemotingServer(Dispatcher({11: handle}), front.ingest, clock=FakeClock())
        async with server, AsyncExitStack() as stack:
            await server.start("127.0.0.1", 0)
            connections = [RawPeer.connect(server.ports[0]) for _ in range(LARGE + 1)]
            *many, one = [await stack.enter_async_context(await each) for each in connections]
            for peer in many:
                peer.send(Request(11, {}, bytes(LARGE_BYTES + 1)))
            await many[0].read_response()
            one.send(Request(11, {}, b"small"))
            await one.read_response()
            assert handled.index(len(b"small")) < LARGE // 2
            for peer in many[1:]:
                await peer.read_response()
        assert len(handled) == LARGE + 1

    run(main())


@pytest.mark.finding("3D14")
def test_large_requests_that_wait_are_charged(run: Run) -> None:
    async def main() -> None:
        front, size = SendPath(), LARGE_BYTES + 1
        charged: list[tuple[int, int]] = []

        async def handle(request: Request) -> Response:
            assert isinstance(request.peer, Connection)
            charged.append((request.peer.in_flight_bytes, request.peer.charged_bytes))
            return Response()

        server = RemotingServer(Dispatcher({11: handle}), front.ingest, clock=FakeClock())
        async with server:
            await server.start("127.0.0.1", 0)
            async with await RawPeer.connect(server.ports[0]) as peer:
                for number in range(8):
                    peer.send(Request(11, {}, bytes(size), opaque=number))
                for _ in range(8):
                    await peer.read_response()
        most = max(in_flight for in_flight, _ in charged)
        assert most >= 2 * size
        assert all(in_flight <= total for in_flight, total in charged)
        assert charged[-1][0] < 2 * size

    run(main())


@pytest.mark.finding("3S7")
def test_sends_that_python_decodes_end_a_turn_in_time(run: Run) -> None:
    """Each costs more than a turn here: no turn has two of them."""

    async def main() -> None:
        front, now_s = SendPath(), [0.0]
        fill = front.sender.fill

        def slow(request: Request, born_host: tuple[bytes, int], batch: PutBatch) -> DecodedSend:
            now_s[0] += 2 * TURN_S
            return fill(request, born_host, batch)

        front.sender.fill = slow
        ingest = front.new_ingest(
            time_s=lambda: now_s[0],
        )
        server = RemotingServer(Dispatcher(), ingest, clock=FakeClock())
        async with server, AsyncExitStack() as stack:
            await server.start("127.0.0.1", 0)
            connections = [RawPeer.connect(server.ports[0]) for _ in range(8)]
            peers = [await stack.enter_async_context(await each) for each in connections]
            for peer in peers:
                for number in range(4):
                    peer.send(send_request(opaque=number, body=b"x", properties=""))
            for peer in peers:
                for _ in range(4):
                    await peer.read_response()
        assert front.log.batches == [1] * 32

    run(main())


class Readings:
    """Clock that advances by 1 ms at each reading.

    Attributes:
        count: Number of readings.
    """

    def __init__(self) -> None:
        self.count, self.now_s = 0, 1_000.0

    def __call__(self) -> float:
        self.count += 1
        self.now_s += 0.001
        return self.now_s


@pytest.mark.parametrize(
    ("pause_s", "poll_s", "reads_min", "reads_max"),
    [(0.0, 0.1, 60, 110), (1.0, 0.1, 0, 10), (0.0, 0.0, 0, 10)],
)
def test_the_loop_polls_after_turns_that_follow_each_other(
    run: Run, pause_s: float, poll_s: float, reads_min: int, reads_max: int
) -> None:
    """It polls for `poll_s`, and only if the second turn came within this time."""

    async def main() -> None:
        front, clock = SendPath(), Readings()
        ingest = front.new_ingest(
            time_s=clock,
            poll_s=poll_s,
        )
        server = RemotingServer(Dispatcher(), ingest, clock=FakeClock())
        async with server:
            await server.start("127.0.0.1", 0)
            async with await RawPeer.connect(server.ports[0]) as peer:
                for number in range(2):
                    clock.now_s += pause_s
                    peer.send(send_request(opaque=number, body=b"m"))
                    await peer.read_response()
                before = clock.count
                for _ in range(500):
                    await asyncio.sleep(0)
                assert reads_min <= clock.count - before <= reads_max

    run(main())
