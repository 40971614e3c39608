"""Role of an application at a cluster: producer, consumer, admin; base of these classes.

Each role has a `Client` of its own, or shares one with other roles.
"""

from __future__ import annotations

import ssl
from typing import Self, TypedDict, Unpack

from duemq.auth.signature import Credentials
from duemq.client.client import Client
from duemq_common.clock import Clock


class ConnectionOptions(TypedDict, total=False):
    """Arguments of `Client` by their names."""

    broker: str
    tls: ssl.SSLContext | bool | None
    credentials: Credentials | None
    timeout_s: float
    clock: Clock | None


class ClientOptions(ConnectionOptions, total=False):
    """Arguments that every role has.

    Attributes:
        client: Client to share; then the arguments of a client are not used.
    """

    client: Client | None


class ClientRole:
    """Producer, consumer or admin; an async context manager.

    Args:
        namesrv, broker, tls, credentials, timeout_s, clock: As in `Client`.
        client: Client to share; then the arguments of a client are not used.
    """

    def __init__(
        self,
        namesrv: str = "",
        *,
        client: Client | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._owns_client, self._is_closed = client is None, False
        self.client = client or Client(namesrv, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the work of the role, then close the connections, unless the client is shared."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._end_work()
        finally:
            if self._owns_client:
                await self.client.close()

    async def _end_work(self) -> None:
        """Finish what is in flight, before the connections close."""
