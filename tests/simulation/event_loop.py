"""Event loop of one simulated process: asyncio's loop on a simulated clock and simulated sockets.

The simulator runs all loops in one thread, one turn of one loop at a time. A paused process gets no
turns. Executor jobs run in a later turn of the loop.

Transports, `sock_*` functions and timeouts are asyncio's own; the simulation replaces only the
selector, the clock, the executor and the sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import socket
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.network import Host, SimSocket

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class SimSelector(selectors.BaseSelector):
    """Selector over the simulated sockets of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _fd(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fd} is registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(_fd(fileobj))

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_fd(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for fd, key in self._keys.items():
            sock = self._host.sockets.get(fd)
            if sock is None:
                continue
            mask = (READ if sock.is_readable else 0) | (WRITE if sock.is_writable else 0)
            if mask & key.events:
                found.append((key, mask & key.events))
        return found

    def close(self) -> None:
        self._keys.clear()


def _fd(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


class SimTask(asyncio.Task[Any]):
    """Task with a deterministic hash, so that the order of sets is reproducible."""

    serial = 0

    def __hash__(self) -> int:
        return self.serial


class SimLoop(BaseSelectorEventLoop):
    """Event loop of one process.

    Args:
        steady_s: Returns the time of the host's steady clock, in seconds.
        thread_us: Returns the duration of the next executor job, in microseconds.
    """

    _ready: Any
    _scheduled: list[Any]
    _selector: Any

    def __init__(
        self, host: Host, steady_s: Callable[[], float], thread_us: Callable[[], int]
    ) -> None:
        self._steady_s, self._thread_us = steady_s, thread_us
        self.host = host
        super().__init__(SimSelector(host))
        self._clock_resolution = 2e-6
        self._serials = itertools.count(1)
        self.set_task_factory(self._new_task)
        self.failures: list[dict[str, Any]] = []
        self.set_exception_handler(lambda loop, context: self.failures.append(context))

    def _make_self_pipe(self) -> None:
        """Do nothing: no other thread calls the loop."""

    def _close_self_pipe(self) -> None:
        """Do nothing."""

    def _write_to_self(self) -> None:
        """Do nothing."""

    def _new_task(self, loop: Any, work: Any, **options: Any) -> Any:
        task = SimTask(work, loop=loop, **options)
        task.serial = next(self._serials)
        return task

    def time(self) -> float:
        return self._steady_s()

    def close(self) -> None:
        """Close the loop and its transports, which would otherwise warn at their collection."""
        for transport in list(self._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        self.turn()
        super().close()

    def turn(self) -> None:
        """Run one turn."""
        self.stop()
        self.run_forever()

    @property
    def has_work(self) -> bool:
        """Whether a callback is due now."""
        return bool(self._ready)

    @property
    def is_ready(self) -> bool:
        """Whether a socket is ready."""
        return bool(self._selector.select())

    @property
    def next_timer_s(self) -> float | None:
        """Time of the next timer, in seconds; None: no timer."""
        return float(self._scheduled[0].when()) if self._scheduled else None

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a job synchronously in a later turn of this loop."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self._thread_us() / 1_000_000, work)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def _connect_sock(
        self, exceptions: Any, addr_info: Any, local_addr_infos: Any = None
    ) -> SimSocket:
        sock = self.host.new_socket()
        try:
            await self.sock_connect(sock, addr_info[4])
        except BaseException as error:
            exceptions.append([error])
            sock.close()
            raise
        return sock
