"""Fencing of a master that was replaced without its knowledge, by each mechanism alone.

If the sync state set contains the new master, the set suffices and the lease is not needed. If the
set contains only the old master, as after an unclean election, the lease is needed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.net.client import RemotingClient
from duemq.replication.controller.service import GroupService
from tests.simulation.group_rig import GROUP, KILLED, GroupRig, Member, group_rig
from tests.simulation.triggered_faults import SECOND
from tests.support.send_path import send_request

pytestmark = KILLED
SEED = 1
STEP_US = 20 * SECOND
SEND_S_MAX = 3.0
PAUSE_S = 0.05
AFTERWARDS_US = 10 * SECOND


class Sender:
    """Client that sends to one member.

    Attributes:
        accepted: Number of acknowledged messages.
        ends: Whether the client stops.
    """

    def __init__(self, rig: GroupRig, member: Member) -> None:
        self._address, self.accepted, self.ends = member.address, 0, False
        rig.new_client("client").start(self._run())

    async def _run(self) -> None:
        async with RemotingClient(self._address) as client:
            while not self.ends:
                request = send_request(
                    code=10, body=b"x", topic="T", queueId="0", properties="UNIQ_KEY\x01u\x02"
                )
                try:
                    response = await client.call(request, timeout_s=SEND_S_MAX)
                except OSError:
                    continue
                self.accepted += not response.code
                await asyncio.sleep(PAUSE_S)


def block(rig: GroupRig, one: str, other: str) -> None:
    """Block both directions between two machines."""
    rig.network.blocked |= {(one, other), (other, one)}


def accepted_by_former_master(home: Path, *, is_alone: bool) -> tuple[int, int]:
    """Cut the master off from the controller, but not from clients, until another master serves.

    Args:
        is_alone: Whether the master is cut off from the replicas first, and alone in its set.

    Returns:
        Numbers of acknowledged messages before and after the change of the master.
    """
    with group_rig(home, SEED, {"flushDiskType": "SYNC_FLUSH"}) as rig:
        model = rig.controller.model
        model.unclean = is_alone
        rig.controller.start()
        for member in rig.members:
            member.start()
        assert rig.run(STEP_US, lambda: GROUP in model.groups)
        group = model.groups[GROUP]
        assert rig.run(STEP_US, lambda: rig.master() and len(group.in_sync) == 3)
        former = rig.master()
        assert former is not None
        sender = Sender(rig, former)
        assert rig.run(STEP_US, lambda: sender.accepted > 5)
        if is_alone:
            for other in rig.members:
                block(rig, former.host.name, other.host.name)
            assert rig.run(STEP_US, lambda: len(group.in_sync) == 1)
            count = sender.accepted
            assert rig.run(STEP_US, lambda: sender.accepted > count + 5)
        block(rig, former.host.name, "controller")
        assert rig.run(STEP_US, lambda: rig.master() not in (None, former))
        before = sender.accepted
        rig.run(AFTERWARDS_US)
        sender.ends = True
        rig.network.blocked.clear()
        rig.stop_members()
        return before, sender.accepted - before


@pytest.mark.parametrize("is_alone", [False, True], ids=["set", "alone"])
def test_a_former_master_acknowledges_nothing(is_alone: bool, tmp_path: Path) -> None:
    before, afterwards = accepted_by_former_master(tmp_path, is_alone=is_alone)
    assert before > 5
    assert afterwards == 0


@pytest.mark.extended
@pytest.mark.parametrize(("is_alone", "is_fenced"), [(False, True), (True, False)])
def test_without_the_lease_the_set_fences(
    is_alone: bool, is_fenced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupService, "holds", lambda self, epoch: True)
    _, afterwards = accepted_by_former_master(tmp_path, is_alone=is_alone)
    assert (afterwards == 0) == is_fenced


def test_a_dead_connection_to_the_controller_is_replaced(tmp_path: Path) -> None:
    """Neither side is notified of the loss; new connections work all the time."""
    with group_rig(tmp_path, SEED, {"flushDiskType": "SYNC_FLUSH"}) as rig:
        model = rig.controller.model
        rig.controller.start()
        for member in rig.members:
            member.start()
        assert rig.run(STEP_US, lambda: GROUP in model.groups)
        group = model.groups[GROUP]
        assert rig.run(STEP_US, lambda: rig.master() and len(group.in_sync) == 3)
        for member in rig.members:
            rig.network.drop(member.host, rig.controller.host)
        rig.run(STEP_US)
        master = rig.master()
        assert master is not None
        sender = Sender(rig, master)
        assert rig.run(STEP_US, lambda: sender.accepted > 5)
        sender.ends = True
        rig.stop_members()
