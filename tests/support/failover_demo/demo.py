"""Failover demo: a controller, a group of two brokers, and a load during which the master dies.

 0 s   the load begins
 8 s   kill -9 of the master; the controller elects the other broker
14 s   the killed broker restarts as a replica
20 s   the load ends; the demo waits for all deliveries and compares
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from duemq.cli.exits import Exit, fail
from duemq.cli.output import console, print_json, table
from duemq.cli.replicas import UNKNOWN
from duemq.client import Admin
from duemq.net.view_names import REPLICATION_VIEW
from duemq_common.errors import DueMQError
from tests.support.demo import compile_for_demo
from tests.support.failover_demo.controller import controller_command, fetch_jars
from tests.support.failover_demo.group_load import Account, GroupLoad
from tests.support.failover_demo.processes import (
    LOOPBACK,
    Member,
    Process,
    free_ports,
    new_member,
    poll,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

NAME: Final = "pair"
TOPIC: Final = "DueMQFailover"
RATE: Final = 300
SEND_S: Final = 20.0
KILL_AFTER_S: Final = 8.0
RESTART_AFTER_S: Final = 6.0
DRAIN_S: Final = 40.0
START_S_MAX: Final = 120.0
LOOK_S: Final = 0.25
MASTER: Final = "MASTER"
View = dict[str, Any]


@dataclass(slots=True)
class DemoState:
    """State of the demo's display.

    Attributes:
        views: Replication state of each member; None: it does not respond.
        events: Event texts with seconds since the load began.
    """

    views: list[View | None] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    account: Account | None = None


class Group:
    """The running group."""

    def __init__(self, members: list[Member], admin: Admin) -> None:
        self.members, self._admin = members, admin

    async def view(self, member: Member) -> View | None:
        """Return the replication state of a member; None if it does not respond."""
        if member.process.is_running:
            with suppress(ConnectionError, DueMQError):
                view: View = await self._admin.view(member.address, REPLICATION_VIEW)
                return view
        return None

    async def views(self) -> list[View | None]:
        """Return the replication state of all members."""
        return [await self.view(member) for member in self.members]

    async def master(self) -> Member | None:
        """Return the current master."""
        for member in self.members:
            view = await self.view(member)
            if view is not None and view["role"] == MASTER and view.get("leaseMs"):
                return member
        return None

    async def wait_in_sync(self) -> None:
        """Wait until there is one master with all members in its sync state set.

        A paused member reports itself as master until it learns about the new one.
        """
        async for _ in poll(LOOK_S):
            views = [view for view in await self.views() if view]
            masters = [view for view in views if view["role"] == MASTER and view.get("leaseMs")]
            in_sync = masters[0].get("syncStateSet") or () if len(masters) == 1 else ()
            if len(views) == len(in_sync) == len(self.members):
                return
            for member in self.members:
                member.process.check()


def run_failover_demo(*, as_json: bool) -> None:
    """Run the demo; exit 1 unless every acknowledged message arrived exactly once, none early."""
    compile_for_demo()
    jars = fetch_jars()
    state = asyncio.run(_run(jars, shown=not as_json))
    account = state.account
    assert account is not None
    if as_json:
        print_json({"account": asdict(account), "events": state.events})
    elif account.is_exact:
        console().print(
            f"{account.acknowledged} acknowledged messages arrived exactly once, none early; "
            f"{account.unknown} sends had no response. The outage took {account.gap_ms} ms; "
            f"the latest delivery was {account.late_ms} ms late.",
            soft_wrap=True,
        )
    if not account.is_exact:
        faults = f"{account.pending} missing, {account.doubled} doubled, {account.early} early"
        fail(faults, Exit.FOUND_FAULT)


async def _run(jars: Path, *, shown: bool) -> DemoState:
    with tempfile.TemporaryDirectory(prefix="duemq-failover-") as directory:
        async with _group(jars, Path(directory)) as (group, namesrv):
            load = GroupLoad(namesrv, TOPIC, rate=RATE)
            state = DemoState()
            async with asyncio.timeout(START_S_MAX):
                await load.prepare()
            watching = asyncio.create_task(_watch(state, group, load, shown=shown))
            failing = asyncio.create_task(_fail_over(state, group))
            try:
                await load.run(SEND_S, DRAIN_S)
                await failing
            finally:
                for task in (watching, failing):
                    task.cancel()
                await asyncio.gather(watching, failing, return_exceptions=True)
                await load.close()
            state.account = load.account()
            return state


@asynccontextmanager
async def _group(jars: Path, home: Path) -> AsyncIterator[tuple[Group, str]]:
    """Run controller and brokers; yield the group and the name server's address when in sync."""
    namesrv_port, controller_port = free_ports(2)
    namesrv, controller = f"{LOOPBACK}:{namesrv_port}", f"{LOOPBACK}:{controller_port}"
    command = controller_command(
        jars, home / "controller", namesrv_port=namesrv_port, controller_port=controller_port
    )
    async with AsyncExitStack() as stack:
        election = Process("the controller", command, home / "controller.log")
        members = [
            new_member(NAME, number, home, namesrv=namesrv, controller=controller)
            for number in (1, 2)
        ]
        for process in (election, *(member.process for member in members)):
            await process.start()
            stack.push_async_callback(process.stop)
        admin = await stack.enter_async_context(Admin(namesrv))
        group = Group(members, admin)
        async with asyncio.timeout(START_S_MAX):
            await group.wait_in_sync()
        yield group, namesrv


async def _fail_over(state: DemoState, group: Group) -> None:
    """Kill the master and restart it later."""
    await asyncio.sleep(KILL_AFTER_S)
    master = await group.master()
    assert master is not None
    await master.process.kill()
    state.events.append(f"{KILL_AFTER_S:.0f} s: kill -9 of the master, {master.process.name}")
    await asyncio.sleep(RESTART_AFTER_S)
    await master.process.start()
    after_s = KILL_AFTER_S + RESTART_AFTER_S
    state.events.append(f"{after_s:.0f} s: {master.process.name} starts again")


async def _watch(state: DemoState, group: Group, load: GroupLoad, *, shown: bool) -> None:
    """Update the scene and redraw it."""
    from rich.live import Live

    with Live(console=console(), refresh_per_second=4, auto_refresh=False) as live:
        async for _ in poll(LOOK_S):
            state.views, state.account = await group.views(), load.account()
            if shown:
                live.update(_rendered(state, group), refresh=True)


def _rendered(state: DemoState, group: Group) -> RenderableType:
    from rich.console import Group as Stack

    columns = ("member", "role", "#epoch", "#log end", "#lag bytes", "state")
    members = table("DueMQ: a group of two brokers", columns, _member_rows(state, group))
    account = state.account
    assert account is not None
    numbers = [
        (
            account.sent,
            account.acknowledged,
            account.unknown,
            account.arrived,
            account.pending,
            account.doubled,
            account.early,
        ),
    ]
    headings = ("#sent", "#acknowledged", "#unknown", "#arrived", "#pending", "#doubled", "#early")
    return Stack(members, table("messages", headings, numbers), *state.events)


def _member_rows(state: DemoState, group: Group) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for member, view in zip(group.members, state.views, strict=False):
        if view is None:
            rows.append((member.process.name, UNKNOWN, "", "", "", "does not respond"))
            continue
        lag = view.get("lagBytes")
        values = (view["role"], view.get("masterEpoch") or "", view.get("logEnd", ""))
        rows.append((member.process.name, *values, "" if lag is None else lag, view["state"]))
    return rows
