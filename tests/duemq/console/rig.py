"""Broker with a console in a thread, for blocking HTTP clients and browsers."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from tests.duemq.http.rig import NO_TLS, TIMEOUT_S, api
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps

VIEWER = Credentials("viewer", "viewer-secret")
OPERATOR = Credentials("operator", "operator-secret")
READ = {
    "Cluster:*": ["Get", "List"],
    "Topic:*": ["Get", "List", "Sub"],
    "Group:*": ["Get", "List", "Sub"],
}
RIGHTS = {VIEWER: READ, OPERATOR: READ | {"Topic:*": ["Get", "List", "Sub", "Pub", "Update"]}}


@dataclass(frozen=True)
class Served:
    """Running broker with its console."""

    broker: Broker
    url: str
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the broker's loop."""
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(TIMEOUT_S)

    def client(self, **more: Any) -> httpx.Client:
        """Return an HTTP client of the console."""
        base = f"{self.url}/console"
        options = {"timeout": TIMEOUT_S, "follow_redirects": True, "verify": NO_TLS}
        return httpx.Client(base_url=base, **options, **more)

    @contextmanager
    def logged_in(self, credentials: Credentials) -> Iterator[httpx.Client]:
        """Yield an HTTP client with a login."""
        form = {"access_key": credentials.access_key, "secret": credentials.secret}
        with self.client() as client:
            response = client.post("/login", data=form)
            assert response.status_code == 200, response.text
            yield client


def csrf_of(text: str) -> str:
    """Return the text that the forms of a page send."""
    match = re.search(r'name="csrf" value="([^"]+)"', text)
    assert match is not None
    return match.group(1)


@contextmanager
def served(
    root: Path, prepared: Callable[[Broker], Awaitable[Any]] | None = None, **keys: str
) -> Iterator[Served]:
    """Serve a broker with a console in a thread; `prepared` runs before."""
    ready, results = threading.Event(), list[Served]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with api(root, **keys) as (broker, client):
            if prepared is not None:
                await prepared(broker)
            results.append(Served(broker, str(client.base_url), loop))
            ready.set()
            await stop.wait()

    task = loop.create_task(main())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        while not ready.wait(0.05):
            if not thread.is_alive():
                task.result()
        yield results[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    task.result()


async def with_accounts(broker: Broker) -> None:
    """Create a viewer and an operator."""
    for credentials, rights in RIGHTS.items():
        steps = user_steps(credentials, rights)
        await prepare_all(f"127.0.0.1:{broker.port}", ROOT, steps)


ACCOUNT_KEYS = KEYS
