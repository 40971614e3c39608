"""Connections of a client to servers: calls, one-way requests, requests of the servers."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, TypeVar

from duemq.auth.signature import Credentials
from duemq.client.connection import ServerConnection
from duemq.client.errors import Closed, Refused, Unreachable
from duemq_common.codes import ResponseCode
from duemq_common.host_port import split_address
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
CLIENT_VERSION: Final = 479  # MQVersion of 5.3.3
LANGUAGE: Final = "PYTHON"
TIMEOUT_S: Final = 3.0
CONNECT_TIMEOUT_S: Final = 3.0
CLOSE_TIMEOUT_S: Final = 1.0  # Apache's servers do not end TLS
ONLY_PLAINTEXT: Final = "; if the server does not use TLS, leave out tls (--tls)"
ONLY_TLS: Final = "; if the server requires TLS, give tls (--tls)"
UNSIGNED: Final = "The requests are not signed: give credentials (--access-key, --secret-file)"

Result = TypeVar("Result")
Handler = Callable[[Request, ServerConnection], Response | Awaitable[Response | None] | None]
"""Handler of a request of a server; a one-way request has no response."""


class ServerConnections:
    """Connections to servers by address, opened when they are needed.

    Args:
        tls: Context of TLS connections; None: plaintext.
        credentials: Account that signs the requests.
        timeout_s: Time limit of a call in seconds.
    """

    def __init__(
        self, tls: ssl.SSLContext | None, credentials: Credentials | None, timeout_s: float
    ) -> None:
        self._tls, self._credentials = tls, credentials
        self.timeout_s = timeout_s
        self._connections: dict[str, ServerConnection] = {}
        self._connecting: dict[str, asyncio.Task[ServerConnection]] = {}
        self._handlers: dict[tuple[int, str], Handler] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._closed = False

    async def close(self) -> None:
        """Close all connections; later calls raise `Closed`."""
        self._closed = True
        for task in [*self._tasks, *self._connecting.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for connection in connections:
                    await connection.lost.wait()
        except TimeoutError:
            for connection in connections:
                connection.abort()
        self._connections.clear()

    def connection(self, address: str) -> ServerConnection | None:
        """Return the open connection to a server, if there is one."""
        connection = self._connections.get(address)
        return connection if connection is not None and not connection.closed else None

    async def connect(self, address: str) -> ServerConnection:
        """Return the connection to a server; open one if there is none.

        Raises:
            Unreachable: The server cannot be reached.
            Closed: The client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise Closed("the client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address), name=f"connect {address}")
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await self.shared(task)

    async def shared(self, task: asyncio.Task[Result]) -> Result:
        """Return the result of a task that several calls await.

        Raises:
            Closed: The client was closed meanwhile.
        """
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise Closed("the client is closed") from None
            raise

    async def _open(self, address: str) -> ServerConnection:
        try:
            host, port = split_address(address)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: ServerConnection(address, self._requested, self._connection_lost),
                    host,
                    port,
                    ssl=self._tls,
                )
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: of the address
            reason = str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            raise self.unreachable(address, error, reason) from error
        self._connections[address] = connection
        return connection

    def _connection_lost(self, connection: ServerConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    def unreachable(self, address: str, error: BaseException, reason: str = "") -> Unreachable:
        """Return the error for a server that did not respond."""
        text = f"{address} does not respond: {reason or error}"
        if isinstance(error, ConnectionResetError | ssl.SSLEOFError):
            text += ONLY_PLAINTEXT if self._tls is not None else ONLY_TLS
        return Unreachable(text)

    def request(self, code: int, fields: dict[str, str], body: bytes = b"") -> Request:
        """Return a request, signed if the client has credentials."""
        request = Request(code, fields, body, language=LANGUAGE, version=CLIENT_VERSION)
        return request if self._credentials is None else self._credentials.sign(request)

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Return the response of a server, whatever its code.

        Raises:
            Unreachable: The server cannot be reached, or does not respond in time.
        """
        connection = await self.connect(address)
        if not connection.is_writable:
            await connection.writable()
        request = self.request(code, text_fields(fields or {}), body)
        try:
            return await connection.call(request, timeout_s or self.timeout_s)
        except (OSError, TimeoutError) as error:
            raise self.unreachable(address, error) from error

    async def ask(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Return the response of a server if it is a success.

        Raises:
            Refused: The server refused the request.
            Unreachable: As `call`.
        """
        response = await self.call(address, code, fields, body, timeout_s=timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, address, code)
        return response

    def refusal(self, response: Response, address: str, code: int) -> Refused:
        """Return the error for a response with another code than success."""
        remark = response.remark or f"request {code} was refused without a reason"
        if response.code == ResponseCode.NO_PERMISSION and self._credentials is None:
            remark = f"{remark.rstrip('.')}. {UNSIGNED}"
        return Refused(response.code, remark, address)

    async def notify(self, address: str, code: int, fields: Mapping[str, object]) -> None:
        """Send a request that gets no response.

        Raises:
            Unreachable: The server cannot be reached.
        """
        connection = await self.connect(address)
        try:
            connection.send_oneway(self.request(code, text_fields(fields)))
        except OSError as error:
            raise self.unreachable(address, error) from error

    # Requests of servers.

    def handle(self, code: int, handler: Handler, *, group: str = "") -> None:
        """Set the handler of a request code; with `group`, of the requests that name this group."""
        self._handlers[code, group] = handler

    def unhandle(self, code: int, *, group: str = "") -> None:
        """Remove a handler."""
        self._handlers.pop((code, group), None)

    def _requested(self, connection: ServerConnection, request: Request) -> None:
        group = request.fields.get("consumerGroup") or request.fields.get("group", "")
        handler = self._handlers.get((request.code, group)) or self._handlers.get(
            (request.code, "")
        )
        if handler is None:
            text = f"request type {request.code} not supported"
            response = Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
            connection.respond(request, response)
            return
        self.run(self._handle(handler, connection, request), f"request {request.code}")

    async def _handle(
        self, handler: Handler, connection: ServerConnection, request: Request
    ) -> None:
        try:
            result = handler(request, connection)
            response = await result if isinstance(result, Awaitable) else result
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.address)
            response = Response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        connection.respond(request, response or Response())

    def run(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine as a task that ends with the client."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def text_fields(fields: Mapping[str, object]) -> dict[str, str]:
    """Return header fields as text; fields that are None are left out."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in fields.items()
        if value is not None
    }
