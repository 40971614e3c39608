"""In-memory group: real group services, a fake clock, models of controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from duemq.configuration.controller_config import ControllerConfig
from duemq.replication.controller.identity import IdentityFiles
from duemq.replication.controller.service import GroupService
from duemq_common.clock import FakeClock
from tests.support.fake_controller import ADDRESS, ControllerModel, FakeControllers, FakeLink
from tests.support.fakes import settle
from tests.support.group_host import GROUP, FakeHost

LIMIT_MS, LEASE_MS, BEAT_MS, SCAN_MS = 3_000, 2_700, 500, 500
STEP_MS = 50
STEPS_MAX = 1_000
Running = tuple[GroupService, FakeHost]


class Rig:
    """Clock, controller and members.

    Attributes:
        controller: First leader of the controllers.
        network: Network between members and controllers.
    """

    def __init__(self, home: Path, *, more: tuple[str, ...] = (), clock_ms: int = 10**12) -> None:
        # One thread: `run` waits for every file that was written before.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        self.home = home
        self.clock = FakeClock(clock_ms)
        self.controller = ControllerModel(self.clock.steady_ms)
        models = {ADDRESS: self.controller}
        for address in more:
            models[address] = self.follower()
        self.network = FakeControllers(models)
        self.controller.notified = self._notify
        self.services: list[GroupService] = []
        self.notifies = True

    def follower(self) -> ControllerModel:
        """Return another controller, with the same groups and separate heartbeats."""
        model = ControllerModel(self.clock.steady_ms)
        model.groups, model.masters = self.controller.groups, self.controller.masters
        model.is_leader, model.notified = False, self._notify
        return model

    def _notify(self, name: str) -> None:
        if self.notifies:
            for service in self.services:
                service.notify()

    @asynccontextmanager
    async def member(
        self, number: int, *, last_epoch: int = 0, host: FakeHost | None = None
    ) -> AsyncIterator[Running]:
        """Run a member; its identity files persist by number."""
        config = ControllerConfig(
            enabled=True,
            addresses=";".join(self.network.models),
            heartbeat_ms=BEAT_MS,
            heartbeat_limit_ms=LIMIT_MS,
            in_sync_check_ms=1_000,
            leader_check_ms=2_000,
        )
        host = host or FakeHost(f"broker:{number}", last_epoch=last_epoch)
        home = self.home / str(number)
        home.mkdir(exist_ok=True)
        files = IdentityFiles(config.identity_file(home))

        def connect(address: str) -> FakeLink:
            link = self.network.connect(address)
            link.owner = number
            return link

        service = GroupService(host, GROUP, config, files, self.clock, connect)
        async with service.running():
            self.services.append(service)
            yield service, host
            self.services.remove(service)

    @asynccontextmanager
    async def pair(self, *, in_sync: bool = True) -> AsyncIterator[tuple[Running, Running]]:
        """Run member 1 as master and member 2 as its replica, which is in sync by default."""
        async with self.member(1) as first:
            service, host = first
            await self.until(lambda: service.holds(1))
            async with self.member(2) as second:
                await self.until(lambda: second[1].roles)
                if in_sync:
                    host.caught_up = frozenset({2})
                    await self.until(lambda: service.member.in_sync.ids == {1, 2})
                yield first, second

    async def run(self, time_ms: int) -> None:
        """Advance the clock; controllers check for members without heartbeats."""
        for _ in range(time_ms // STEP_MS):
            self.clock.advance(STEP_MS)
            await settle()
            await asyncio.to_thread(int)
            if self.clock.steady_ms() % SCAN_MS == 0:
                for model in self.network.models.values():
                    model.scan()

    async def until(self, probe: Callable[[], object]) -> None:
        """Advance the clock until `probe()` is true."""
        for _ in range(STEPS_MAX):
            await settle()
            if probe():
                return
            await self.run(STEP_MS)
        raise AssertionError("the condition did not become true")
