"""Repeated failures of the master of a broker group under load, and a check of all messages.

kill    `kill -9` of the master, as in a power loss of the machine
stop    SIGTERM: the master stops cleanly
pause   SIGSTOP for longer than the controller's timeout, then SIGCONT: the former master must
        detect the election of another master before it responds to requests or delivers messages
hang    SIGSTOP until another master accepts sends, as of a machine whose network is lost

After each failure the former master rejoins. The next failure follows when the sync state set is
complete.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from duemq.client import Admin
from tests.failover.pops import PopLoad
from tests.failover.schedules import Schedules
from tests.interop.apache_controller import ApacheController
from tests.support.failover_demo.demo import Group
from tests.support.failover_demo.group_load import Account, GroupLoad
from tests.support.failover_demo.processes import Member, new_member, poll
from tests.support.free_ports import free_ports

log = logging.getLogger(__name__)
TOPIC = "Failover"
RATE = 200
DRAIN_S = 180.0
ROUND_S_MAX = 240.0  # on a busy machine
ELECTED_S_MAX = 30.0
PAUSE_S = 5.0  # longer than controllerHeartBeatTimeoutMills of the members
POLL_S = 0.1
KEYS = {"checkSyncStateSetPeriod": "1000"}  # a member that rejoins is in sync soon


@dataclass(slots=True)
class Run:
    """Result of a run.

    Attributes:
        kinds: Number of failures by kind.
        outages_ms: Time from each failure to the first send that the new master accepted, in ms.
        where: Directory of logs and stores.
        pops: Account of the popped messages.
        schedules: Schedules that ran meanwhile.
    """

    account: Account
    kinds: Counter[str]
    outages_ms: list[int]
    where: Path
    pops: PopLoad
    schedules: Schedules


@asynccontextmanager
async def running_group(
    controller: ApacheController,
    home: Path,
    count: int,
    *,
    grpc_ports: Sequence[int] = (),
    **keys: str,
) -> AsyncIterator[Group]:
    """Run a group of `count` brokers; yield the group once all members are in sync.

    Args:
        grpc_ports: Port for v5 clients of each member; empty: they serve none.
        keys: Additional configuration keys of all members.
    """
    v5_keys = [{"grpcServerPort": str(port)} for port in grpc_ports] or [{}] * count
    async with AsyncExitStack() as stack:
        members = [
            new_member(
                "group",
                number,
                home,
                namesrv=controller.namesrv_address,
                controller=controller.address,
                keys=KEYS | keys | grpc,
                ports=free_ports(2),  # no connection takes them while the broker is down
            )
            for number, grpc in enumerate(v5_keys, 1)
        ]
        for member in members:
            await member.process.start()
            stack.push_async_callback(member.process.stop)
        admin = await stack.enter_async_context(Admin(controller.namesrv_address))
        group = Group(members, admin)
        async with asyncio.timeout(ROUND_S_MAX):
            await group.wait_in_sync()
        yield group


class Failures:
    """Injector of master failures.

    Args:
        chance: Random generator that chooses the kinds of failures.
    """

    def __init__(self, group: Group, load: GroupLoad, chance: random.Random) -> None:
        self._group, self._load, self._chance = group, load, chance
        self.kinds: Counter[str] = Counter()
        self.outages_ms: list[int] = []
        self._ways: dict[str, Callable[[Member], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "hang": self._hang,
        }
        self._next_kinds: list[str] = []

    async def one(self) -> None:
        """Inject one failure of the master; wait until the group is complete again.

        Four failures in sequence are of four kinds, in random order.
        """
        if not self._next_kinds:
            self._next_kinds = self._chance.sample(list(self._ways), len(self._ways))
        await self.fail(await self.find_master(), self._next_kinds.pop())
        async with asyncio.timeout(ROUND_S_MAX):
            await self._group.wait_in_sync()
        await asyncio.sleep(self._chance.uniform(0, 1))

    async def fail(self, master: Member, kind: str) -> None:
        """Let the master fail in a way; wait until the next master accepts a send."""
        self.kinds[kind] += 1
        await self._ways[kind](master)

    async def find_master(self) -> Member:
        """Return the master; wait for its election."""
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in poll(POLL_S):
                master = await self._group.master()
                if master is not None:
                    return master
        raise AssertionError("unreachable")

    async def _kill(self, master: Member) -> None:
        await master.process.kill()
        await self._replace(master)

    async def _stop(self, master: Member) -> None:
        await master.process.stop()
        await self._replace(master)

    async def _replace(self, master: Member) -> None:
        """Wait for the next master, then restart the former one.

        On a busy machine, the other member may leave the sync state set just before the failure.
        Then only the former master can be elected.
        """
        try:
            async with asyncio.timeout(ELECTED_S_MAX):
                await self._until_accepted()
        except TimeoutError:
            self.kinds["alone"] += 1
            await master.process.start()
            await self._until_accepted()
        else:
            await master.process.start()

    async def _pause(self, master: Member) -> None:
        master.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        master.process.send_signal(signal.SIGCONT)
        await self._until_accepted()

    async def _hang(self, master: Member) -> None:
        master.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(POLL_S)  # responses that it has sent arrive
            async with asyncio.timeout(ELECTED_S_MAX):
                await self._until_accepted()
        except TimeoutError:
            self.kinds["alone"] += 1
        finally:
            master.process.send_signal(signal.SIGCONT)
        await self._until_accepted()

    async def _until_accepted(self) -> None:
        """Wait until a send is accepted; record the elapsed time."""
        loop = asyncio.get_running_loop()
        failed_s, before = loop.time(), self._load.acknowledged_count
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in poll(POLL_S):
                if self._load.acknowledged_count > before:
                    break
        self.outages_ms.append(int((loop.time() - failed_s) * 1_000))
        log.info("outage of %d ms, failures so far: %s", self.outages_ms[-1], dict(self.kinds))


async def run_failovers(
    controller: ApacheController, home: Path, *, rounds: int, members: int, seed: int
) -> Run:
    """Inject `rounds` failures of masters under load; return the result."""
    async with running_group(controller, home, members) as group:
        load = GroupLoad(controller.namesrv_address, TOPIC, rate=RATE, seed=seed)
        await load.prepare()
        failures = Failures(group, load, random.Random(seed))
        addresses = [member.address for member in group.members]
        pops, schedules = PopLoad(addresses), Schedules(addresses)
        sending = asyncio.create_task(load.run(None, DRAIN_S))
        try:
            async with pops.running(), schedules.running():
                for _ in range(rounds):
                    await failures.one()
            load.end()
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await load.close()
        return Run(load.account(), failures.kinds, failures.outages_ms, home, pops, schedules)
