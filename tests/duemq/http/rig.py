"""Broker with an HTTP API, and a client of the API."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from duemq.broker.broker import Broker
from tests.support.free_ports import free_ports
from tests.support.running_broker import running, small

TIMEOUT_S = 60.0
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: the default reads the certificates of all authorities, 20 ms."""


@asynccontextmanager
async def api(
    root: Path, *, auth: tuple[str, str] | None = None, **keys: str
) -> AsyncIterator[tuple[Broker, httpx.AsyncClient]]:
    """Run a broker with an API; yield it with an HTTP client."""
    [port] = free_ports(1)
    async with running(small(root, consolePort=str(port), **keys)) as (broker, _):
        base = f"http://127.0.0.1:{broker.console_port}"
        client = httpx.AsyncClient(base_url=base, auth=auth, timeout=TIMEOUT_S, verify=NO_TLS)
        async with client:
            yield broker, client


async def json_of(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> Any:
    """Return the result of a request that succeeds."""
    response = await client.request(method, f"/api/v1{path}", **more)
    assert response.status_code == 200, response.text
    return response.json()
