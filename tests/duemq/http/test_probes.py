"""Health probes and metrics: paths, codes, and floods of half requests."""

from __future__ import annotations

import asyncio
import gzip
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from duemq.http.connection import HEAD_BYTES_MAX, ConnectionLimits, LimitedConnection
from duemq.http.http_port import HttpPort
from duemq.http.probes import Probes, probe_application
from duemq.http.server import serving
from duemq.net.bound_socket import bind
from tests.support.raw_connection import WAIT_S
from tests.support.wait_until import until

CONNECTIONS_MAX = 32
Scene = Callable[[int], Awaitable[Any]]


def registry(text: str) -> CollectorRegistry:
    made = CollectorRegistry()
    Gauge("one", f"A figure.{text}", registry=made).set(1)
    Gauge("two", "Another.", registry=made).set(2)
    return made


def serve(scene: Scene, *, ill: str = "", unready: str = "", text: str = "") -> Any:
    async def main() -> Any:
        async def live() -> str:
            return ill

        async def ready() -> str:
            return unready

        probes = Probes(registry(text), live=live, ready=ready)
        with bind("127.0.0.1", 0) as bound:
            port = HttpPort(
                bound=bound,
                application=probe_application(probes),
                connections_max=CONNECTIONS_MAX,
            )
            async with serving([lambda: port]):
                return await scene(bound.getsockname()[1])

    return asyncio.run(main())


