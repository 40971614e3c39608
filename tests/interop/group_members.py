"""Members of a group with Apache's controller: the real group service on a fake host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from duemq.configuration.controller_config import ControllerConfig
from duemq.net.bound_socket import bind
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.replication.controller.identity import IdentityFiles
from duemq.replication.controller.notifications import ControllerNotifications
from duemq.replication.controller.requests import GroupName
from duemq.replication.controller.service import GroupService
from duemq.replication.ha_address import HaAddressProcessor
from duemq_common.clock import SystemClock
from tests.interop.apache_controller import ApacheController
from tests.support.free_ports import LOOPBACK
from tests.support.group_host import FakeHost
from tests.support.wait_until import until

BEAT_MS, LIMIT_MS = 200, 6_000
WAIT_S = 120


def config_of(controller: ApacheController) -> ControllerConfig:
    """Return the configuration of a member: short periods."""
    return ControllerConfig(
        enabled=True,
        addresses=controller.address,
        heartbeat_ms=BEAT_MS,
        heartbeat_limit_ms=LIMIT_MS,
        in_sync_check_ms=BEAT_MS,
    )


class Member:
    """A running member: the service, its host, and the port that controllers notify."""

    def __init__(self, service: GroupService, host: FakeHost) -> None:
        self.service, self.host = service, host

    async def until(self, probe: Callable[[], bool], *, seconds: float = WAIT_S) -> None:
        """Wait until `probe()`, called in a thread, is true."""
        await asyncio.to_thread(until, probe, seconds=seconds, what="the member's state")

    async def until_role(self, *role: object, seconds: float = WAIT_S) -> None:
        """Wait until the newest role starts with the given values."""
        await self.until(
            lambda: bool(self.host.roles) and self.host.roles[-1][: len(role)] == role,
            seconds=seconds,
        )


@asynccontextmanager
async def member(
    home: Path,
    config: ControllerConfig,
    group: GroupName,
    *,
    last_epoch: int = 0,
) -> AsyncIterator[Member]:
    """Run a member whose identity files are below `home`."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        socket = stack.enter_context(bind(LOOPBACK, 0))
        host = FakeHost(f"{LOOPBACK}:{socket.getsockname()[1]}", last_epoch=last_epoch)
        files = IdentityFiles(config.identity_file(home))
        service = GroupService(host, group, config, files, clock, RemotingClient)
        notifications = ControllerNotifications(
            group,
            notify=service.notify,
            epochs=lambda: host.epochs,
            max_offset=lambda: host.max_offset,
            addresses=HaAddressProcessor(
                host.address, host.address, lambda: host.max_offset, is_master=False
            ),
            broker_id=lambda: 0 if service.member.is_master else service.member.broker_id,
        )
        server = RemotingServer(Dispatcher(notifications.handlers()), clock=clock)
        await stack.enter_async_context(server)
        await server.start(LOOPBACK, 0, bound=socket)
        await stack.enter_async_context(service.running())
        yield Member(service, host)
