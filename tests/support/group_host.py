"""A member of a group on loopback: the real service, a host that records its roles, no store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from duemq.net.bound_socket import bind
from duemq.net.client import RemotingClient
from duemq.net.dispatcher import Dispatcher
from duemq.net.server import RemotingServer
from duemq.replication.controller.config import ControllerConfig
from duemq.replication.controller.identity import IdentityFiles
from duemq.replication.controller.notifications import ControllerNotifications
from duemq.replication.controller.requests import GroupName
from duemq.replication.controller.service import GroupService
from message_store.clock import Clock, SystemClock
from tests.support.free_ports import LOOPBACK

GROUP = GroupName("DefaultCluster", "broker-a")


class FakeHost:
    """A broker without a store.

    Attributes:
        roles: Roles in order: ("master", epoch) or ("replica", master id, address, epoch).
        required: Ids that every acknowledged byte needs.
        epochs: Epochs of the log; a master begins one.
    """

    def __init__(self, address: str, *, last_epoch: int = 0) -> None:
        self.address = address
        self.max_offset = self.confirm_offset = 0
        self.caught_up: frozenset[int] = frozenset()
        self.roles: list[tuple[object, ...]] = []
        self.required: list[frozenset[int]] = []
        self.epochs: list[tuple[int, int]] = [(last_epoch, 0)] if last_epoch else []
        self.changed = asyncio.Event()

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    def require(self, ids: frozenset[int]) -> None:
        self.required.append(ids)
        self.changed.set()

    async def become_master(self, epoch: int) -> None:
        self.epochs.append((epoch, self.max_offset))
        self._record("master", epoch)

    async def become_replica(self, master_id: int, address: str, epoch: int) -> None:
        self._record("replica", master_id, address, epoch)

    def _record(self, *role: object) -> None:
        self.roles.append(role)
        self.changed.set()


class Member:
    """A running member: the service, its host, and the port that controllers notify."""

    def __init__(self, service: GroupService, host: FakeHost) -> None:
        self.service, self.host = service, host

    async def until(self, probe: Callable[[], object], *, seconds: float = 30) -> None:
        """Return when `probe()` is true.

        Raises:
            TimeoutError: It is not in time.
        """
        async with asyncio.timeout(seconds):
            while not probe():
                await asyncio.sleep(0.01)

    async def until_role(self, *role: object, seconds: float = 30) -> None:
        """Return when the newest role begins with these words."""
        await self.until(
            lambda: self.host.roles and self.host.roles[-1][: len(role)] == role, seconds=seconds
        )


@asynccontextmanager
async def member(
    home: Path,
    config: ControllerConfig,
    *,
    clock: Clock | None = None,
    last_epoch: int = 0,
    connect: Callable[[str], RemotingClient] = RemotingClient,
) -> AsyncIterator[Member]:
    """Run a member whose identity files are below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        socket = stack.enter_context(bind(LOOPBACK, 0))
        host = FakeHost(f"{LOOPBACK}:{socket.getsockname()[1]}", last_epoch=last_epoch)
        files = IdentityFiles(config.identity_file(home))
        service = GroupService(host, GROUP, config, files, clock, connect)
        notifications = ControllerNotifications(
            GROUP,
            notify=service.notify,
            epochs=lambda: host.epochs,
            max_offset=lambda: host.max_offset,
            master=lambda: (host.address, host.address) if service.member.is_master else None,
            broker_id=lambda: 0 if service.member.is_master else service.member.broker_id,
        )
        server = RemotingServer(Dispatcher(notifications.handlers()), clock=clock)
        await stack.enter_async_context(server)
        await server.start(LOOPBACK, 0, bound=socket)
        await stack.enter_async_context(service.running())
        yield Member(service, host)
