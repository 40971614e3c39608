"""Broker with an HTTP API, and a client of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from duemq.broker.broker import Broker
from tests.support.free_ports import free_ports
from tests.support.running_broker import running, small

TIMEOUT_S = 60.0


@asynccontextmanager
async def api(
    root: Path, *, auth: tuple[str, str] | None = None, **keys: str
) -> AsyncIterator[tuple[Broker, httpx.AsyncClient]]:
    """Run a broker with an API; yield it with an HTTP client."""
    [port] = free_ports(1)
    async with running(small(root, consolePort=str(port), **keys)) as (broker, _):
        base = f"http://127.0.0.1:{broker.console_port}"
        async with httpx.AsyncClient(base_url=base, auth=auth, timeout=TIMEOUT_S) as client:
            yield broker, client
