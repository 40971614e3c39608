"""An old copy of a member's disk is restored and starts alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulation.group_world import GROUP, KILLED, group_world
from tests.simulation.test_group_fencing import SEED, STEP_US, Sender
from tests.simulation.triggered_faults import SECOND

pytestmark = KILLED
ALONE_US = 60 * SECOND


@pytest.mark.finding("3D8")
def test_an_old_copy_is_not_elected_and_copies_the_log(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    with group_world(tmp_path / "world", SEED, {"flushDiskType": "SYNC_FLUSH"}) as world:
        world.controller.start()
        for member in world.members:
            member.start()
        model = world.controller.model
        assert world.run(STEP_US, lambda: GROUP in model.groups)
        group = model.groups[GROUP]
        assert world.run(STEP_US, lambda: world.master() and len(group.in_sync) == 3)
        former = world.master()
        assert former is not None
        sender = Sender(world, former)
        assert world.run(STEP_US, lambda: sender.accepted > 5)
        old = shutil.copytree(former.root, tmp_path / "backup")
        count = sender.accepted
        assert world.run(STEP_US, lambda: sender.accepted > count + 20)
        sender.ends = True
        world.run(3 * SECOND)
        world.stop_members()
        shutil.rmtree(former.root)
        shutil.move(old, former.root)
        former.start()
        assert not world.run(ALONE_US, world.master)
        for member in world.members:
            if member is not former:
                member.start()
        assert world.run(STEP_US, world.master)
        assert world.master() is not former
        assert world.run(STEP_US, lambda: len(group.in_sync) == 3)
        world.stop_members()
