"""One broker with an API for tests that change nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.duemq.http.rig import NO_TLS, TIMEOUT_S, api


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Client of the API of a broker that serves in a thread."""
    root = tmp_path_factory.mktemp("http")
    ready, addresses = threading.Event(), list[str]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def main() -> None:
        async with api(root) as (_, client):
            addresses.append(str(client.base_url))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(TIMEOUT_S)
        with httpx.Client(base_url=addresses[0], timeout=TIMEOUT_S, verify=NO_TLS) as client:
            yield client
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
