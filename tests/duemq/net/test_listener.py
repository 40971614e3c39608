"""First bytes of a connection: plaintext, TLS, PROXY header, none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any

import pytest

from duemq.net import codec
from duemq.net.allowed_networks import Sources
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.limits import RemotingLimits
from duemq.net.proxy_protocol import V2_SIGNATURE
from duemq.net.server import RemotingServer
from duemq.net.tls import ServerTls
from duemq.net.tls_config import TlsConfig
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from tests.duemq.net.conftest import Run
from tests.support.certificates import trusting_context
from tests.support.raw_connection import WAIT_S, RawPeer, echo
from tests.support.replica_rig import until

NO_FILE = "/nonexistent/tls.properties"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 10911\r\n"


async def address_of_peer(request: Request) -> Response:
    assert request.peer is not None
    host, port = request.peer.address
    return Response(0, f"{host}:{port}")


def server(mode: str = "permissive", **limits: int) -> RemotingServer:
    return RemotingServer(
        Dispatcher({11: echo, 12: address_of_peer}),
        limits=RemotingLimits(**limits),
        clock=FakeClock(),
        tls=ServerTls(TlsConfig(mode=mode, config_file=NO_FILE)),
    )


async def can_call(port: int, tls: ssl.SSLContext | None) -> bool:
    async with RemotingClient(f"127.0.0.1:{port}", tls=tls) as client:
        try:
            response = await client.call(Request(11, {"a": "b"}, b"body"), timeout_s=WAIT_S)
        except OSError:
            return False
        return response == Response(0, None, {"a": "b"}, b"body")


async def two_openings(remoting: RemotingServer) -> None:
    """Wait until the listener has two accepted sockets without a connection."""
    [listener] = remoting.listeners
    await until(lambda: len(listener) == 2)


@pytest.mark.parametrize(
    ("mode", "plaintext", "encrypted"),
    [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)],
)
def test_each_tls_mode_accepts_its_protocols(
    run: Run, caplog: pytest.LogCaptureFixture, mode: str, plaintext: bool, encrypted: bool
) -> None:
    async def main() -> tuple[bool, bool]:
        async with server(mode) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            return await can_call(port, None), await can_call(port, trusting_context())

    with caplog.at_level(logging.WARNING):
        assert run(main()) == (plaintext, encrypted)
    assert (f"tls.server.mode={mode}" in caplog.text) == (mode != "permissive")


def test_large_frames_and_pieces_pass_through_tls(run: Run) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            address = f"127.0.0.1:{remoting.ports[0]}"
            async with RemotingClient(address, tls=trusting_context()) as client:
                bodies = [bytes([n]) * (n * 100_003) for n in range(1, 12)]
                responses = await asyncio.gather(
                    *(client.call(Request(11, {}, body), timeout_s=WAIT_S) for body in bodies)
                )
                assert [bytes(response.body or b"") for response in responses] == bodies
                [connection] = remoting.connections
                assert connection.is_encrypted

    run(main())


def test_a_failed_handshake_does_not_affect_other_connections(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as bad:
                bad.writer.write(b"\x16\x03\x01\x00\x05hello")
                async with asyncio.timeout(WAIT_S):
                    await bad.reader.read()  # an alert, then the end
            assert await can_call(port, trusting_context())

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "TLS handshake failed" in caplog.text


@pytest.mark.parametrize("tls", [False, True])
def test_a_proxy_header_names_the_client(run: Run, tls: bool) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                for at in range(len(V1)):  # in any pieces
                    peer.writer.write(V1[at : at + 1])
                    await peer.writer.drain()
                if tls:
                    await peer.writer.start_tls(trusting_context())
                peer.send(Request(12, {}, opaque=1))
                assert (await peer.read_response()).response.remark == "192.0.2.7:56324"

    run(main())


def test_a_proxy_header_without_a_client_keeps_the_address(run: Run) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.writer.write(b"PROXY UNKNOWN\r\n")
                peer.send(Request(12, {}, opaque=1))
                remark = (await peer.read_response()).response.remark or ""
                assert remark.startswith("127.0.0.1:")

    run(main())


def test_a_proxy_header_of_an_untrusted_peer_is_refused(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            monkeypatch.setattr(Sources, "allows", lambda self, address: address == "10.0.0.1")
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.writer.write(V1)
                assert await peer.at_end()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert "proxyProtocolFrom does not name its address" in caplog.text


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"PROXY TCP4 " + b"1" * 100, "has no end within 107 bytes"),
        (V2_SIGNATURE + b"\x21\x11\xff\xff", "of 65535 bytes; the limit is 4096"),
        (b"POST / HTTP/1.1\r\n", "not a RocketMQ client"),
    ],
)
def test_the_log_line_about_a_malformed_header_names_the_cause(
    run: Run, caplog: pytest.LogCaptureFixture, header: bytes, why: str
) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.writer.write(header)
                assert await peer.at_end()

    with caplog.at_level(logging.WARNING):
        run(main())
    assert why in caplog.text


@pytest.mark.parametrize(
    "data", [b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\nGET /", V1[:9] + b"\r\n" * 9]
)
def test_other_protocols_are_closed(run: Run, data: bytes) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.writer.write(data)
                assert await peer.at_end()
            assert await can_call(remoting.ports[0], None)

    run(main())


def test_a_silent_peer_counts_as_a_connection_and_is_closed_when_idle(run: Run) -> None:
    async def main() -> None:
        async with server(connections_max=2) as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as silent, await RawPeer.connect(port) as half:
                half.writer.write(V1[:20])
                await two_openings(remoting)
                async with await RawPeer.connect(port) as third:
                    assert await third.at_end()
                now_ms = FakeClock().steady_ms()
                remoting.close_idle(now_ms + 119_999)
                assert len(remoting.listeners[0]) == 2
                remoting.close_idle(now_ms + 120_000)
                assert await silent.at_end()
                assert await half.at_end()
                assert await can_call(port, None)

    run(main())


def test_stop_closes_silent_peers_and_handshakes(run: Run) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            port = remoting.ports[0]
            async with await RawPeer.connect(port) as silent, await RawPeer.connect(port) as half:
                half.writer.write(b"\x16")
                await two_openings(remoting)
                await remoting.stop()
                assert await silent.at_end()
                assert await half.at_end()

    run(main())


def test_a_frame_received_before_the_accept_is_answered(run: Run) -> None:
    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            frames = [codec.encode_request(Request(11, {}, opaque=n)) for n in range(100)]
            async with await RawPeer.connect(remoting.ports[0]) as peer:
                peer.writer.write(b"".join(frames))
                responses = [(await peer.read_response()).opaque for _ in frames]
                assert sorted(responses) == list(range(100))

    run(main())


def test_a_connection_cancelled_before_its_first_step_is_closed(run: Run) -> None:
    """The server stops in the turn in which the first byte arrives."""

    def stopped_at_once(loop: Any, work: Any, **options: Any) -> Any:
        task = asyncio.Task(work, loop=loop, **options)
        if work.__qualname__ == "Listener._connect":
            task.cancel()
        return task

    async def main() -> None:
        async with server() as remoting:
            await remoting.start("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", remoting.ports[0])
            asyncio.get_running_loop().set_task_factory(stopped_at_once)
            writer.write(b"x")
            async with asyncio.timeout(WAIT_S):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
            assert len(remoting.listeners[0]) == 0

    run(main())