async def fetch(port: int, head: bytes) -> tuple[int, bytes, bytes]:
    """Return status, head and body of the answer to raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    async with asyncio.timeout(WAIT_S):
        response = await reader.read()
    writer.close()
    top, _, body = response.partition(b"\r\n\r\n")
    return int(top.split(b" ")[1]), top, body


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    head = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]
    return "\r\n".join(head).encode()


@pytest.mark.finding("B18")
@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (get("/metrics"), 200, b"one 1.0"),
        (get("/metrics?name[]=two"), 200, b"two 2.0"),
        (get("/metrics", method="HEAD"), 200, b""),
        (get("/healthz"), 200, b"ok"),
        (get("/livez"), 200, b"ok"),
        (get("/ready"), 200, b"ok"),
        (get("/readyz"), 200, b"ok"),
        (get("/"), 404, b"/metrics"),
        (get("/metricsx"), 404, b"/metrics"),
        (get("/metrics", method="POST"), 405, b"GET"),
        (b"rubbish\r\n\r\n", 400, b"HTTP"),
        (b"GET http://[x HTTP/1.1\r\n\r\n", 400, b""),
        (get("/metrics", "X: " + "x" * HEAD_BYTES_MAX), 400, b""),
        (b"GET /metrics HTTP/1.1\r\nX: " + bytes(2 * HEAD_BYTES_MAX), 400, b""),
    ],
)
def test_paths(request_bytes: bytes, status: int, reason: bytes) -> None:
    found, _, body = serve(lambda port: fetch(port, request_bytes))
    assert found == status
    assert reason in body


@pytest.mark.finding("B18")
@pytest.mark.parametrize(
    ("path", "ill", "unready", "status"),
    [
        ("/healthz", "the disk", "", 503),
        ("/healthz", "", "the disk is full", 200),
        ("/livez", "the disk", "", 503),
        ("/ready", "", "the disk is full", 503),
        ("/readyz", "", "the disk is full", 503),
    ],
)
def test_probes_name_the_reason(path: str, ill: str, unready: str, status: int) -> None:
    found, _, body = serve(lambda port: fetch(port, get(path)), ill=ill, unready=unready)
    assert found == status
    assert status == 200 or (ill or unready).encode() in body


def test_a_scrape_of_a_busy_broker_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def collect(self: CollectorRegistry) -> Any:
        raise TimeoutError

    monkeypatch.setattr(CollectorRegistry, "collect", collect)
    status, _, body = serve(lambda port: fetch(port, get("/metrics")))
    assert status == 503
    assert b"more requests than it can handle" in body


def test_a_scrape_that_its_client_left_collects_nothing() -> None:
    """It waited for others, and would take the time of those whose clients still wait."""
    collected = list[str]()

    class Counting(CollectorRegistry):
        def collect(self) -> Any:
            collected.append("all")
            return super().collect()

    async def alive() -> str:
        return ""

    async def scrape(kind: str) -> int:
        async def receive() -> Message:
            if kind != "http.disconnect":
                await asyncio.Event().wait()
            return {"type": kind}

        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b""}
        return (await probes.metrics(Request(scope, receive))).status_code

    probes = Probes(Counting(), live=alive, ready=alive)
    assert asyncio.run(scrape("http.disconnect")) == 503
    assert not collected
    assert asyncio.run(scrape("http.request")) == 200
    assert collected == ["all"]


def test_formats_that_a_scraper_accepts() -> None:
    async def scene(port: int) -> None:
        _, head, body = await fetch(port, get("/metrics", "Accept-Encoding: gzip"))
        assert b"content-encoding: gzip" in head
        assert b"one 1.0" in gzip.decompress(body)
        accepted = "Accept: application/openmetrics-text; version=1.0.0"
        _, head, body = await fetch(port, get("/metrics", accepted))
        assert b"application/openmetrics-text" in head
        assert body.endswith(b"# EOF\n")

    serve(scene)


@pytest.mark.finding("E13")
def test_half_requests_delay_no_scrape() -> None:
    async def scene(port: int) -> None:
        halves = []
        for _ in range(4 * CONNECTIONS_MAX):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nX: ")
            halves.append(writer)
        for _ in range(20):
            status, _, _ = await fetch(port, get("/metrics"))
            assert status == 200
        for writer in halves:
            writer.close()

    serve(scene)


def test_idle_connections_delay_no_scrape() -> None:
    async def scene(port: int) -> None:
        idle = []
        for _ in range(4 * CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(get("/livez").replace(b"Connection: close\r\n", b""))
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            idle.append(writer)
        for _ in range(20):
            status, _, _ = await fetch(port, get("/metrics"))
            assert status == 200
        for writer in idle:
            writer.close()

    serve(scene)


def test_peers_that_do_not_read_delay_no_scrape() -> None:
    async def scene(port: int) -> None:
        with ExitStack() as silent:
            for _ in range(3 * CONNECTIONS_MAX):
                peer = silent.enter_context(socket.create_connection(("127.0.0.1", port)))
                peer.send(get("/metrics"))
                assert await asyncio.to_thread(peer.recv, 1) == b"H"
            for _ in range(3):
                status, _, _ = await fetch(port, get("/livez"))
                assert status == 200

    serve(scene, text="x" * (6 << 20))


def test_the_connection_without_a_request_for_longest_is_replaced_first() -> None:
    async def main() -> None:
        limits, done = ConnectionLimits(CONNECTIONS_MAX), asyncio.Semaphore(0)

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await done.acquire()
            await Response()(scope, receive, send)

        config = Config(application)
        config.load()

        async def connect() -> LimitedConnection:
            made = LimitedConnection(config, ServerState(), {}, limits=limits)
            address = server.getsockname()
            await asyncio.get_running_loop().create_connection(lambda: made, *address)
            return made

        async def respond(connection: LimitedConnection) -> None:
            done.release()
            await turns()
            assert connection.cycle.response_complete

        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
        with socket.create_server(("127.0.0.1", 0)) as server:
            first, second = await connect(), await connect()
            assert [*limits.replaceable] == [first, second]
            first.data_received(request)
            assert [*limits.replaceable] == [second]
            await respond(first)
            assert [*limits.replaceable] == [second, first]  # idle
            second.data_received(request)
            await respond(second)
            assert [*limits.replaceable] == [first, second]
            first.data_received(request[:5])  # the begin of a request
            assert [*limits.replaceable] == [second, first]
            second.data_received(request * 2)
            cycle = second.cycle
            done.release()
            await turns()
            assert not second.pipeline
            assert [*limits.replaceable] == [first]  # the other request is in progress
            assert second.cycle is cycle
            await respond(second)
            assert [*limits.replaceable] == [first, second]
            for connection in (first, second):
                connection.transport.abort()
            await turns()
            assert not limits.replaceable

    asyncio.run(main())


def test_a_peer_that_reads_in_time_keeps_its_connection() -> None:
    async def main() -> None:
        limits = ConnectionLimits(CONNECTIONS_MAX, unread_s=0.0)
        config = Config(probe_application(Probes(registry(""), live=always, ready=always)))
        config.load()
        connection = LimitedConnection(config, ServerState(), {}, limits=limits)
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            await asyncio.get_running_loop().create_connection(lambda: connection, *address)
            for reads in (True, False):
                connection.pause_writing()
                if reads:
                    connection.resume_writing()
                await turns()
                assert connection.transport.is_closing() != reads

    asyncio.run(main())


async def turns() -> None:
    """Let the tasks of the loop run; none of them waits for a peer."""
    for _ in range(20):
        await asyncio.sleep(0)


async def always() -> str:
    return ""


def test_a_peer_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[ConnectionLimits] = []

    def brief(connections_max: int) -> ConnectionLimits:
        limits.append(ConnectionLimits(connections_max, unread_s=0.05))
        return limits[-1]

    monkeypatch.setattr("duemq.http.port_server.ConnectionLimits", brief)

    async def scene(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.send(get("/metrics"))
            assert silent.recv(1) == b"H"
            await asyncio.to_thread(
                until, lambda: not limits[0].open_count, seconds=WAIT_S, what="an abort"
            )
        status, _, _ = await fetch(port, get("/metrics"))
        assert status == 200

    serve(scene, text="x" * (16 << 20))


def test_what_only_http_needs_is_imported_in_its_thread() -> None:
    code = "import duemq.broker.http_ports, sys; print({'uvicorn', 'starlette'} & {*sys.modules})"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert output.stdout == "set()\n"
