"""Console of a cluster with a name server and two brokers, in the thread of the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.client import Client
from duemq.console.application import console_routes
from duemq.http.standalone import ConsoleOptions, serving_console
from tests.duemq.http.rig import NO_TLS, TIMEOUT_S
from tests.support.running_broker import registered, small

NAMESRV = {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}


@dataclass
class Cluster:
    """Two running brokers and a client of their console."""

    first: Broker
    second: Broker
    client: httpx.AsyncClient
    second_running: AsyncExitStack

    async def stop_second(self) -> None:
        """Stop the second broker."""
        await self.second_running.aclose()

    async def page(self, path: str) -> str:
        """Return the text of a page that is not a problem."""
        response = await self.client.get(f"/console{path}")
        assert response.status_code == 200, (path, response.text)
        return response.text


@asynccontextmanager
async def clustered(
    root: Path, *, options: ConsoleOptions | None = None, second_name: str = "second", **keys: str
) -> AsyncIterator[Cluster]:
    """Run two brokers and the console that finds them through the name server."""
    async with Broker(small(root / "a", brokerName="first", **NAMESRV, **keys)) as first:
        more = {"namesrvAddr": first.namesrv_address}
        second_running = AsyncExitStack()
        second = await second_running.enter_async_context(
            Broker(small(root / "b", brokerName=second_name, **more, **keys))
        )
        await registered(second)

        def connect(credentials: Credentials | None) -> Client:
            return Client(first.namesrv_address, credentials=credentials, timeout_s=TIMEOUT_S)

        serving = serving_console(connect, options or ConsoleOptions(port=0), console_routes)
        async with (
            second_running,
            serving as port,
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                timeout=TIMEOUT_S,
                follow_redirects=True,
                verify=NO_TLS,
            ) as client,
        ):
            yield Cluster(first, second, client, second_running)
