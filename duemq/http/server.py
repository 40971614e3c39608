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
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from duemq.http.http_port import OpenPort

log = logging.getLogger(__name__)
THREAD_NAME: Final = "http"


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
