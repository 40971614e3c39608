"""Remoting server over sockets: responses, order, refusals, closing."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import pytest

from duemq.net import codec, layout
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.server import RemotingServer
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError, UsageError
from duemq_common.request import Peer, Request, RequestHandler, Response
from tests.duemq.net.conftest import Run
from tests.support.fakes import settle
from tests.support.raw_connection import WAIT_S, RawPeer, echo


async def refuse(request: Request) -> Response:
    raise RequestError(17, f"topic {request.fields['topic']} not exist")


async def crash(request: Request) -> Response:
    raise KeyError("missing")


async def nothing(request: Request) -> None:
    return None


def server(handlers: dict[int, RequestHandler], **limits: int) -> RemotingServer:
    bounds = RemotingLimits(**limits)
    return RemotingServer(Dispatcher(handlers), limits=bounds, clock=FakeClock())


async def call(
    handlers: dict[int, RequestHandler], *requests: Request
) -> list[codec.ReceivedResponse]:
    async with server(handlers) as remoting:
        await remoting.start("127.0.0.1", 0)
        async with await RawPeer.connect(remoting.ports[0]) as peer:
            for request in requests:
                peer.send(request)
            return [await peer.read_response() for _ in requests]


@pytest.mark.parametrize("serialize_type", [layout.JSON_TYPE, layout.BINARY_TYPE])
def test_answer_comes_in_the_encoding_of_the_request(run: Run, serialize_type: int) -> None:
    async def main() -> None:
        async with server({11: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                request = Request(11, {"a": "b"}, b"body", opaque=-5)
                peer.send(request, serialize_type=serialize_type)
                data = await peer.read_frame()
                assert data[4] == serialize_type
                frame = codec.next_frame(memoryview(data), 0, len(data))
                assert frame is not None
                response = codec.decode_frame(memoryview(data), frame)
                assert response == codec.ReceivedResponse(
                    -5, Response(0, None, {"a": "b"}, b"body"), codec.VERSION
                )

    run(main())


def test_unknown_code_is_answered_with_3(run: Run) -> None:
    [response] = run(call({}, Request(9999, {}, opaque=1)))
    assert (response.opaque, response.response.code) == (1, 3)
    assert "9999" in response.response.remark


def test_request_error_becomes_its_code(run: Run) -> None:
    [response] = run(call({12: refuse}, Request(12, {"topic": "T"}, opaque=1)))
    assert (response.response.code, response.response.remark) == (17, "topic T not exist")


def test_exception_becomes_code_1(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    [response] = run(call({12: crash}, Request(12, {}, opaque=1)))
    assert response.response.code == 1
    assert "KeyError" in response.response.remark
    assert "request 12 failed" in caplog.text


def test_oneway_is_never_answered(run: Run) -> None:
    async def main() -> None:
        async with server({11: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.send(Request(11, {}, opaque=1, oneway=True))
                peer.send(Request(9999, {}, opaque=2, oneway=True))
                peer.send(Request(11, {}, opaque=3))
                assert (await peer.read_response()).opaque == 3

    run(main())


def test_a_held_request_does_not_delay_the_next(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def hold(request: Request) -> Response:
            await release.wait()
            return Response()

        async with server({11: hold, 34: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.send(Request(11, {}, opaque=1))
                peer.send(Request(34, {}, opaque=2))
                assert (await peer.read_response()).opaque == 2
                release.set()
                assert (await peer.read_response()).opaque == 1

    run(main())


def test_too_many_requests_in_flight_are_refused_with_2(run: Run) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def hold(request: Request) -> Response:
            await release.wait()
            return Response()

        async with server({11: hold}, requests_in_flight_max=2) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                for opaque in range(3):
                    peer.send(Request(11, {}, opaque=opaque))
                busy = await peer.read_response()
                assert (busy.opaque, busy.response.code) == (2, 2)
                release.set()
                assert {(await peer.read_response()).opaque for _ in range(2)} == {0, 1}

    run(main())


@pytest.mark.parametrize(
    ("data", "error_text"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x02{]", "JSON header"),
        (b"\x00\x00\x00\x06\x01\x00\x00\x02{]", "binary header"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x02", "frame length"),
        (b"GET / HTTP/1.0\r\n\r\n", "not a RocketMQ client"),
    ],
)
def test_a_malformed_stream_closes_its_connection_only(
    run: Run, caplog: pytest.LogCaptureFixture, data: bytes, error_text: str
) -> None:
    async def main() -> None:
        async with server({11: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as good, await RawPeer.connect(port) as bad:
                bad.writer.write(data)
                assert await bad.at_end()
                good.send(Request(11, {}, opaque=7))
                assert (await good.read_response()).opaque == 7

    with caplog.at_level(logging.WARNING):
        run(main())
    assert error_text in caplog.text
    assert "connection closed" in caplog.text


def test_frames_are_read_from_fragments_of_any_size(run: Run) -> None:
    async def main() -> None:
        async with server({11: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                body = bytes(range(256)) * 1_000
                data = codec.encode_request(Request(11, {}, body, opaque=1))
                for start in range(0, len(data), 50_000):
                    peer.writer.write(data[start : start + 50_000])
                    await peer.writer.drain()
                assert (await peer.read_response()).response.body == body

    run(main())


def test_idle_connection_is_closed(run: Run) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with RemotingServer(Dispatcher({11: echo}), clock=clock) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.send(Request(11, {}, opaque=1))
                await peer.read_response()
                remoting.close_idle(clock.steady_ms())
                remoting.close_idle(clock.steady_ms() + 119_999)
                assert len(remoting.connections) == 1
                peer.send(Request(11, {}, opaque=2))
                await peer.read_response()
                remoting.close_idle(clock.steady_ms() + 120_000)
                remoting.close_idle(clock.steady_ms() + 239_999)
                assert len(remoting.connections) == 1
                remoting.close_idle(clock.steady_ms() + 240_000)
                assert await peer.at_end()

    run(main())


@pytest.mark.parametrize("jump", [FakeClock.step, FakeClock.advance], ids=["clock", "stall"])
def test_a_step_of_the_clock_or_a_stall_makes_no_connection_idle(
    run: Run, jump: Callable[[FakeClock, int], None]
) -> None:
    """All connections were closed that had sent nothing since the last sweep, 10 s at most."""

    async def main() -> None:
        clock, limits = FakeClock(), RemotingLimits()
        async with RemotingServer(Dispatcher({11: echo}), clock=clock) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.send(Request(11, {}, opaque=1))
                await peer.read_response()
                for _ in range(2):
                    await settle()
                    clock.advance(limits.sweep_ms)
                await settle()
                jump(clock, 3_600_000)
                await settle()
                assert len(remoting.connections) == 1
                for _ in range(limits.idle_ms_max // limits.sweep_ms):
                    clock.advance(limits.sweep_ms)
                    await settle()
                assert await peer.at_end()

    run(main())


def test_stop_finishes_requests_in_flight(run: Run) -> None:
    async def main() -> None:
        started, release = asyncio.Event(), asyncio.Event()

        async def slow(request: Request) -> Response:
            started.set()
            await release.wait()
            return Response(0, "done")

        remoting = server({11: slow})
        await remoting.start("127.0.0.1", 0)
        async with await RawPeer.connect(remoting.ports[0]) as peer:
            peer.send(Request(11, {}, opaque=1))
            await started.wait()
            stop = asyncio.ensure_future(remoting.stop())
            release.set()
            await stop
            assert (await peer.read_response()).response.remark == "done"
            assert await peer.at_end()

    run(main())


@pytest.mark.finding("3U6")
def test_a_port_in_use_is_a_usage_error(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            async with server({}) as remoting:
                port = taken.getsockname()[1]
                with pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1") as raised:
                    await remoting.start("127.0.0.1", port, key="embeddedNamesrvPort")
                assert "set embeddedNamesrvPort to a free port" in str(raised.value)
                assert "listenPort" not in str(raised.value)

    run(main())


def test_two_ports_share_handlers(run: Run) -> None:
    async def main() -> None:
        async with server({11: echo}) as remoting:
            await remoting.start("127.0.0.1", 0)
            await remoting.start("127.0.0.1", 0)
            assert len(set(remoting.ports)) == 2
            for port in remoting.ports:
                async with await RawPeer.connect(port) as peer:
                    peer.send(Request(11, {}, opaque=1))
                    assert (await peer.read_response()).response.code == 0

    run(main())


def test_too_many_connections_are_refused(run: Run) -> None:
    async def main() -> None:
        async with server({11: echo}, connections_max=1) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as first:
                first.send(Request(11, {}, opaque=1))
                await first.read_response()
                async with await RawPeer.connect(port) as second:
                    assert await second.at_end()

    run(main())


@pytest.mark.finding("A6")
def test_connections_are_refused_while_descriptors_are_scarce(run: Run) -> None:
    async def main() -> None:
        limits = RemotingLimits(connections_max=1_000)
        few = RemotingServer(
            Dispatcher(), limits=limits, clock=FakeClock(), descriptor_limit=lambda: 6
        )
        async with few as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                assert await peer.at_end()

    run(main())


def test_a_server_calls_its_peer_until_the_peer_closes(run: Run) -> None:
    async def main() -> None:
        peers: list[Peer] = []
        closed: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

        async def remember(request: Request) -> Response:
            assert request.peer is not None
            peers.append(request.peer)
            request.peer.on_close(closed.set_result)
            return Response()

        async with server({34: remember}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as raw:
                raw.send(Request(34, {}, opaque=1))
                await raw.read_response()
                [peer] = peers
                assert peer.address[0] == "127.0.0.1"
                call = asyncio.ensure_future(peer.call(Request(307, {}), timeout_s=WAIT_S))
                requested = await raw.read()
                assert isinstance(requested, Request)
                response = codec.encode_response(Response(0, "info"), requested.opaque)
                raw.writer.write(b"".join(response))
                assert (await call).remark == "info"
                peer.send_oneway(Request(40, {"consumerGroup": "g"}))
                notice = await raw.read()
                assert isinstance(notice, Request)
                assert notice.oneway
                lost = asyncio.ensure_future(peer.call(Request(307, {}), timeout_s=WAIT_S))
                await raw.read()
            assert await asyncio.wait_for(closed, WAIT_S) is peer
            with pytest.raises(ConnectionError):
                await lost
            with pytest.raises(ConnectionError):
                await peer.call(Request(307, {}), timeout_s=WAIT_S)
            peer.send_oneway(Request(40, {}))

    run(main())


def test_call_without_answer_times_out(run: Run) -> None:
    async def main() -> None:
        errors: list[Exception] = []

        async def call_back(request: Request) -> Response:
            assert request.peer is not None
            try:
                await request.peer.call(Request(307, {}), timeout_s=0)
            except TimeoutError as error:
                errors.append(error)
            return Response()

        async with server({34: call_back}) as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as raw:
                raw.send(Request(34, {}, opaque=1))
                while not isinstance(await raw.read(), codec.ReceivedResponse):
                    pass
        assert len(errors) == 1

    run(main())
