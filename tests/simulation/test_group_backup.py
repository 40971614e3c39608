"""An old copy of a member's disk is restored and starts alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulation.group_rig import GROUP, KILLED, group_rig
from tests.simulation.test_group_fencing import SEED, STEP_US, Sender
from tests.simulation.triggered_faults import SECOND

pytestmark = KILLED
ALONE_US = 60 * SECOND


@pytest.mark.extended
@pytest.mark.finding("3D8")
def test_an_old_copy_is_not_elected_and_copies_the_log(tmp_path: Path) -> None:
    (tmp_path / "rig").mkdir()
    with group_rig(tmp_path / "rig", SEED, {"flushDiskType": "SYNC_FLUSH"}) as rig:
        rig.controller.start()
        for member in rig.members:
            member.start()
        model = rig.controller.model
        assert rig.run(STEP_US, lambda: GROUP in model.groups)
        group = model.groups[GROUP]
        assert rig.run(STEP_US, lambda: rig.master() and len(group.in_sync) == 3)
        former = rig.master()
        assert former is not None
        sender = Sender(rig, former)
        assert rig.run(STEP_US, lambda: sender.accepted > 5)
        old = shutil.copytree(former.root, tmp_path / "backup")
        count = sender.accepted
        assert rig.run(STEP_US, lambda: sender.accepted > count + 20)
        sender.ends = True
        rig.run(3 * SECOND)
        rig.stop_members()
        shutil.rmtree(former.root)
        shutil.move(old, former.root)
        former.start()
        assert not rig.run(ALONE_US, rig.master)
        for member in rig.members:
            if member is not former:
                member.start()
        assert rig.run(STEP_US, rig.master)
        assert rig.master() is not former
        assert rig.run(STEP_US, lambda: len(group.in_sync) == 3)
        rig.stop_members()
