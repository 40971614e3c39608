"""Health probes and metrics.

    GET /livez, /healthz    200 while the broker works, 503 if it must be restarted
    GET /readyz, /ready     200 while messages are accepted, otherwise 503 with the reason
    GET /metrics            200 with all metrics (text or OpenMetrics, gzip if accepted)

Probes need no account. Metrics are collected in a worker thread, one scrape at a time.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from duemq.metrics.series import encode
from duemq.net.notices import Notices

log = logging.getLogger(__name__)
PATHS: Final = "paths are /metrics, /livez, /readyz, /healthz and /ready"
BUSY: Final = "metrics were not read in time: the broker has more requests than it can handle"
GZIP_BITS: Final = 16 + zlib.MAX_WBITS

Probe = Callable[[], Awaitable[str]]
"""Returns the reason of a 503 response; empty for 200."""


async def always_live() -> str:
    """Return no reason: the process works if it responds."""
    return ""


class Probes:
    """Handlers of health probes and metrics.

    Args:
        live, ready: Called at each probe.
    """

    def __init__(self, registry: CollectorRegistry, *, live: Probe, ready: Probe) -> None:
        self._registry, self._live, self._ready = registry, live, ready
        self._collecting = asyncio.Lock()
        self._failed = Notices(log, logging.ERROR)
        self._busy = Notices(log, logging.WARNING)

    def routes(self) -> list[Route]:
        """Return the routes of all paths."""
        handlers = {
            "/metrics": self.metrics,
            "/livez": self.live,
            "/healthz": self.live,
            "/readyz": self.ready,
            "/ready": self.ready,
        }
        return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]

    async def live(self, request: Request) -> Response:
        """Return whether the broker works."""
        return _answer(await self._live())

    async def ready(self, request: Request) -> Response:
        """Return whether messages are accepted."""
        return _answer(await self._ready())

    async def metrics(self, request: Request) -> Response:
        """Return all metrics, or those that `name[]` names; 503 if the broker is too busy."""
        try:
            async with self._collecting:
                if await request.is_disconnected():  # it waited longer than its scraper
                    return PlainTextResponse(f"{BUSY}\n", 503)
                return await asyncio.to_thread(self._collect, request)
        except TimeoutError:
            self._busy(BUSY)
            return PlainTextResponse(f"{BUSY}\n", 503)
        except Exception as error:
            self._failed("metrics cannot be collected", exc_info=error)
            return PlainTextResponse("metrics cannot be collected; see the broker's log\n", 500)

    def _collect(self, request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]")
        registry = self._registry.restricted_registry(names) if names else self._registry
        pieces, headers = encode(registry.collect(), encoder), {"Content-Type": content_type}
        if "gzip" in request.headers.get("accept-encoding", ""):
            pieces, headers = _compressed(pieces), headers | {"Content-Encoding": "gzip"}
        return Response(b"".join(pieces), headers=headers)


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces in the format of gzip."""
    compressor = zlib.compressobj(1, wbits=GZIP_BITS)
    yield from map(compressor.compress, pieces)
    yield compressor.flush()


def probe_application(probes: Probes) -> Starlette:
    """Return the application of a port with probes only."""
    return Starlette(routes=probes.routes(), exception_handlers={HTTPException: _refuse})


def _answer(reason: str) -> Response:
    return PlainTextResponse(f"{reason}\n", 503) if reason else PlainTextResponse("ok\n")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "use GET or HEAD" if error.status_code == 405 else f"not found; {PATHS}"
    return PlainTextResponse(f"{text}\n", error.status_code, error.headers)
