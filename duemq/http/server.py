"""HTTP server in a thread of its own, with its own event loop.

    broker's thread: event loop with the store          HTTP thread: event loop with uvicorn
            ^                                                  |
            +-------- remoting protocol, over a socket --------+

A slow request of an operator, or a scrape, takes no turn of the loop that delivers messages.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from uvicorn import Config, Server

from duemq.http.connection import ConnectionLimits, LimitedConnection

log = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 1_024
KEEP_ALIVE_S: Final = 30
DRAIN_S: Final = 2  # time for requests in progress at a stop
THREAD_NAME: Final = "http"

AsgiEvent = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiEvent]]
Send = Callable[[AsgiEvent], Awaitable[None]]
Application = Callable[[AsgiEvent, Receive, Send], Awaitable[None]]
"""ASGI application."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
    """Port with its application.

    Attributes:
        bound: Socket that is bound and does not listen yet.
        application: ASGI application.
        tls: Context of TLS connections; None: plaintext.
        connections_max: Maximum number of connections.
        resources: Entered in the HTTP thread before the port listens, left after it is closed.
    """

    bound: socket.socket
    application: Application
    tls: ssl.SSLContext | None = None
    connections_max: int = CONNECTIONS_MAX
    resources: AbstractAsyncContextManager[object] | None = None


class _PortServer(Server):
    """uvicorn on one port of the thread."""

    def __init__(self, port: HttpPort) -> None:
        limits = ConnectionLimits(port.connections_max)
        factory = None if port.tls is None else lambda *_: port.tls
        config = Config(
            port.application,
            http=partial(LimitedConnection, limits=limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_context_factory=factory,  # type: ignore[arg-type]
        )
        super().__init__(config)
        self._port = port

    async def serve_until(self, stop: asyncio.Event, listening: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        async with self._port.resources or nullcontext():
            self.config.load()
            self.lifespan = self.config.lifespan_class(self.config)
            await self.startup(sockets=[self._port.bound])
            listening.set()
            ticks = asyncio.create_task(self.main_loop(), name="http ticks")
            await stop.wait()
            ticks.cancel()
            await self.shutdown(sockets=[self._port.bound])


class _PortsThread:
    """Thread that serves ports until it is stopped.

    Attributes:
        failure: Reason why the thread ended; None: it serves, or was stopped.
    """

    def __init__(self, ports: Sequence[HttpPort], started: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._ports, self._notify = ports, started
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        from uvloop import new_event_loop

        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self.failure = error
            log.exception("the HTTP server ended")
        finally:
            self._notify()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for port in self._ports:
                listening = asyncio.Event()
                server = _PortServer(port)
                group.create_task(server.serve_until(self._stop, listening), name="http port")
                await listening.wait()
            self._notify()

    def stop(self) -> None:
        """Stop serving, and wait for the end of the thread."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@asynccontextmanager
async def serving(ports: Sequence[HttpPort]) -> AsyncIterator[None]:
    """Serve ports in a thread while the block is active.

    Raises:
        OSError: A port cannot listen.
    """
    loop, started = asyncio.get_running_loop(), asyncio.Event()
    thread = _PortsThread(ports, lambda: _notify(loop, started))
    thread.start()
    await started.wait()
    if thread.failure is not None:
        raise thread.failure
    try:
        yield
    finally:
        await asyncio.to_thread(thread.stop)


def _notify(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
