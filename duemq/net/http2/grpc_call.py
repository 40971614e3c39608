"""One gRPC call: its metadata, the messages of both sides, its status.

A message is five bytes (whether it is compressed, its length) and its bytes. A call without
streams is handled when its client has ended its side: then `receive` returns its message at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from duemq.net.http2.grpc_status import GrpcError, GrpcStatus, trailers_of

PREFIX_BYTES: Final = 5
TIMEOUT_DIGITS_MAX: Final = 8
_SECONDS_OF_UNIT: Final = {
    b"H": 3_600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of one connection.

    Attributes:
        message_bytes_max: Maximum bytes of one message of a client.
        messages_unread_max: Messages of a stream that its handler has not received yet.
        calls_max: Calls in flight.
    """

    message_bytes_max: int = 5 << 20
    messages_unread_max: int = 64
    calls_max: int = 1_024
    connections_max: int = 20_000
    backlog: int = 1_024
    idle_ms_max: int = 120_000
    sweep_ms: int = 10_000
    close_wait_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """A method of a service.

    Attributes:
        name: Its name, for the log.
        handler: Handles one call; returns when the call has ended, or raises GrpcError.
        streams: Whether the client may send several messages: the handler begins before the first.
    """

    name: str
    handler: Callable[[GrpcCall], Awaitable[None]]
    streams: bool = False


class CallConnection(Protocol):
    """The connection of a call."""

    @property
    def address(self) -> tuple[str, int]:
        """Address of the client."""
        ...

    def has_output(self, call: GrpcCall) -> None:
        """Send what a call has."""
        ...

    def count_bytes(self, more: int) -> None:
        """Add to the bytes that calls hold."""
        ...


class GrpcCall:
    """One call.

    Attributes:
        metadata: Header fields by their names.
        deadline_s: When the client gives up, on the loop's clock; None: it does not say.
        is_ended: Whether the client has sent everything.
        unsent: Bytes of messages that are not sent yet.
        trailers: Header fields that end the call; None: it goes on.
    """

    __slots__ = (
        "_connection", "_received", "_waiter", "buffer", "deadline_s", "is_ended", "is_lost",
        "metadata", "method", "sent_headers", "stream_id", "task", "trailers", "unsent",
    )  # fmt: skip

    def __init__(
        self,
        connection: CallConnection,
        stream_id: int,
        method: GrpcMethod,
        metadata: Mapping[bytes, bytes],
    ) -> None:
        self._connection = connection
        self.stream_id, self.method, self.metadata = stream_id, method, metadata
        self.deadline_s: float | None = None
        self.buffer, self.unsent = bytearray(), bytearray()
        self._received: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.is_ended = self.is_lost = self.sent_headers = False
        self.trailers: tuple[tuple[bytes, bytes], ...] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Address of the client."""
        return self._connection.address

    @property
    def is_finished(self) -> bool:
        """Whether the call has its status, or its client has gone."""
        return self.trailers is not None or self.is_lost

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the client that no handler has received."""
        return len(self.buffer) + sum(map(len, self._received))

    def text(self, name: bytes) -> str:
        """Return a header field as text; empty if it is missing."""
        return self.metadata.get(name, b"").decode("utf-8", "replace")

    # From the client.

    def start_deadline(self, now_s: float) -> None:
        """Read the time that the client waits."""
        timeout = self.metadata.get(b"grpc-timeout", b"")
        digits, unit = timeout[:-1], _SECONDS_OF_UNIT.get(timeout[-1:])
        if unit is not None and digits.isdigit() and len(digits) <= TIMEOUT_DIGITS_MAX:
            self.deadline_s = now_s + int(digits) * unit

    def feed(self, data: bytes, limits: GrpcLimits) -> None:
        """Take bytes of the client.

        Raises:
            GrpcError: They are no messages, or too many or too large ones.
        """
        self.buffer += data
        while len(self.buffer) >= PREFIX_BYTES:
            size = int.from_bytes(self.buffer[1:PREFIX_BYTES], "big")
            if self.buffer[0]:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not served")
            if size > limits.message_bytes_max:
                text = f"a message of {size} bytes; the limit is {limits.message_bytes_max}"
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)
            if len(self.buffer) < PREFIX_BYTES + size:
                return
            if len(self._received) >= (limits.messages_unread_max if self.method.streams else 1):
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages in one call")
            self._received.append(bytes(self.buffer[PREFIX_BYTES : PREFIX_BYTES + size]))
            del self.buffer[: PREFIX_BYTES + size]
        if self._received:
            self._wake()

    def end(self) -> None:
        """Note that the client has sent everything."""
        self.is_ended = True
        self._wake()

    def stop(self) -> None:
        """End a stream that would go on; other calls end by themselves."""
        if self.method.streams:
            self.end()

    def lose(self) -> None:
        """Note that the client has gone: cancel the handler."""
        self.is_lost = True
        if self.task is not None:
            self.task.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> bytes | None:
        """Return the client's next message; None: it has sent everything."""
        while not self._received:
            if self.is_ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._received.popleft()
        self._connection.count_bytes(-len(data))
        return data

    # To the client.

    def send(self, message: bytes) -> None:
        """Send a message; dropped when the call has ended."""
        if self.is_finished:
            return
        self.unsent += b"\0" + len(message).to_bytes(4, "big")
        self.unsent += message
        self._connection.count_bytes(PREFIX_BYTES + len(message))
        self._connection.has_output(self)

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the call; only the first status counts."""
        if not self.is_finished:
            self.trailers = trailers_of(status, text)
            self._connection.has_output(self)
