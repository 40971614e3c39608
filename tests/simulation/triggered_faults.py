"""Faults of a simulated group at the times at which replication can most easily lose messages.

    outage       all machines lose power immediately after the master has confirmed bytes
    succession   all other members are killed immediately after a replica has joined the
                 sync state set
    migration    the master is killed or loses power immediately after it has appended an
                 ownership record

In each case one replica restarts seconds before the failed members, so that the controller elects
it, or a member that still runs. After an outage it is the replica with the shortest synced log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from delayed_delivery import ownership
from tests.simulation.group_rig import GROUP, GroupRig, Member

SECOND: Final = 1_000_000
ALONE_US: Final = (4 * SECOND, 6 * SECOND)  # the controller counts the others as dead after 3 s


class TriggeredFaults:
    """Observer of the members that triggers an armed fault when its condition is met.

    Args:
        start: Starts a member that is not running.
        cuts_power: Whether a machine may lose power.
    Attributes:
        failed: Number of triggered faults by kind.
    """

    def __init__(self, rig: GroupRig, start: Callable[[Member], None], *, cuts_power: bool) -> None:
        self._rig, self._start, self._cuts_power = rig, start, cuts_power
        self._confirmed: tuple[Member, int] | None = (
            None  # the master and the end of its confirmed log
        )
        self._in_sync: frozenset[int] | None = None
        self._journal: tuple[Member, int] | None = None  # the master, and the end of its journal
        self.failed = {"outage": 0, "succession": 0, "migration": 0}
        rig.observers.append(self._observe)

    def await_outage(self) -> None:
        """Arm an outage: cut the power of all machines when the master confirms more bytes."""
        master = self._rig.master()
        if master is not None and master.store is not None:
            self._confirmed = master, master.store.confirm_offset

    def await_succession(self) -> None:
        """Arm a succession: kill all other members when a replica joins the sync state set."""
        self._in_sync = self._rig.controller.model.groups[GROUP].in_sync

    def await_migration(self) -> None:
        """Kill the master when it appends an ownership record."""
        master = self._rig.master()
        if master is not None and master.store is not None:
            self._journal = master, ownership.bounds(master.store)[1]

    def forget(self) -> None:
        """Disarm all faults."""
        self._confirmed = self._in_sync = self._journal = None

    def _observe(self, member: Member) -> None:
        if self._confirmed is not None:
            self._observe_confirmed(member, *self._confirmed)
        if self._in_sync is not None:
            self._observe_set(self._in_sync)
        if self._journal is not None:
            self._observe_journal(member, *self._journal)

    def _observe_journal(self, member: Member, master: Member, before: int) -> None:
        store = member.store
        if member is not master or store is None or ownership.bounds(store)[1] <= before:
            return
        self._journal = None
        heirs = [each for each in self._rig.members if self._is_successor(each, master)]
        if heirs:
            is_cut = self._cuts_power and self._rig.chance.random() < 0.5
            self._fail("migration", self._rig.chance.choice(heirs), [master], is_cut=is_cut)

    def _observe_confirmed(self, member: Member, master: Member, before: int) -> None:
        store = member.store
        if member is not master or store is None or store.confirm_offset <= before:
            return
        self._confirmed = None
        found = [each for each in self._rig.members if self._is_successor(each, master)]
        if found:
            successor = min(found, key=lambda each: each.synced)
            self._fail("outage", successor, self._rig.members, is_cut=True)

    def _is_successor(self, member: Member, master: Member) -> bool:
        in_sync = self._rig.controller.model.groups[GROUP].in_sync
        return (
            member is not master and member.process is not None and self._id_of(member) in in_sync
        )

    def _observe_set(self, before: frozenset[int]) -> None:
        found = self._rig.controller.model.groups[GROUP].in_sync
        joined = found - before
        self._in_sync = found
        if not joined:
            return
        found = [each for each in self._rig.members if self._id_of(each) in joined]  # type: ignore[assignment]
        successor = self._rig.chance.choice(found)  # type: ignore[var-annotated]
        if successor.process is not None:
            self._in_sync = None
            others = [each for each in self._rig.members if each is not successor]
            self._fail("succession", successor, others, is_cut=False)

    def _id_of(self, member: Member) -> int:
        """Return the member's id at the controller; 0: none."""
        members = self._rig.controller.model.groups[GROUP].members
        found = [each for each, (address, _) in members.items() if address == member.address]
        return max(found, default=0)

    def _fail(self, kind: str, successor: Member, members: list[Member], *, is_cut: bool) -> None:
        self._rig.note(f"{kind}: {successor.host.name} is to be the master")
        self.failed[kind] += 1
        timeline, chance = self._rig.timeline, self._rig.chance

        def end() -> None:  # scheduled, since a process cannot end within its own turn
            for member in members:
                if member.process is not None:
                    member.die(is_cut=is_cut)

        timeline.after(0, end)
        timeline.after(SECOND // 10, partial(self._start, successor))
        for member in members:
            if member is not successor:
                delay_us = chance.randint(*ALONE_US)
                timeline.after(delay_us, partial(self._start, member))
