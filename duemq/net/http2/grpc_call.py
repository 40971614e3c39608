"""gRPC call: metadata, messages of both directions, status.

A message is prefixed by five bytes, a compression flag and a length. The handler of a unary call
starts after the client has sent everything, so `receive` returns the message at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from duemq.net.http2.grpc_status import GrpcError, GrpcStatus, trailers_of

PREFIX_BYTES: Final = 5
TIMEOUT_DIGITS_MAX: Final = 8
_SECONDS_OF_UNIT: Final = {
    b"H": 3_600.0,
    b"M": 60.0,
    b"S": 1.0,
    b"m": 1e-3,
    b"u": 1e-6,
    b"n": 1e-9,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """Limits of one connection.

    Attributes:
        message_bytes_max: Maximum bytes of one message of the client.
        messages_unread_max: Maximum messages of a stream that its handler has not received.
        calls_max: Maximum calls in flight.
    """

    message_bytes_max: int = 5 << 20
    messages_unread_max: int = 64
    calls_max: int = 1_024
    connections_max: int = 20_000
    backlog: int = 1_024
    idle_ms_max: int = 120_000
    sweep_ms: int = 10_000
    close_wait_s: float = 5.0


class CallTurns(Protocol):
    """Serves the calls of one turn of the event loop together, without a task for each."""

    def take(self, call: GrpcCall) -> None:
        """Add a call whose client has sent all messages."""
        ...


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """A method of a service.

    Attributes:
        name: Method name, for the log.
        handler: Coroutine function that serves one call; may raise GrpcError.
        streams: Whether the client streams; the handler then starts before the first message.
        turns: Serves calls in turns; calls that it cannot serve at once go to `handler`.
    """

    name: str
    handler: Callable[[GrpcCall], Awaitable[None]]
    streams: bool = False
    turns: CallTurns | None = None


class CallConnection(Protocol):
    """The connection of a call."""

    @property
    def address(self) -> tuple[str, int]:
        """Address of the client."""
        ...

    def schedule_output(self, call: GrpcCall) -> None:
        """Schedule the output of a call."""
        ...

    def count_bytes(self, more: int) -> None:
        """Add `more` to the bytes that calls buffer."""
        ...

    def hold(self, call: GrpcCall, more: int) -> None:
        """Add `more` to the bytes that a call keeps until it ends."""
        ...

    def start(self, call: GrpcCall, work: Awaitable[None]) -> None:
        """Serve a call by a task; the call ends when `work` is done."""
        ...

    def fail(self, call: GrpcCall, error: BaseException) -> None:
        """End a call whose handler has failed."""
        ...


class GrpcCall:
    """One call.

    Attributes:
        metadata: Header fields by name.
        begun_s: Time at which the call began, in seconds of the event loop's clock; inf: refused.
        deadline_s: Deadline of the client in loop time; None: no deadline.
        held_bytes: Bytes of the header fields and of the message of a unary call, whose handler
            keeps it, as long as a receive waits for messages.
        is_ended: Whether the client has sent everything.
        unsent: Encoded messages that are not sent yet.
        on_unsent: Called once if the client disconnects, or cancels the call, before all messages
            were sent.
        trailers: Header fields that end the call; None while it is in progress.
    """

    __slots__ = (
        "_connection",
        "_received",
        "_waiter",
        "begun_s",
        "buffer",
        "deadline_s",
        "held_bytes",
        "is_ended",
        "is_lost",
        "metadata",
        "method",
        "on_unsent",
        "sent_headers",
        "stream_id",
        "task",
        "trailers",
        "unsent",
    )

    def __init__(
        self,
        connection: CallConnection,
        stream_id: int,
        method: GrpcMethod,
        metadata: Mapping[bytes, bytes],
    ) -> None:
        self._connection = connection
        self.stream_id, self.method, self.metadata = stream_id, method, metadata
        self.begun_s, self.held_bytes = inf, 0
        self.deadline_s: float | None = None
        self.buffer, self.unsent = bytearray(), bytearray()
        self._received: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.is_ended = self.is_lost = self.sent_headers = False
        self.on_unsent: Callable[[], None] | None = None
        self.trailers: tuple[tuple[bytes, bytes], ...] | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Address of the client."""
        return self._connection.address

    @property
    def is_finished(self) -> bool:
        """Whether the call has a status, or the client has disconnected."""
        return self.trailers is not None or self.is_lost

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the client that the handler has not received."""
        return len(self.buffer) + sum(map(len, self._received))

    @property
    def awaits_data(self) -> bool:
        """Whether the handler waits for the rest of a message, or of a unary call."""
        return bool(self.buffer) or bool(
            self._received and not self.method.streams and not self.is_ended
        )

    def text(self, name: bytes) -> str:
        """Return a header field as text; empty if absent."""
        return self.metadata.get(name, b"").decode("utf-8", "replace")

    # From the client.

    def begin(self, now_s: float) -> None:
        """Begin the call; set its deadline from the header field grpc-timeout."""
        self.begun_s = now_s
        timeout = self.metadata.get(b"grpc-timeout", b"")
        digits, unit = timeout[:-1], _SECONDS_OF_UNIT.get(timeout[-1:])
        if unit is not None and digits.isdigit() and len(digits) <= TIMEOUT_DIGITS_MAX:
            self.deadline_s = now_s + int(digits) * unit

    def feed(self, data: bytes, limits: GrpcLimits) -> None:
        """Add received bytes.

        Raises:
            GrpcError: A message is compressed or too large, or there are too many.
        """
        source: bytes | bytearray = data
        if self.buffer:
            self.buffer += data
            source = self.buffer
        position = 0
        while len(source) - position >= PREFIX_BYTES:
            size = int.from_bytes(source[position + 1 : position + PREFIX_BYTES], "big")
            if source[position]:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "compressed messages are not supported")
            if size > limits.message_bytes_max:
                text = f"a message of {size} bytes; the limit is {limits.message_bytes_max}"
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)
            first = position + PREFIX_BYTES
            if len(source) < first + size:
                break
            if len(self._received) >= (limits.messages_unread_max if self.method.streams else 1):
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages in one call")
            position = first + size
            self._received.append(bytes(source[first:position]))
        if source is self.buffer:
            del self.buffer[:position]
        elif position < len(data):
            self.buffer += data[position:]
        if self._received:
            self._wake()

    def end(self) -> None:
        """Handle the end of the client's messages."""
        self.is_ended = True
        self._wake()

    def stop(self) -> None:
        """End a streaming call; unary calls end by themselves."""
        if self.method.streams:
            self.end()

    def cancel(self) -> None:
        """Cancel the handler after the client has disconnected."""
        self.is_lost = True
        if self.task is not None:
            self.task.cancel()
        if self.unsent and self.on_unsent is not None:
            self.on_unsent()
        self.on_unsent = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def received(self) -> bytes | None:
        """Return the client's next message without removing it; None: no message is complete."""
        return self._received[0] if self._received else None

    def serve(self) -> None:
        """Serve the call by a task of its handler."""
        self._connection.start(self, self.method.handler(self))

    def complete(self, work: Awaitable[None]) -> None:
        """Serve the call by a task; it ends when `work` is done."""
        self._connection.start(self, work)

    def fail(self, error: BaseException) -> None:
        """End the call with the status of an error."""
        self._connection.fail(self, error)

    async def receive(self) -> bytes | None:
        """Return the client's next message, or None after the last."""
        while not self._received:
            if self.is_ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._received.popleft()
        self._connection.count_bytes(-len(data))
        if not self.method.streams:
            self._connection.hold(self, len(data))
        return data

    # To the client.

    def send(self, message: bytes) -> None:
        """Send a message; drop it if the call has ended."""
        if self.is_finished:
            return
        self.unsent += b"\0" + len(message).to_bytes(4, "big")
        self.unsent += message
        self._connection.count_bytes(PREFIX_BYTES + len(message))
        self._connection.schedule_output(self)

    def finish(self, status: GrpcStatus, text: str = "") -> None:
        """End the call with a status; ignored if it has ended already."""
        if not self.is_finished:
            self.trailers = trailers_of(status, text)
            self._connection.schedule_output(self)
