"""Clients of the v5 protocol: what the broker sees as the peer of their requests.

A client has any number of connections and calls; its id, and its account, hold them together. It is
forgotten when it says that it ends, or when it has no telemetry stream and
has made no call for `EXPIRES_MS`. Only clients whose signature is verified are in the table.

Source: GrpcChannelManager, GrpcClientChannel
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Final

from delivery.plugin import Peer, Request, Response
from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error
from message_store.clock import Clock

EXPIRES_MS: Final = 120_000  # grpcClientIdleTimeMills
CLIENTS_MAX: Final = 20_000
CONNECTION_CLIENTS_MAX: Final = 256  # a gateway has the clients of many on one connection
Command = Callable[[api.TelemetryCommand], None]


class V5Client:
    """One client, a `Peer`.

    Attributes:
        settings: As the client has sent them; None: it has sent none yet.
        command: Sends a telemetry command to the client; None: it has no telemetry stream.
        on_request: Called with one-way requests of the broker.
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
        self.touched_ms = 0
        self._on_request = on_request
        self._closed = False
        self._close_callbacks: list[Callable[[Peer], None]] = []

    def __repr__(self) -> str:
        return f"{self.client_id[:64]!r} at {self.address[0]}"

    @property
    def closed(self) -> bool:
        """Whether the client has been forgotten."""
        return self._closed

    def send_oneway(self, request: Request) -> None:
        """Send what the client understands of a request; others are dropped."""
        if not self._closed:
            self._on_request(self, request)

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        """Refuse: no request with a response has an equivalent in the v5 protocol.

        Raises:
            ConnectionError: Always.
        """
        raise ConnectionError(f"a v5 client does not answer request {request.code}")

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Have `callback` called once when the client is forgotten."""
        self._close_callbacks.append(callback)

    def close(self) -> None:
        """Forget the client everywhere."""
        if self._closed:
            return
        self._closed = True
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)


class V5Clients:
    """All clients of one front.

    Args:
        verify: Raises V5Error if the signature of a call is not that of its account.
        on_request: Called with one-way requests of the broker to a client.
    """

    def __init__(
        self,
        clock: Clock,
        verify: Callable[[CallContext, Peer], None],
        on_request: Callable[[V5Client, Request], None],
    ) -> None:
        self._clock, self._verify, self._on_request = clock, verify, on_request
        self._clients: dict[tuple[str, str], V5Client] = {}
        self._counts: Counter[tuple[str, int]] = Counter()  # by the connection of the first call

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._clients)

    def of(self, context: CallContext) -> V5Client:
        """Return the client that makes a call.

        Raises:
            V5Error: Its signature is not valid, or there are too many clients.
        """
        key = context.client_id, context.access_key
        known = self._clients.get(key)
        client = known or V5Client(context, self._on_request)
        self._verify(context, client)  # before the table: it is no place for unknown peers
        if known is None:
            if self._counts[context.address] >= CONNECTION_CLIENTS_MAX:
                text = f"the connection has {CONNECTION_CLIENTS_MAX} clients"
                raise V5Error(v2.TOO_MANY_REQUESTS, text)
            if len(self._clients) >= CLIENTS_MAX:
                raise V5Error(v2.TOO_MANY_REQUESTS, f"there are {CLIENTS_MAX} clients")
            self._clients[key] = client
            self._counts[context.address] += 1
        client.touched_ms = self._clock.steady_ms()
        return client

    def remove(self, context: CallContext) -> None:
        """Forget the client that makes a call."""
        key = context.client_id, context.access_key
        if key in self._clients:
            self._remove(key)

    def expire(self) -> None:
        """Forget the clients without a stream that have made no call for long."""
        limit_ms = self._clock.steady_ms() - EXPIRES_MS
        silent = [
            key
            for key, each in self._clients.items()
            if each.touched_ms < limit_ms and each.command is None
        ]
        for key in silent:
            self._remove(key)

    def close(self) -> None:
        """Forget all."""
        for key in list(self._clients):
            self._remove(key)

    def _remove(self, key: tuple[str, str]) -> None:
        client = self._clients.pop(key)
        self._counts[client.address] -= 1
        if not self._counts[client.address]:
            del self._counts[client.address]
        client.close()


def _host_of(address: tuple[str, int]) -> tuple[bytes, int]:
    try:
        found = ipaddress.ip_address(address[0].partition("%")[0])
    except ValueError:
        return bytes(4), 0
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).packed, address[1]
