"""Load: outage for clients when the master of a group is killed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bench import WIRELOAD, Bench, Load, Metric
from tests.interop.apache_controller import ApacheController, ApacheMember, OurMember
from tests.interop.programs import go_program
from tests.interop.replicas import send_code
from tests.support.failover_demo.group_load import GroupLoad, SentMessage
from tests.support.remoting_requests import SUCCESS
from tests.support.server import Server
from tests.support.wait_until import now_ms, until

CONTROLLER_VERSION = "5.3.3"
GROUP_KEYS = {
    "timerWheelEnable": "true",
    "allAckInSyncStateSet": "true",
    "controllerHeartBeatTimeoutMills": "3000",
}
TOPIC = "bench-failover"
RATE_PER_S = 500
BEFORE_S, AFTER_S = 5.0, 2.0
DRAIN_S = 60.0
ACCEPTED_S = 120.0
PROBE_S = 0.005
ROUNDS = 3
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Outage:
    """Outage after one kill of the master.

    Attributes:
        killed_ms: Time at which the master had ended, in ms since the epoch.
        accepted_ms: Time of the first send that another member accepted, in ms since the epoch.
        cpu_s: Processor seconds of the new master during the outage.
    """

    killed_ms: int
    accepted_ms: int
    cpu_s: float

    @property
    def duration_ms(self) -> int:
        """Time without a master, in ms."""
        return self.accepted_ms - self.killed_ms


def failover(
    home: Path, scale: float, *, is_apache: bool, rounds: int = ROUNDS, pending: int = 0
) -> list[Metric]:
    """Kill and restart the master of a group of two under load, several times.

    Args:
        rounds: Number of kills.
        pending: Timers that are due in hours, sent before.
    """
    with ApacheController(CONTROLLER_VERSION, home / "controller") as controller:
        kind = ApacheMember if is_apache else OurMember
        members: list[Server] = [
            kind(controller, home / f"member-{number}", keys=GROUP_KEYS) for number in (1, 2)
        ]
        try:
            for member in members:
                member.start()
            _master_of(controller, members)
            if pending:
                _fill(_master_of(controller, members), int(pending * scale))
            return asyncio.run(_measured(controller, members, rounds))
        finally:
            for member in members:
                member.stop()


def _master_of(controller: ApacheController, members: list[Server]) -> Server:
    """Return the master once both members are in sync."""

    def found() -> Server | None:
        group = controller.group()
        masters = [each for each in members if each.broker_address == group.master]
        return masters[0] if masters and len(group.in_sync) == len(members) else None

    master = until(found, seconds=ACCEPTED_S, what="two members in sync", poll_s=0.1)
    controller.wait_in_sync(master, len(members))
    return master


def _fill(master: Server, count: int) -> None:
    bench = Bench(master, go_program(WIRELOAD), 1.0)
    bench.send(bench.topic(), count, conns=4, depth=64, delay=HOUR_MS, spread=24 * HOUR_MS)


async def _measured(
    controller: ApacheController, members: list[Server], rounds: int
) -> list[Metric]:
    load = GroupLoad(controller.namesrv_address, TOPIC, rate=RATE_PER_S)
    await load.prepare()
    sending = asyncio.create_task(load.run(None, DRAIN_S))
    outages = []
    try:
        for _ in range(rounds):
            await asyncio.sleep(BEFORE_S)
            outages.append(await asyncio.to_thread(_fail, controller, members))
            await asyncio.sleep(AFTER_S)
            await asyncio.to_thread(_start_again, controller, members)
        load.end()
        await sending
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await load.close()
    return metrics_of(outages, load)


def _fail(controller: ApacheController, members: list[Server]) -> Outage:
    """Kill the master; wait until the new master accepts a send."""
    master = _master_of(controller, members)
    [other] = [each for each in members if each is not master]
    numbers = itertools.count()

    def accepted() -> bool:
        try:
            return send_code(other, next(numbers)) == SUCCESS
        except OSError:  # the port is closed during the role change
            return False

    cpu_s = other.broker.cpu_seconds()
    master.kill()
    killed_ms = now_ms()
    until(accepted, seconds=ACCEPTED_S, what="a send accepted", poll_s=PROBE_S)
    return Outage(killed_ms, now_ms(), other.broker.cpu_seconds() - cpu_s)


def _start_again(controller: ApacheController, members: list[Server]) -> None:
    [dead] = [each for each in members if not each.running]
    dead.start()
    _master_of(controller, members)


def metrics_of(outages: list[Outage], load: GroupLoad) -> list[Metric]:
    """Return the figures of outages and of the load during them."""
    durations = [each.duration_ms / 1_000 for each in outages]
    account, messages = load.account(), load.messages.values()
    after_ms = [late_after(each, messages) for each in outages]
    return [
        Metric(name="outage", value=median(durations), unit="s", better="less"),
        Metric(name="outage max", value=max(durations), unit="s", better="less"),
        Metric(
            name="new master cpu max",
            value=max(each.cpu_s for each in outages),
            unit="s",
            better="less",
        ),
        Metric(
            name="due meanwhile, stored after the outage",
            value=max(after_ms),
            unit="ms",
            better="less",
        ),
        Metric(name="lost", value=account.pending, unit="messages", better="less"),
        Metric(name="duplicates", value=account.doubled, unit="messages", better="less"),
        Metric(name="early", value=account.early, unit="messages", better="less"),
    ]


def late_after(outage: Outage, messages: Iterable[SentMessage]) -> int:
    """Return the time from the end of an outage to the store of its last due timer, in ms."""
    stored_ms = [
        each.arrivals[0] - outage.accepted_ms
        for each in messages
        if not each.level and each.arrivals and is_due_in(each, outage)
    ]
    return max([0, *stored_ms])


def is_due_in(message: SentMessage, outage: Outage) -> bool:
    """Return whether an acknowledged message was due during an outage."""
    is_due = outage.killed_ms <= message.due_ms <= outage.accepted_ms
    return is_due and message.acknowledged_ms is not None


LOADS = [
    Load(
        name="failover",
        what="kill -9 of the master under load, three times",
        group=failover,
        default=False,
        replication=True,
    ),
    Load(
        name="failover-2m",
        what="the same, once, with 2 M pending timers",
        group=partial(failover, rounds=1, pending=2_000_000),
        default=False,
        replication=True,
        ours_only=True,
    ),
]
