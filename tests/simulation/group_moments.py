"""Faults of a simulated group at the moments in which replication can lose what it has promised.

    outage       the master confirms bytes, and at once every machine loses power
    succession   a replica joins the sync state set, and at once every other member is killed

In both, one replica runs seconds before the others start, so the controller elects it. After an
outage it is the replica that has synced the least.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.simulation.group_world import GROUP, GroupWorld, Member

SECOND: Final = 1_000_000
ALONE_US: Final = (4 * SECOND, 6 * SECOND)  # the controller counts the others as dead after 3 s


class Moments:
    """Observes the members, and lets them fail when the moment has come.

    Args:
        start: Starts a member unless it runs.
    Attributes:
        failed: Number of faults of each kind that came to pass.
    """

    def __init__(self, world: GroupWorld, start: Callable[[Member], None]) -> None:
        self._world, self._start = world, start
        self._confirmed: tuple[Member, int] | None = None  # the master, and what it had confirmed
        self._in_sync: frozenset[int] | None = None
        self.failed = {"outage": 0, "succession": 0}
        world.observers.append(self._observe)

    def await_outage(self) -> None:
        """Cut the power of all machines when the master confirms more."""
        master = self._world.master()
        if master is not None and master.store is not None:
            self._confirmed = master, master.store.confirm_offset

    def await_succession(self) -> None:
        """Kill all others when a replica joins the sync state set."""
        self._in_sync = self._world.controller.model.groups[GROUP].in_sync

    def forget(self) -> None:
        """Let nothing more fail."""
        self._confirmed = self._in_sync = None

    def _observe(self, member: Member) -> None:
        if self._confirmed is not None:
            self._observe_confirmed(member, *self._confirmed)
        if self._in_sync is not None:
            self._observe_set(self._in_sync)

    def _observe_confirmed(self, member: Member, master: Member, before: int) -> None:
        store = member.store
        if member is not master or store is None or store.confirm_offset <= before:
            return
        self._confirmed = None
        found = [each for each in self._world.members if self._is_heir(each, master)]
        if found:
            heir = min(found, key=lambda each: each.synced)
            self._fail("outage", heir, self._world.members, is_cut=True)

    def _is_heir(self, member: Member, master: Member) -> bool:
        in_sync = self._world.controller.model.groups[GROUP].in_sync
        return (
            member is not master and member.process is not None and self._id_of(member) in in_sync
        )

    def _observe_set(self, before: frozenset[int]) -> None:
        found = self._world.controller.model.groups[GROUP].in_sync
        joined = found - before
        self._in_sync = found
        if not joined:
            return
        found = [each for each in self._world.members if self._id_of(each) in joined]
        heir = self._world.chance.choice(found)
        if heir.process is not None:
            self._in_sync = None
            others = [each for each in self._world.members if each is not heir]
            self._fail("succession", heir, others, is_cut=False)

    def _id_of(self, member: Member) -> int:
        """Return the id of the member at the controller; 0: it has none."""
        members = self._world.controller.model.groups[GROUP].members
        found = [each for each, (address, _) in members.items() if address == member.address]
        return max(found, default=0)

    def _fail(self, kind: str, heir: Member, members: list[Member], *, is_cut: bool) -> None:
        self._world.note(f"{kind}: {heir.host.name} is to be the master")
        self.failed[kind] += 1
        timeline, chance = self._world.timeline, self._world.chance

        def end() -> None:  # not within the turn of a process that ends
            for member in members:
                if member.process is not None:
                    member.die(is_cut=is_cut)

        timeline.after(0, end)
        timeline.after(SECOND // 10, partial(self._start, heir))
        for member in members:
            if member is not heir:
                delay_us = chance.randint(*ALONE_US)
                timeline.after(delay_us, partial(self._start, member))
