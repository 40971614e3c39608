"""Table of v5 clients; each acts as the peer of its in-process requests.

A client is identified by its id, its account and its host, and can use several connections.
Permissions can depend on the host, so a known id from another host is another client. It is removed
when it terminates, or when it has no telemetry stream and made no call for `IDLE_MS_MAX`. The
table contains only clients with a verified signature.

Source: GrpcChannelManager, GrpcClientChannel
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error
from duemq_common.clock import AwakeTime, Clock
from duemq_common.request import Peer, Request, Response, ip_address

IDLE_MS_MAX: Final = 120_000  # grpcClientIdleTimeMills
CLIENTS_MAX: Final = 20_000
CONNECTION_CLIENTS_MAX: Final = 256  # a gateway multiplexes many clients on one connection
Command = Callable[[api.TelemetryCommand], None]
Key = tuple[str, str, str]
"""Client id, account and host."""


class V5Client:
    """V5 client; a `Peer` of in-process requests.

    Attributes:
        settings: Settings from the client, see `kept_settings`; None: none received yet.
        command: Sends a telemetry command to the client; None: no telemetry stream is open.
        on_request: Called with each one-way request from the broker.
    """

    def __init__(
        self,
        context: CallContext,
        on_request: Callable[[V5Client, Request], None],
    ) -> None:
        self.client_id, self.address = context.client_id, context.address
        self.born_host = _host_of(context.address)
        self.settings: v2.Settings | None = None
        self.command: Command | None = None
        self.last_call_ms = 0
        self._on_request = on_request
        self._closed = False
        self._close_callbacks: list[Callable[[Peer], None]] = []

    def __repr__(self) -> str:
        return f"{self.client_id[:64]!r} at {self.address[0]}"

    @property
    def closed(self) -> bool:
        """Whether the client was removed from the table."""
        return self._closed

    def send_oneway(self, request: Request) -> None:
        """Pass a request of the broker to `on_request`; drop it if the client is closed."""
        if not self._closed:
            self._on_request(self, request)

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Raise ConnectionError: the v5 protocol has no requests from broker to client.

        Raises:
            ConnectionError: Always.
        """
        raise ConnectionError(f"v5 clients (gRPC) do not support request {request.code}")

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Call `callback` once when the client is removed; at once if it is already removed."""
        if self._closed:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def close(self) -> None:
        """Mark the client as closed and call the callbacks."""
        if self._closed:
            return
        self._closed = True
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)


class V5Clients:
    """Table of the clients of one server.

    Args:
        verify: Raises V5Error if the signature of a call is invalid.
        on_request: Called with each one-way request from the broker to a client.
    Attributes:
        time: Time of calls.
    """

    def __init__(
        self,
        clock: Clock,
        verify: Callable[[CallContext, Peer], None],
        on_request: Callable[[V5Client, Request], None],
    ) -> None:
        self.time = AwakeTime(clock)
        self._verify, self._on_request = verify, on_request
        self._clients: dict[Key, V5Client] = {}
        self._counts: Counter[tuple[str, int]] = Counter()  # by the connection of the first call

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    def for_call(self, context: CallContext) -> V5Client:
        """Return the client of a call; add it to the table if it is new.

        Raises:
            V5Error: The signature is invalid, or a limit of clients is exceeded.
        """
        key = _key_of(context)
        registered = self._clients.get(key)
        client = registered or V5Client(context, self._on_request)
        self._verify(context, client)  # before adding: unverified peers must not fill the table
        if registered is None:
            if self._counts[context.address] >= CONNECTION_CLIENTS_MAX:
                text = f"the connection has reached its limit of {CONNECTION_CLIENTS_MAX} clients"
                raise V5Error(v2.TOO_MANY_REQUESTS, text)
            if len(self._clients) >= CLIENTS_MAX:
                text = f"the broker has reached its limit of {CLIENTS_MAX} v5 clients"
                raise V5Error(v2.TOO_MANY_REQUESTS, text)
            self._clients[key] = client
            self._counts[context.address] += 1
        client.last_call_ms = self.time.now_ms()
        return client

    def remove(self, context: CallContext) -> None:
        """Remove the client of a call."""
        key = _key_of(context)
        if key in self._clients:
            self._remove(key)

    def remove_idle(self) -> None:
        """Remove the clients without a telemetry stream that made no call for `IDLE_MS_MAX`."""
        limit_ms = self.time.now_ms() - IDLE_MS_MAX
        idle = [
            key
            for key, each in self._clients.items()
            if each.last_call_ms < limit_ms and each.command is None
        ]
        for key in idle:
            self._remove(key)

    def close(self) -> None:
        """Remove all clients."""
        for key in list(self._clients):
            self._remove(key)

    def _remove(self, key: Key) -> None:
        client = self._clients.pop(key)
        self._counts[client.address] -= 1
        if not self._counts[client.address]:
            del self._counts[client.address]
        client.close()


def _key_of(context: CallContext) -> Key:
    return context.client_id, context.access_key, context.address[0]


def _host_of(address: tuple[str, int]) -> tuple[bytes, int]:
    try:
        return ip_address(address[0]).packed, address[1]
    except ValueError:
        return bytes(4), 0
