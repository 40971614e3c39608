"""HTTP server for Prometheus and health probes, on the broker's event loop.

    GET /metrics    200 with all metrics (text or OpenMetrics, gzip if accepted)
    GET /healthz    200 while the broker works, 503 if it must be restarted
    GET /ready      200 while messages are accepted, otherwise 503 with the reason
    anything else   404

Each connection has one request, which must be received and served within `REQUEST_S`. At the limit
of connections, a new connection replaces the connection whose request has been incomplete longest,
so that many incomplete requests cannot delay a scrape. Metrics are collected in a worker thread,
one scrape at a time.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from duemq.net.notices import Notices
from duemq_common.errors import UsageError
from message_store.descriptors import connections_end, descriptor_limit

log = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8_192
REQUEST_S: Final = 10.0
METHODS: Final = ("GET", "HEAD")
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

Probe = Callable[[], str]
"""Returns the reason of a 503 response; empty for 200."""


class BadRequest(Exception):
    """Request that is not HTTP, or too long."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Head of a request; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """HTTP response."""

    status: int
    body: bytes
    content_type: str = PLAIN_TEXT
    encoding: str = ""

    def encode(self, *, head_only: bool) -> bytes:
        """Return the bytes of the response."""
        lines = [
            f"HTTP/1.1 {self.status} {REASONS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        ]
        if self.encoding:
            lines.append(f"Content-Encoding: {self.encoding}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return head if head_only else head + self.body


def parse_request(head: bytes) -> HttpRequest:
    """Parse the head of a request, including the final empty line.

    Raises:
        BadRequest: The head is not HTTP/1.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest("not an HTTP/1 request")
    try:
        target = urlsplit(words[1])
        query = parse_qs(target.query, max_num_fields=100)
    except ValueError as error:
        raise BadRequest(str(error)) from error
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return HttpRequest(words[0], target.path, query, headers)


class MetricsServer:
    """HTTP server of /metrics, /healthz and /ready.

    Args:
        healthy, ready: Called at each probe.
    """

    def __init__(self, registry: CollectorRegistry, *, healthy: Probe, ready: Probe) -> None:
        self._registry = registry
        self._probes = {"/healthz": healthy, "/ready": ready}
        self._reading: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._open: set[asyncio.StreamWriter] = set()
        self._collecting = asyncio.Lock()
        self._failed = Notices(log, logging.ERROR)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the request of a connection."""
        self._open.add(writer)
        self._reading[writer] = None
        self._make_room(writer)
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._reading.pop(writer, None)
            self._open.discard(writer)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head_only = False
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            request = parse_request(head)
            self._reading.pop(writer, None)
            head_only = request.method == "HEAD"
            response = await self.response(request)
        except (BadRequest, asyncio.LimitOverrunError) as error:
            response = HttpResponse(400, f"{error}\n".encode())
        writer.write(response.encode(head_only=head_only))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _make_room(self, newest: asyncio.StreamWriter) -> None:
        descriptor = newest.get_extra_info("socket").fileno()
        if descriptor >= connections_end(descriptor_limit()):
            newest.transport.abort()
        elif len(self._open) > CONNECTIONS_MAX:
            oldest = next(iter(self._reading))  # not empty: it has `newest`
            self._reading.pop(oldest)
            oldest.transport.abort()

    async def response(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request."""
        if request.method not in METHODS:
            return HttpResponse(405, b"use GET or HEAD\n")
        if request.path == "/metrics":
            return await self._metrics(request)
        probe = self._probes.get(request.path)
        if probe is None:
            return HttpResponse(404, b"not found; paths are /metrics, /healthz and /ready\n")
        reason = probe()
        return HttpResponse(503, f"{reason}\n".encode()) if reason else HttpResponse(200, b"ok\n")

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        try:
            async with self._collecting:
                return await asyncio.to_thread(self._collect, request)
        except Exception as error:
            self._failed("metrics cannot be collected", exc_info=error)
            return HttpResponse(500, b"metrics cannot be collected; see the broker's log\n")

    def _collect(self, request: HttpRequest) -> HttpResponse:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query.get("name[]")
        registry = self._registry.restricted_registry(names) if names else self._registry
        body = encoder(registry)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return HttpResponse(200, gzip.compress(body, 1), content_type, "gzip")
        return HttpResponse(200, body, content_type)

    def abort(self) -> None:
        """Close every connection."""
        for writer in list(self._open):
            writer.transport.abort()


@asynccontextmanager
async def serving(
    metrics: MetricsServer, host: str, port: int, *, required: bool
) -> AsyncIterator[int | None]:
    """Serve until the block ends; yield the port.

    Args:
        required: Raise an error if the port cannot be bound, instead of a warning and None.
    Raises:
        UsageError: The port cannot be bound and is `required`.
    """
    try:
        server = await asyncio.start_server(
            metrics.serve, host or "0.0.0.0", port, limit=HEAD_BYTES_MAX
        )
    except OSError as error:
        text = (
            f"cannot serve /metrics on {host or '*'}:{port}: {error.strerror}. Set "
            f"metricsPromExporterPort to a free port, or metricsExporterType=DISABLE"
        )
        if required:
            raise UsageError(text) from error
        log.warning("%s; the broker runs without /metrics", text)
        yield None
        return
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        metrics.abort()
        with suppress(OSError):
            await server.wait_closed()
