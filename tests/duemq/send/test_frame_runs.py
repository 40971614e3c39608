"""Requests that the ingest passes to its `BatchedRequests`, here a fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.send.ingest import TURN_S
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from tests.duemq.net.conftest import Run
from tests.support.raw_connection import RawPeer
from tests.support.send_path import SendPath, send_request

RUN, PLAIN = 12, 11


class FakeRuns:
    """Accepts requests 12 unless their body is `no`, and frames equal to the last one undecoded.

    Attributes:
        events: What was called, with the opaque or the number of frames.
        now_s: Clock of the ingest; every call of `take_matching` that finds frames takes two turns.
    """

    codes = frozenset({RUN})

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.now_s = 0.0
        self.taken: list[tuple[Connection, int]] = []
        self.matching_max = 0
        self.drained = 0

    def begin(self) -> None:
        self.events.append(("begin", 0))

    def take(
        self, connection: Connection, request: Request, serialize_type: int, frame: bytes
    ) -> bool:
        place = codec.next_frame(memoryview(frame), 0, len(frame))
        assert place is not None
        assert place.end == len(frame)
        again = codec.decode_frame(memoryview(frame), place)
        assert isinstance(again, Request)
        assert (again.opaque, serialize_type) == (request.opaque, 0)
        if request.body == b"no":
            return False
        self.events.append(("take", request.opaque))
        self.taken.append((connection, request.opaque))
        return True

    def take_matching(self, connection: Connection) -> bool:
        received, count = connection.received, 0
        while count < self.matching_max:
            place = codec.next_frame(received.view, received.start, received.end)
            if place is None:
                break
            command = codec.decode_frame(received.view, place)
            if not isinstance(command, Request) or command.body != b"alike":
                break
            self.taken.append((connection, command.opaque))
            received.take(place.end)
            count += 1
        if count:
            self.events.append(("alike", count))
            self.now_s += 2 * TURN_S
        return count > 0

    def finish(self) -> None:
        self.events.append(("finish", len(self.taken)))
        taken, self.taken = self.taken, []
        for connection, opaque in taken:
            connection.write(b"".join(codec.encode_response(Response(), opaque)))

    async def drain(self) -> None:
        await asyncio.sleep(0)
        self.drained += 1


async def serve(
    front: SendPath, runs: FakeRuns, plain: Callable[[Request], Response]
) -> RemotingServer:
    ingest = front.new_ingest(
        time_s=lambda: runs.now_s,
        batched=runs,
    )
    server = RemotingServer(Dispatcher({RUN: plain, PLAIN: plain}), ingest, clock=FakeClock())
    await server.start("127.0.0.1", 0)
    return server


def test_batched_requests_of_a_turn_are_handled_together_and_others_singly(run: Run) -> None:
    async def main() -> None:
        front, runs, handled = SendPath(), FakeRuns(), list[int]()

        def plain(request: Request) -> Response:
            handled.append(request.opaque)
            return Response()

        server = await serve(front, runs, plain)
        async with await RawPeer.connect(server.ports[0]) as peer:
            peer.writer.write(
                b"".join(
                    codec.encode_request(request)
                    for request in (
                        Request(RUN, {}, opaque=1),
                        send_request(opaque=2),
                        Request(RUN, {}, b"no", opaque=3),
                        Request(PLAIN, {}, opaque=4),
                        Request(RUN, {}, opaque=5),
                    )
                )
            )
            found = {(await peer.read_response()).opaque for _ in range(5)}
            assert found == {1, 2, 3, 4, 5}
        await server.stop()
        assert handled == [3, 4]
        assert runs.events[:4] == [("begin", 0), ("take", 1), ("take", 5), ("finish", 2)]
        assert front.log.batches == [1]
        assert runs.drained > 0

    run(main())


def test_matching_frames_beyond_the_turn_limit_are_handled_in_the_next_turn(run: Run) -> None:
    async def main() -> None:
        front, runs = SendPath(), FakeRuns()
        runs.matching_max = 10
        server = await serve(front, runs, lambda request: Response())
        async with await RawPeer.connect(server.ports[0]) as peer:
            frames = [codec.encode_request(Request(RUN, {}, b"alike", opaque=n)) for n in range(25)]
            peer.writer.write(b"".join(frames))
            opaques = [(await peer.read_response()).opaque for _ in range(25)]
            assert opaques == list(range(25))
        await server.stop()
        taken = [event for event in runs.events if event[0] in ("alike", "finish")]
        assert taken[:6] == [
            ("alike", 10),
            ("finish", 10),
            ("alike", 10),
            ("finish", 10),
            ("alike", 5),
            ("finish", 5),
        ]

    run(main())
