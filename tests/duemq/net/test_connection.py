"""Connection on a transport in memory: backpressure, closing, limits of calls."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from duemq.net import codec
from duemq.net.connection import Connection
from duemq.net.dispatcher import Calls, Dispatcher
from duemq.net.layout import OPAQUE_MASK
from duemq.net.limits import RemotingLimits
from duemq.net.memory import ReceiveBuffer
from duemq_common.errors import RequestError
from duemq_common.request import Peer, Request, RequestHandler, Response
from tests.support.raw_connection import WAIT_S, echo


class MemoryTransport(asyncio.Transport):
    """Transport that records written bytes, and whether reading is paused."""

    def __init__(self, address: tuple[str, int] = ("10.0.0.9", 5_555)) -> None:
        super().__init__({"peername": address})
        self.written = bytearray()
        self.reading = True
        self.closing = False
        self.write_bytes_max = 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.write_bytes_max = high or 0

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


def connection(
    handlers: dict[int, RequestHandler] | None = None, **limits: Any
) -> tuple[Connection, MemoryTransport]:
    transport = MemoryTransport()
    made = Connection(Dispatcher(handlers), limits=RemotingLimits(**limits))
    made.connection_made(transport)
    return made, transport


def receive(made: Connection, data: bytes) -> None:
    made.get_buffer(-1)[: len(data)] = data
    made.buffer_updated(len(data))


def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async def main() -> None:
        made, transport = connection(write_buffer_bytes_max=1_000)
        assert transport.write_bytes_max == 1_000
        made.pause_writing()
        assert not transport.reading
        made.pause()
        made.resume()
        assert not transport.reading
        made.resume_writing()
        assert transport.reading

    asyncio.run(main())


def test_a_stopping_connection_does_not_read() -> None:
    async def main() -> None:
        made, transport = connection()
        made.stop_reading()
        made.resume()
        made.resume_writing()
        assert not transport.reading

    asyncio.run(main())


def test_a_drain_cancels_late_requests() -> None:
    async def main() -> None:
        async def hold(request: Request) -> Response:
            await asyncio.Event().wait()
            return Response()

        made, transport = connection({11: hold})
        receive(made, codec.encode_request(Request(11, {}, opaque=1)))
        assert made.requests_in_flight == 1
        await made.drain(0)
        assert made.requests_in_flight == 0
        assert transport.closing
        assert not transport.written

    asyncio.run(main())


def test_a_failing_close_callback_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        made, _ = connection()
        calls: list[Peer] = []

        def broken(peer: Peer) -> None:
            raise ValueError("broken callback")

        made.on_close(broken)
        made.on_close(calls.append)
        made.connection_lost(None)
        made.connection_lost(None)
        assert calls == [made]
        made.on_close(calls.append)
        assert calls == [made, made]

    asyncio.run(main())
    assert "a close callback failed" in caplog.text


def test_calls_in_flight_are_limited() -> None:
    async def main() -> None:
        made, _ = connection(calls_in_flight_max=2)
        calls = [asyncio.ensure_future(made.call(Request(307, {}), timeout_s=9)) for _ in "ab"]
        await asyncio.sleep(0)
        with pytest.raises(ConnectionError, match="2 calls are in flight"):
            await made.call(Request(307, {}), timeout_s=9)
        responses = [b"".join(codec.encode_response(Response(n), n)) for n in (2, 1, 77)]
        receive(made, b"".join(responses))
        assert [(await call).code for call in calls] == [1, 2]

    asyncio.run(main())


def test_opaque_numbers_wrap_and_skip_those_in_use() -> None:
    async def main() -> None:
        calls, written = Calls("peer", 9), bytearray()
        call = asyncio.ensure_future(calls.call(Request(307, {}), written.extend, 9))
        await asyncio.sleep(0)
        calls._last_opaque = OPAQUE_MASK - 1
        assert [calls.next_opaque() for _ in range(4)] == [OPAQUE_MASK, 0, 2, 3]
        frame = codec.next_frame(memoryview(written), 0, len(written))
        assert frame is not None
        sent = codec.decode_frame(memoryview(written), frame)
        assert isinstance(sent, Request)
        assert (sent.opaque, sent.oneway) == (1, False)
        call.cancel()

    asyncio.run(main())


def test_a_response_in_the_turn_of_the_timeout_is_returned() -> None:
    """A loop that was late reads the response and ends the call in one turn."""

    async def main() -> None:
        calls, response = Calls("peer", 9), Response(0, "read")
        loop = asyncio.get_running_loop()

        def write(frame: bytes) -> None:
            loop.call_soon(calls.receive, codec.ReceivedResponse(1, response, 0))

        assert await calls.call(Request(307, {}), write, 0) is response
        with pytest.raises(TimeoutError):
            await calls.call(Request(307, {}), lambda frame: None, 0)

    asyncio.run(main())


def test_an_answer_over_the_frame_limit_becomes_code_1() -> None:
    async def main() -> None:
        async def big(request: Request) -> Response:
            return Response(0, None, None, bytes(codec.FRAME_BYTES_MAX))

        made, transport = connection({11: big})
        receive(made, codec.encode_request(Request(11, {}, opaque=1)))
        await made.finish(9)
        data = memoryview(transport.written)
        frame = codec.next_frame(data, 0, len(data))
        assert frame is not None
        response = codec.decode_frame(data, frame)
        assert isinstance(response, codec.ReceivedResponse)
        assert response.response.code == 1
        assert "exceeds the limit" in (response.response.remark or "")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "born"),
    [
        (("10.0.0.9", 5), (bytes([10, 0, 0, 9]), 5)),
        (("::ffff:10.0.0.9", 5), (bytes([10, 0, 0, 9]), 5)),
        (("::1", 5), (bytes(15) + b"\1", 5)),
        (("fe80::1%eth0", 5), (bytes.fromhex("fe80") + bytes(13) + b"\1", 5)),
    ],
)
def test_born_host(address: tuple[str, int], born: tuple[bytes, int]) -> None:
    async def main() -> None:
        made = Connection(Dispatcher(), limits=RemotingLimits())
        made.connection_made(MemoryTransport(address))
        assert made.born_host == born

    asyncio.run(main())


def test_fragments_of_a_frame_are_joined() -> None:
    async def main() -> None:
        made, transport = connection({11: echo})
        request = Request(11, {"a": "b"}, b"body", opaque=3, version=479)
        data = codec.encode_request(request)
        for byte in data * 2:
            receive(made, bytes([byte]))
        await made.finish(9)
        view, pos, count = memoryview(transport.written), 0, 0
        while (frame := codec.next_frame(view, pos, len(view))) is not None:
            response = codec.decode_frame(view, frame)
            assert response == codec.ReceivedResponse(
                3, Response(0, None, {"a": "b"}, b"body"), codec.VERSION
            )
            pos, count = frame.end, count + 1
        assert count == 2
        assert msgspec.structs.asdict(made.limits)["idle_ms_max"] == 120_000

    asyncio.run(main())


def response_of(transport: MemoryTransport) -> Response:
    view = memoryview(bytes(transport.written))
    frame = codec.next_frame(view, 0, len(view))
    assert frame is not None
    response = codec.decode_frame(view, frame)
    assert isinstance(response, codec.ReceivedResponse)
    return response.response


def refuse(request: Request) -> Response:
    raise RequestError(7, "no")


def fail(request: Request) -> Response:
    raise ZeroDivisionError("never mind")


AT_ONCE = [
    ("answered", lambda request: Response(0, "yes"), (0, "yes")),
    ("refused", refuse, (7, "no")),
    ("a bug", fail, (1, "ZeroDivisionError: never mind")),
]


@pytest.mark.parametrize(
    ("begin", "expected"), [row[1:] for row in AT_ONCE], ids=[r[0] for r in AT_ONCE]
)
def test_a_handler_that_responds_at_once_has_no_task(begin: Any, expected: tuple[int, str]) -> None:
    async def main() -> None:
        made, transport = connection({11: begin})
        receive(made, codec.encode_request(Request(11, {}, opaque=1)))
        assert made.requests_in_flight == 0
        response = response_of(transport)
        assert (response.code, response.remark) == expected

    asyncio.run(main())


def test_a_plain_handler_that_returns_an_awaitable_has_a_task() -> None:
    async def later() -> Response:
        await may_answer.wait()
        return Response(0, "later")

    async def main() -> None:
        made, transport = connection({11: lambda request: later()})
        receive(made, codec.encode_request(Request(11, {}, opaque=1)))
        await asyncio.sleep(0)
        assert (made.requests_in_flight, transport.written) == (1, b"")  # type: ignore[comparison-overlap]
        may_answer.set()
        await made.finish(1)
        assert response_of(transport).remark == "later"

    may_answer = asyncio.Event()
    asyncio.run(main())


def test_handlers_wait_while_responses_are_unread() -> None:
    class FullTransport(MemoryTransport):
        def get_write_buffer_size(self) -> int:
            return 0 if self.written_all else 1 << 24

        written_all = False

    async def main() -> None:
        transport = FullTransport()
        made = Connection(Dispatcher({11: lambda request: Response()}), limits=RemotingLimits())
        made.connection_made(transport)
        receive(made, codec.encode_request(Request(11, {}, opaque=1)))
        await asyncio.sleep(0)
        assert transport.written == b""
        transport.written_all = True
        await made.finish(1)
        assert response_of(transport).code == 0

    asyncio.run(main())


class StalledTransport(MemoryTransport):
    """Transport to a peer that does not read: written bytes stay in the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.finding("E6")
