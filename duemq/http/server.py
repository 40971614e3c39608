"""HTTP server in a thread of its own, with its own event loop.

    broker's thread: event loop with the store          HTTP thread: event loop with uvicorn
            ^                                                  |
            +-------- remoting protocol, over a socket --------+

A slow request of an operator, or a scrape, takes no turn of the loop that delivers messages. What
only HTTP needs is imported in its thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

log = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 1_024
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
        proxies: Networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are used.
        resources: Entered in the HTTP thread before the port listens, left after it is closed.
    """

    bound: socket.socket
    application: Application
    tls: ssl.SSLContext | None = None
    connections_max: int = CONNECTIONS_MAX
    proxies: Sequence[str] = ()
    resources: AbstractAsyncContextManager[object] | None = None


OpenPort = Callable[[], HttpPort]
"""Returns a port; called in the HTTP thread, where it imports what the application needs."""


class _PortsThread:
    """Thread that serves ports until it is stopped.

    Attributes:
        failure: Reason why the thread ended; None: it serves, or was stopped.
    """

    def __init__(self, ports: Sequence[OpenPort], started: Callable[[], None]) -> None:
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
        from duemq.http.port_server import PortServer  # imports uvicorn

        async with asyncio.TaskGroup() as group:
            for open_port in self._ports:
                listening = asyncio.Event()
                server = PortServer(open_port())
                group.create_task(server.serve_until(self._stop, listening), name="http port")
                await listening.wait()
            self._notify()

    def stop(self) -> None:
        """Stop serving, and wait for the end of the thread."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@asynccontextmanager
async def serving(ports: Sequence[OpenPort]) -> AsyncIterator[None]:
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
