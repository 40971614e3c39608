"""A group of brokers whose master fails again and again, and the account of a load on it.

kill    `kill -9` of the master, as after a power loss of the machine
stop    SIGTERM: the master stops in an orderly way
pause   SIGSTOP for longer than the controller waits, then SIGCONT: the former master must notice
        that another one was elected before it answers or delivers anything

After each failure the former master joins again; the next failure follows when the sync state set
is complete.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from duemq.cli.client import Cluster
from duemq.cli.failover_demo.demo import Group
from duemq.cli.failover_demo.group_load import Account, GroupLoad
from duemq.cli.failover_demo.processes import Member, looks, new_member
from tests.failover.pops import PopLoad
from tests.interop.apache_controller import ApacheController

TOPIC = "Failover"
RATE = 200
DRAIN_S = 60.0
ROUND_S_MAX = 90.0
PAUSE_S = 5.0  # longer than controllerHeartBeatTimeoutMills of the members
LOOK_S = 0.1


@dataclass(slots=True)
class Run:
    """What came of a run.

    Attributes:
        kinds: Number of failures of each kind.
        outages_ms: Time from each failure to the first send that the new master accepted.
        where: Directory of logs and stores.
        pops: What became of popped messages.
    """

    account: Account
    kinds: Counter[str]
    outages_ms: list[int]
    where: Path
    pops: PopLoad


@asynccontextmanager
async def running_group(
    controller: ApacheController, home: Path, count: int
) -> AsyncIterator[Group]:
    """Run a group of `count` brokers; yield it when all are in sync."""
    async with AsyncExitStack() as stack:
        members = [
            new_member(
                "group",
                number,
                home,
                namesrv=controller.namesrv_address,
                controller=controller.address,
            )
            for number in range(1, count + 1)
        ]
        for member in members:
            await member.process.start()
            stack.push_async_callback(member.process.stop)
        cluster = await stack.enter_async_context(Cluster(controller.namesrv_address))
        group = Group(members, cluster)
        async with asyncio.timeout(ROUND_S_MAX):
            await group.wait_in_sync()
        yield group


class Failures:
    """Lets masters fail.

    Args:
        chance: Chooses the kinds.
    """

    def __init__(self, group: Group, load: GroupLoad, chance: random.Random) -> None:
        self._group, self._load, self._chance = group, load, chance
        self.kinds: Counter[str] = Counter()
        self.outages_ms: list[int] = []
        self._ways: dict[str, Callable[[Member], Awaitable[None]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
        }

    async def one(self) -> None:
        """Let the master fail once; return when the group is complete again."""
        kind = self._chance.choice(list(self._ways))
        self.kinds[kind] += 1
        master = await self._find_master()
        await self._ways[kind](master)
        async with asyncio.timeout(ROUND_S_MAX):
            await self._group.wait_in_sync()
        await asyncio.sleep(self._chance.uniform(0, 1))

    async def _find_master(self) -> Member:
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in looks(LOOK_S):
                master = await self._group.master()
                if master is not None:
                    return master
        raise AssertionError("unreachable")

    async def _kill(self, master: Member) -> None:
        await master.process.kill()
        await self._until_accepted()
        await master.process.start()

    async def _stop(self, master: Member) -> None:
        await master.process.stop()
        await self._until_accepted()
        await master.process.start()

    async def _pause(self, master: Member) -> None:
        master.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        master.process.send_signal(signal.SIGCONT)
        await self._until_accepted()

    async def _until_accepted(self) -> None:
        """Return when a send was accepted; record how long that took from now on."""
        loop = asyncio.get_running_loop()
        failed_s, before = loop.time(), self._load.acknowledged_count
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in looks(LOOK_S):
                if self._load.acknowledged_count > before:
                    break
        self.outages_ms.append(int((loop.time() - failed_s) * 1_000))


async def run_failovers(
    controller: ApacheController, home: Path, *, rounds: int, members: int, seed: int
) -> Run:
    """Let masters fail `rounds` times under load; return the account of all messages."""
    async with running_group(controller, home, members) as group:
        load = GroupLoad(controller.namesrv_address, TOPIC, rate=RATE, seed=seed)
        await load.prepare()
        failures = Failures(group, load, random.Random(seed))
        pops = PopLoad([member.address for member in group.members])
        sending = asyncio.create_task(load.run(None, DRAIN_S))
        try:
            async with pops.running():
                for _ in range(rounds):
                    await failures.one()
            load.end()
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await load.close()
        return Run(load.account(), failures.kinds, failures.outages_ms, home, pops)