def test_notices_to_a_peer_that_does_not_read_are_dropped() -> None:
    async def main() -> None:
        transport = StalledTransport()
        made = Connection(Dispatcher(), limits=RemotingLimits())
        made.connection_made(transport)
        for _ in range(10_000):
            made.send_oneway(Request(40, {"consumerGroup": "g" * 100}))
        assert len(transport.written) < made.limits.notices_bytes_max + 1_000
        assert made.charged_bytes == len(transport.written)

    asyncio.run(main())


@pytest.mark.finding("E6")
@pytest.mark.parametrize(("oneway", "handled"), [(False, 0), (True, 3)])
def test_requests_of_a_closed_peer_are_not_handled(oneway: bool, handled: int) -> None:
    async def main() -> None:
        seen = []

        async def count(request: Request) -> Response:
            seen.append(request)
            return Response()

        transport = StalledTransport()
        made = Connection(Dispatcher({34: count}), limits=RemotingLimits())
        made.connection_made(transport)
        transport.written += bytes(9 << 20)
        for number in range(3):
            request = Request(34, {}, opaque=number, oneway=oneway)
            receive(made, codec.encode_request(request))
        await asyncio.sleep(0)
        made.pause_writing()
        made.connection_lost(None)
        await made.finish(1)
        assert len(seen) == handled
        assert made.charged_bytes == 0

    asyncio.run(main())


@pytest.mark.finding("E6")
def test_closing_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async def main() -> None:
        transport = StalledTransport()
        made = Connection(Dispatcher(), limits=RemotingLimits(close_wait_s=0.0))
        made.connection_made(transport)
        made.write(b"never read")
        made.close()
        await asyncio.wait_for(transport.aborted.wait(), WAIT_S)

    asyncio.run(main())


@pytest.mark.finding("3D13")
def test_a_read_without_memory_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        made, transport = connection()
        aborted: list[bool] = []
        monkeypatch.setattr(transport, "abort", lambda: aborted.append(True), raising=False)

        def without_memory(buffer: ReceiveBuffer, size_max: int) -> memoryview:
            raise MemoryError

        monkeypatch.setattr(ReceiveBuffer, "writable", without_memory)
        receive(made, b"x")
        assert (made.closed, aborted) == (True, [True])

    asyncio.run(run())
