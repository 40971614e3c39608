"""uvicorn on one port of the HTTP thread."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import partial
from typing import Final

from uvicorn import Config, Server

from duemq.http.connection import ConnectionLimits, LimitedConnection
from duemq.http.http_port import HttpPort

KEEP_ALIVE_S: Final = 30
DRAIN_S: Final = 2  # time for requests in progress at a stop


class PortServer(Server):
    """Server of one port."""

    def __init__(self, port: HttpPort) -> None:
        limits = ConnectionLimits(port.connections_max)
        factory = None if port.tls is None else lambda *_: port.tls
        config = Config(
            port.application,
            http=partial(LimitedConnection, limits=limits),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=bool(port.proxies),
            forwarded_allow_ips=list(port.proxies),
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
            ssl_context_factory=factory,  # type: ignore[arg-type]
        )
        super().__init__(config)
        self._port = port

    async def serve_until(self, stop: asyncio.Event, listening: asyncio.Event) -> None:
        """Serve until `stop` is set."""
        async with self._port.resources or nullcontext():
            self.config.load()
            self.lifespan = self.config.lifespan_class(self.config)
            await self.startup(sockets=[self._port.bound])
            listening.set()
            ticks = asyncio.create_task(self.main_loop(), name="http ticks")
            await stop.wait()
            ticks.cancel()
            if self._port.on_stop is not None:
                self._port.on_stop()
            await self.shutdown(sockets=[self._port.bound])
