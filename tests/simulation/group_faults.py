"""Random faults of a simulated group: machines, processes, network, disks, clocks.

Each run has its own mixture: some kinds of faults are frequent, others absent.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.simulation.group_rig import GROUP, GroupRig, Member
from tests.simulation.triggered_faults import SECOND, TriggeredFaults

HOUR_MS: Final = 3_600_000
INTERVAL_US: Final = 4 * SECOND
DRIFT_PPM_MAX: Final = 20_000
EMPTY_US: Final = 6 * SECOND  # the controller counts the member as dead after 3 s


class Faults:
    """Injector of random faults, active until `heal`.

    Args:
        cuts_power: Whether machines can lose power; acknowledged messages must then be synced.
    Attributes:
        triggered: Faults that are triggered by a condition.
        counts: Number of faults by kind.
    """

    def __init__(self, rig: GroupRig, *, cuts_power: bool) -> None:
        self._rig, self._chance = rig, rig.chance
        self._goes_on = True
        self._latest_ms = 0  # latest time of any clock before it was set back
        self.triggered = TriggeredFaults(rig, self._start, cuts_power=cuts_power)
        self.counts: Counter[str] = Counter()
        kinds: dict[str, Callable[[], None]] = {
            "kill master": self._kill_master,
            "kill": self._kill,
            "power": self._cut_power,
            "stop": self._stop,
            "pause": self._pause,
            "pause master": self._pause_master,
            "pause cut off": self._pause_and_cut_off,
            "partition": self._partition,
            "one way": self._block_one_way,
            "isolate": self._isolate,
            "reset": self._reset,
            "drop": self._drop,
            "elect": self._elect,
            "controller": self._restart_controller,
            "slow disk": self._slow_disk,
            "clock": self._step_clock,
        }
        if not cuts_power:
            del kinds["power"]
        self._kinds = kinds
        chosen = [name for name in kinds if self._chance.random() < 0.6] or ["kill master"]
        self.weights = {name: self._chance.choice([1, 2, 5]) for name in chosen}
        self._pause_us = self._chance.choice([SECOND // 2, SECOND, 3 * SECOND])
        self._triggers = [
            self.triggered.await_succession,
            self.triggered.await_migration,
            self._lose_disk,
        ]
        if cuts_power:
            self._triggers.append(self.triggered.await_outage)
        self._set_up()
        self._next()
        self._await_phase()

    def _set_up(self) -> None:
        """Choose the properties of network, disks and clocks."""
        chance, rig = self._chance, self._rig
        rig.quality.latency_us = (50, chance.choice([1_000, 5_000, 40_000]))
        rig.quality.loss = chance.choice([0.0, 0.0, 0.01, 0.05])
        for member in rig.members:
            member.host.sync_us = (200, chance.choice([2_000, 10_000, 60_000]))
            member.host.clock.offset_ms = chance.choice([0, 0, -40, 300, HOUR_MS, -HOUR_MS])
            member.host.clock.drift_ppm = chance.choice([0, -DRIFT_PPM_MAX, 500, DRIFT_PPM_MAX])

    def _next(self) -> None:
        delay_us = round(self._chance.expovariate(1 / self._pause_us))
        self._rig.timeline.after(delay_us, self._one)

    def _one(self) -> None:
        if self._goes_on:
            [kind] = self._chance.choices(list(self.weights), list(self.weights.values()))
            self.counts[kind] += 1
            self._kinds[kind]()
            self._next()

    def _await_phase(self) -> None:
        """Arm one of the conditional faults every few seconds."""
        if self._goes_on:
            self._chance.choice(self._triggers)()
            delay_us = round(self._chance.expovariate(1 / INTERVAL_US))
            self._rig.timeline.after(delay_us, self._await_phase)

    # -- processes and machines -----------------------------------------------------------------

    def _running(self) -> list[Member]:
        return [member for member in self._rig.members if member.process is not None]

    def _kill_master(self) -> None:
        master = self._rig.master()
        if master is not None:
            self._end(master, is_cut=False)

    def _kill(self) -> None:
        if running := self._running():
            self._end(self._chance.choice(running), is_cut=False)

    def _cut_power(self) -> None:
        if running := self._running():
            self._end(self._chance.choice(running), is_cut=True)

    def _end(self, member: Member, *, is_cut: bool) -> None:
        member.die(is_cut=is_cut)
        self._start_later(member)

    def _start_later(self, member: Member) -> None:
        delay_us = self._chance.choice([0, SECOND // 10, SECOND, 6 * SECOND])
        self._rig.timeline.after(delay_us, lambda: self._start(member))

    def _start(self, member: Member) -> None:
        if member.process is None:
            member.start()
        elif member.is_stopping:
            self._rig.timeline.after(SECOND // 4, lambda: self._start(member))

    def _stop(self) -> None:
        if running := self._running():
            member = self._chance.choice(running)
            member.stop()
            self._start_later(member)

    def _pause(self) -> None:
        if running := self._running():
            self._pause_one(self._chance.choice(running))

    def _pause_master(self) -> None:
        master = self._rig.master()
        if master is not None:
            self._pause_one(master)

    def _pause_and_cut_off(self) -> None:
        """Pause the master and cut it off from the controller, so that it learns of no election."""
        master = self._rig.master()
        if master is not None:
            self._pause_one(master)
            names = master.host.name, self._rig.controller.host.name
            self._block({names, names[::-1]})

    def _lose_disk(self) -> None:
        """End a member; restart it with an empty disk once it has left the sync state set.

        After an election the set contains only the new master, which can already have failed. Its
        disk then has the only copy of the log and must not be lost.
        """
        if running := self._running():
            member = self._chance.choice(running)
            member.die(is_cut=False)
            self._rig.timeline.after(EMPTY_US, lambda: self._start_empty(member))

    def _start_empty(self, member: Member) -> None:
        group = self._rig.controller.model.groups.get(GROUP)
        if member.process is not None or group is None or not self._goes_on:
            self._start(member)
            return
        in_sync = {group.members[each][0] for each in group.in_sync}
        if in_sync and member.address not in in_sync:
            self._rig.note(f"{member.host.name} has an empty disk")
            shutil.rmtree(member.root)
            member.synced = 0
        self._start(member)

    def _pause_one(self, member: Member) -> None:
        process = member.process
        assert process is not None
        self._rig.note(f"{member.host.name} is paused")
        process.is_paused = True
        delay_us = self._chance.choice([SECOND // 4, 2 * SECOND, 4 * SECOND, 8 * SECOND])

        def wake() -> None:
            self._rig.note(f"{member.host.name} goes on")
            process.is_paused = False

        self._rig.timeline.after(delay_us, wake)

    def _restart_controller(self) -> None:
        controller = self._rig.controller
        if controller.process is not None:
            controller.die()
            delay_us = self._chance.choice([SECOND // 10, SECOND, 5 * SECOND])
            self._rig.timeline.after(delay_us, self._start_controller)

    def _start_controller(self) -> None:
        if self._rig.controller.process is None:
            self._rig.controller.start()

    def _elect(self) -> None:
        group = self._rig.controller.model.groups.get(GROUP)
        if group is not None and group.members:
            self._rig.controller.designate(self._chance.choice(list(group.members)))

    # -- network, disks, clocks -----------------------------------------------------------------

    def _block(self, directions: set[tuple[str, str]]) -> None:
        self._rig.note(f"blocked: {sorted(directions)}")
        network = self._rig.network
        network.blocked |= directions
        delay_us = self._chance.choice([SECOND // 2, 2 * SECOND, 5 * SECOND, 12 * SECOND])

        def unblock() -> None:
            self._rig.note(f"open: {sorted(directions)}")
            network.blocked -= directions

        self._rig.timeline.after(delay_us, unblock)

    def _names(self) -> list[str]:
        return list(self._rig.hosts)

    def _partition(self) -> None:
        one, other = self._chance.sample(self._names(), 2)
        self._block({(one, other), (other, one)})

    def _block_one_way(self) -> None:
        one, other = self._chance.sample(self._names(), 2)
        self._block({(one, other)})

    def _isolate(self) -> None:
        """Cut a machine off from all others except the clients."""
        one = self._chance.choice([each.host.name for each in self._rig.members])
        others = [name for name in self._names() if name not in (one, "client")]
        self._block({pair for other in others for pair in ((one, other), (other, one))})

    def _reset(self) -> None:
        one, other = self._chance.sample(list(self._rig.hosts.values()), 2)
        self._rig.note(f"reset: {one.name}, {other.name}")
        self._rig.network.reset(one, other)

    def _drop(self) -> None:
        """Make connections between members and controller fail silently."""
        hosts = [*(each.host for each in self._rig.members), self._rig.controller.host]
        one, other = self._chance.sample(hosts, 2)
        self._rig.note(f"dropped: {one.name}, {other.name}")
        self._rig.network.drop(one, other)

    def _slow_disk(self) -> None:
        """Make each sync of a member's disk take seconds, for a while."""
        host = self._chance.choice(self._rig.members).host
        before = host.sync_us
        host.sync_us = (SECOND, 4 * SECOND)

        def heal() -> None:
            host.sync_us = before

        self._rig.note(f"{host.name} has a slow disk")
        self._rig.timeline.after(self._chance.choice([SECOND, 5 * SECOND]), heal)

    def _step_clock(self) -> None:
        host = self._chance.choice(self._rig.members).host
        step_ms = self._chance.choice([-HOUR_MS, -1_000, -50, 50, 1_000, HOUR_MS])
        self._latest_ms = max(self._latest_ms, host.clock.now_ms())
        self._rig.note(f"the clock of {host.name} is set by {step_ms} ms")
        host.clock.offset_ms += step_ms

    # -- the end --------------------------------------------------------------------------------

    def heal(self) -> None:
        """Stop all faults; start every machine, with a correct clock.

        The correct time is the latest time that any clock has shown, so that no due time recedes.
        """
        self._goes_on = False
        self.triggered.forget()
        rig = self._rig
        rig.note("everything heals")
        rig.network.blocked.clear()
        rig.quality.loss = 0.0
        clocks = [host.clock for host in rig.hosts.values()]
        latest_ms = max(self._latest_ms, *(clock.now_ms() for clock in clocks))
        for clock in clocks:
            clock.offset_ms += latest_ms - clock.now_ms()
        for member in rig.members:
            member.host.sync_us = (200, 2_000)
            if member.process is not None:
                member.process.is_paused = False
            self._start(member)
        self._start_controller()
