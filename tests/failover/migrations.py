"""Failures of the master of a group while it migrates levels, under load.

    forward     start     --> routing, draining, verifying --> done
    backward    rollback  --> rolling back                 --> rolled back

Each round takes one direction; the master fails in one phase of it. Then the operator sends no
command until all levels are at rest on the next master: done, rolled back or paused. Only a paused
level is resumed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from duemq.client import Admin
from duemq_common.errors import DueMQError
from tests.failover.failovers import DRAIN_S, ROUND_S_MAX, Failures, running_group
from tests.failover.migration_decisions import DONE, FINAL, Decision, Decisions
from tests.interop.apache_controller import ApacheController
from tests.support.duemq_server import ROOT
from tests.support.failover_demo.demo import Group
from tests.support.failover_demo.group_load import Account, GroupLoad
from tests.support.failover_demo.processes import Member, poll

TOPIC: Final = "FailoverMigrations"
DELAYS_MS: Final = {1: 3_000, 2: 7_000, 3: 14_000}
RATE: Final = 120
KEYS: Final = {
    "messageDelayLevel": " ".join(f"{delay // 1_000}s" for delay in DELAYS_MS.values()),
    "timerRollWindowSlot": "3600",
    "migrationLatenessTargetMs": "0",
    "migrationRate": str(RATE),  # a migration takes seconds, on both masters
}
KINDS: Final = ("kill", "kill", "kill", "pause")
FORWARD: Final = ("start", "moving", "pause", "paused", "resume", "rollback", "verifying", "rest")
BACKWARD: Final = ("rollback", "moving", "pause", "paused", "resume", "rest")
CALL_S_MAX: Final = 4.0  # less than the pause of a master
COMMAND_S_MAX: Final = 120.0  # the first command loads modules, perhaps on a busy machine
CUT_S_MAX: Final = 0.06  # between a command and the failure
MOVING_S: Final = (0.0, 2.0)
FILLED_S: Final = 5.0  # after which the levels have pending messages
STILL_S: Final = 0.6  # in which a paused level moves nothing
POLL_S: Final = 0.1


class Operator:
    """An operator of the migrations of a group.

    Attributes:
        decisions: The operator's commands.
        failed_in: Number of failures by phase.
        continued: Number of failures after which the next master had a migration to continue.
        last: Last reported states of the levels.
        refusals: Commands without success, with the error.
    """

    def __init__(self, group: Group, failures: Failures, chance: random.Random) -> None:
        self._group, self._failures, self._chance = group, failures, chance
        self._forward, self._backward = _shuffled(FORWARD, chance), _shuffled(BACKWARD, chance)
        self._numbers = itertools.count()
        self.decisions = Decisions()
        self.failed_in: Counter[str] = Counter()
        self.continued = 0
        self.last: list[dict[str, Any]] = []
        self.refusals: list[str] = []

    async def round(self) -> None:
        """Migrate in one direction with one failure of the master; wait until all is at rest."""
        startable = [level for level in DELAYS_MS if self._state(level) != DONE]
        begin = "start" if startable else "rollback"
        phase = next(self._forward if startable else self._backward)
        master = await self._failures.find_master()
        sending = await self._until_phase(master, begin, phase, startable)
        kind = self._chance.choice(KINDS)
        self.failed_in[f"{begin}, {phase}, {kind}"] += 1
        await self._failures.fail(master, kind)
        if sending is not None:
            await sending
        await self._check_next_master()
        await self.settle()
        async with asyncio.timeout(ROUND_S_MAX):
            await self._group.wait_in_sync()
        self.decisions.check(await self.status())

    async def _until_phase(
        self, master: Member, begin: str, phase: str, levels: list[int]
    ) -> asyncio.Task[bool] | None:
        """Send commands until the phase of the failure; return one that is not answered yet."""
        if phase == begin:
            return await self._cut(master, begin, levels)
        if not await self.command(master, begin, levels):
            return None
        if phase == "rest":
            await self.settle()
        elif phase == "verifying":
            await self._until_verifying(master)
        else:
            await asyncio.sleep(self._chance.uniform(*MOVING_S))
        if phase in ("paused", "resume"):
            await self.command(master, "pause")
        if phase in ("pause", "resume", "rollback"):
            return await self._cut(master, phase)
        return None

    async def _cut(
        self, master: Member, action: str, levels: list[int] | None = None
    ) -> asyncio.Task[bool]:
        """Begin a command; return it after a part of its usual time."""
        sending = asyncio.create_task(
            self.command(master, action, levels, timeout_s=CALL_S_MAX), name=action
        )
        await asyncio.sleep(self._chance.uniform(0, CUT_S_MAX))
        return sending

    async def _until_verifying(self, master: Member) -> None:
        while not any(item["state"] == "verifying" for item in self.last):
            self.last = await self.status(master)
            if self._at_rest():
                return

    # -- commands -----------------------------------------------------------------------------

    async def command(
        self,
        master: Member,
        action: str,
        levels: list[int] | None = None,
        *,
        timeout_s: float = COMMAND_S_MAX,
    ) -> bool:
        """Send a command to a master; return whether its success was answered."""
        operator = f"operator-{next(self._numbers)}"
        try:
            async with asyncio.timeout(timeout_s), Admin(broker=master.address) as admin:
                done = await admin.migrate(
                    master.address, action, levels=levels or [], operator=operator
                )
        except (OSError, TimeoutError, DueMQError) as error:
            self.refusals.append(f"{operator}, {action}: {error!r}")
            chosen = tuple(levels or self.decisions.possible)
            self.decisions.add(Decision(operator, action, chosen, answered=False))
            return False
        found = Decision(operator, action, tuple(done["levels"]), True, done["migration"])
        self.decisions.add(found)
        return True

    async def status(self, member: Member | None = None) -> list[dict[str, Any]]:
        """Return the states of the levels as a member reports them; None: the master."""
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in poll(POLL_S):
                master = member or await self._failures.find_master()
                try:
                    async with (
                        asyncio.timeout(CALL_S_MAX),
                        Admin(broker=master.address) as admin,
                    ):
                        status = await admin.migration_status(master.address)
                        return [cast(dict[str, Any], each) for each in status["levels"]]
                except (OSError, TimeoutError, DueMQError):
                    continue
        raise AssertionError("unreachable")

    async def _check_next_master(self) -> None:
        """Check the first report of the next master."""
        self.last = await self.status()
        self.decisions.check(self.last)
        self.continued += not self._at_rest()

    async def settle(self) -> None:
        """Wait until all levels are at rest; resume paused ones, which have not moved."""
        async with asyncio.timeout(ROUND_S_MAX):
            async for _ in poll(POLL_S):
                self.last = await self.status()
                self.decisions.check(self.last)
                if self._at_rest():
                    return
                if any(item["paused"] for item in self.last):
                    await self._resume()

    async def _resume(self) -> None:
        before = {item["level"]: item for item in self.last if item["paused"]}
        await asyncio.sleep(STILL_S)
        self.last = await self.status()
        self.decisions.check(self.last)
        for item in self.last:
            for count in ("moved", "returned"):
                was = before.get(item["level"], item)[count]
                assert item[count] == was, f"a paused level moved: {item}, before {was}"
        await self.command(await self._failures.find_master(), "resume")

    def _at_rest(self) -> bool:
        return all(item["state"] in FINAL for item in self.last)

    def _state(self, level: int) -> str:
        return next((item["state"] for item in self.last if item["level"] == level), "planned")


@dataclass(slots=True)
class MigrationRun:
    """Result of a run.

    Attributes:
        kinds: Number of failures by kind.
        last: States of the levels at the end, as `duemq migrate status` shows them.
        verified: Output of `duemq migrate verify` at the end.
        configs: Configuration files of the members.
    """

    account: Account
    kinds: Counter[str]
    operator: Operator
    last: list[dict[str, Any]]
    verified: dict[str, Any]
    configs: list[Path]


async def run_migrations(
    controller: ApacheController, home: Path, *, rounds: int, members: int, seed: int
) -> MigrationRun:
    """Let the master fail in `rounds` migrations under load; return the result."""
    chance = random.Random(seed)
    async with running_group(controller, home, members, **KEYS) as group:
        load = GroupLoad(
            controller.namesrv_address, TOPIC, rate=RATE, seed=seed, delays_ms=DELAYS_MS
        )
        await load.prepare()
        failures = Failures(group, load, chance)
        operator = Operator(group, failures, chance)
        sending = asyncio.create_task(load.run(None, DRAIN_S))
        try:
            await asyncio.sleep(FILLED_S)
            for _ in range(rounds):
                await operator.round()
            load.end()
            await sending
            master = await failures.find_master()
            verified = await _printed("verify", master)
            shown = await _printed("status", master)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await load.close()
        configs = [home / f"broker-{number}" / "broker.conf" for number in range(1, members + 1)]
        return MigrationRun(
            load.account(), failures.kinds, operator, shown["levels"], verified, configs
        )


async def _printed(command: str, master: Member) -> Any:
    """Return the JSON that a command of `duemq migrate` prints; check that it exits with 0."""
    words = (sys.executable, "-m", "duemq", "migrate", command, "--json", "-b", master.address)
    process = await asyncio.create_subprocess_exec(*words, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(COMMAND_S_MAX):
        out, error = await process.communicate()
    assert process.returncode == 0, out + error
    return json.loads(out)


def _shuffled(phases: tuple[str, ...], chance: random.Random) -> Iterator[str]:
    """Yield all phases in a random order, again and again."""
    while True:
        yield from chance.sample(phases, len(phases))
