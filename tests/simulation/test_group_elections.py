"""A simulated member whose connection to the controller fails again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq.net.codes import RequestCode
from duemq_common.request import Request, Response
from tests.simulation.group_world import GROUP, KILLED, group_world
from tests.simulation.test_group_fencing import SEED, STEP_US
from tests.simulation.triggered_faults import SECOND

pytestmark = KILLED
RESETS, RESET_US = 15, 2 * SECOND
ELECTIONS_MAX = 10
PAUSE_US_MAX, STABLE_US, SHORT_US = 9 * SECOND, 12 * SECOND, 3 * SECOND


@pytest.mark.finding("3D6")
def test_elections_that_repeat_back_off(tmp_path: Path) -> None:
    """Each reset ends the term of the only member; the next term ends before it is stable."""
    with group_world(tmp_path, SEED, {"flushDiskType": "SYNC_FLUSH"}) as world:
        model, member = world.controller.model, world.members[0]
        respond, requested = model.response, [0]

        def count(request: Request, channel: object) -> Response:
            requested[0] += request.code == RequestCode.CONTROLLER_ELECT_MASTER
            return respond(request, channel)

        model.response = count
        world.controller.start()
        member.start()
        assert world.run(STEP_US, lambda: GROUP in model.groups and world.master())
        for _ in range(RESETS):
            world.network.reset(member.host, world.controller.host)
            world.run(RESET_US)
        assert 4 < requested[0] <= ELECTIONS_MAX
        assert world.run(PAUSE_US_MAX, world.master)
        world.run(STABLE_US)
        for _ in range(2):  # the pause is short again, also after the second election
            requested[0] = 0
            world.network.reset(member.host, world.controller.host)
            assert world.run(SHORT_US, lambda: requested[0])
            assert world.run(SHORT_US, world.master)
        world.stop_members()
