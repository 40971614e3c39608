"""Remoting client of one address; connects on demand.

A connection can fail silently when the peer loses power or a firewall drops its state. After
several consecutive calls without a response the client closes the connection, and the next call
reconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Self

from duemq.net.connection import Connection
from duemq.net.dispatcher import Dispatcher, Handler
from duemq.net.limits import RemotingLimits
from duemq_common.host_port import split_address
from duemq_common.request import Request, Response

CONNECT_TIMEOUT_S = 3.0
SILENT_CALLS_MAX = 3


class RemotingClient:
    """Client of one server; reconnects at the next call after a connection loss.

    Args:
        address: Server address, `host:port`.
        tls: Context of TLS connections, or a function that returns it for each; None: plaintext.
        handlers: Handlers by code for requests from the server.
        sign: Returns a request with credentials added; None: no credentials.
    Source: NettyRemotingClient
    """

    def __init__(
        self,
        address: str,
        handlers: Mapping[int, Handler] | None = None,
        *,
        sign: Callable[[Request], Request] | None = None,
        tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.address = address
        self._host, self._port = split_address(address)
        self._dispatcher = Dispatcher(handlers)
        self._limits = RemotingLimits()
        self._sign = sign
        self._tls = tls
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._lost = asyncio.Event()
        self._silent_calls = 0  # consecutive calls without a response
        self._opening: asyncio.Task[Connection] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def connect(self) -> Connection:
        """Return the connection; open a new one if there is none.

        Raises:
            OSError: The server cannot be reached (TimeoutError after 3 s), or `stop` was called.
        """
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._raise_if_stopped()
                self._silent_calls = 0
                self._opening = asyncio.ensure_future(self._open())
                try:
                    self._connection = await self._opening
                except asyncio.CancelledError:
                    self._opening.cancel()
                    caller = asyncio.current_task()
                    if caller is None or not caller.cancelling():
                        self._raise_if_stopped()
                    raise
                finally:
                    self._opening = None
            return self._connection

    async def _open(self) -> Connection:
        self._lost = lost = asyncio.Event()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(
                    self._dispatcher,
                    limits=self._limits,
                    on_lost=lambda connection: lost.set(),
                ),
                self._host,
                self._port,
                ssl=self._tls() if callable(self._tls) else self._tls,
            )
        return connection

    def _raise_if_stopped(self) -> None:
        if self._stopped:
            raise ConnectionAbortedError(f"the connection to {self.address} was stopped")

    async def call(self, request: Request, *, timeout_s: float = 3.0) -> Response:
        """Send a request and return the response, whatever its code.

        Raises:
            TimeoutError: No response in time.
            OSError: The server cannot be reached or closed the connection, or `stop` was called.
        """
        connection, before = await self.connect(), self._silent_calls
        try:
            response = await connection.call(self._signed(request), timeout_s=timeout_s)
        except TimeoutError:
            if self._silent_calls == before:  # count concurrent calls once
                self._silent_calls += 1
            if self._silent_calls >= SILENT_CALLS_MAX and connection is self._connection:
                self.abort()
            raise
        self._silent_calls = 0
        return response

    async def send_oneway(self, request: Request) -> None:
        """Send a one-way request.

        Raises:
            OSError: The server cannot be reached.
        """
        connection = await self.connect()
        connection.send_oneway(self._signed(request))

    def _signed(self, request: Request) -> Request:
        return request if self._sign is None else self._sign(request)

    def abort(self) -> None:
        """Close the connection at once; calls in flight raise OSError."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        self._silent_calls = 0

    def stop(self) -> None:
        """Close the connection at once; calls in flight and later calls raise OSError."""
        self._stopped = True
        self.abort()
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Close the connection after the requests in flight.

        If the server did not respond to the last call, close it at once.
        """
        if self._silent_calls:
            self.abort()
        if self._connection is not None:
            await self._connection.drain(self._limits.close_wait_s)
            self._connection = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.close_wait_s):
                    await self._lost.wait()  # a TLS connection takes several loop turns to close
