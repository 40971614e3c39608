"""A simulated member whose connection to the controller fails again and again."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.simulation.group_rig import GROUP, KILLED, group_rig
from tests.simulation.test_group_fencing import SEED, STEP_US
from tests.simulation.triggered_faults import SECOND

pytestmark = KILLED
RESETS, RESET_US = 15, 2 * SECOND
ELECTIONS_MAX = 10
PAUSE_US_MAX, STABLE_US, SHORT_US = 9 * SECOND, 12 * SECOND, 3 * SECOND


@pytest.mark.finding("3D6")
def test_elections_that_repeat_back_off(tmp_path: Path) -> None:
    """Each reset ends the term of the only member; the next term ends before it is stable."""
    with group_rig(tmp_path, SEED, {"flushDiskType": "SYNC_FLUSH"}) as rig:
        model, member = rig.controller.model, rig.members[0]
        respond, requested = model.response, [0]

        def count(request: Request, channel: object) -> Response:
            requested[0] += request.code == RequestCode.CONTROLLER_ELECT_MASTER
            return respond(request, channel)

        model.response = count
        rig.controller.start()
        member.start()
        assert rig.run(STEP_US, lambda: GROUP in model.groups and rig.master())
        for _ in range(RESETS):
            rig.network.reset(member.host, rig.controller.host)
            rig.run(RESET_US)
        assert 4 < requested[0] <= ELECTIONS_MAX
        assert rig.run(PAUSE_US_MAX, rig.master)
        rig.run(STABLE_US)
        for _ in range(2):  # the pause is short again, also after the second election
            requested[0] = 0
            rig.network.reset(member.host, rig.controller.host)
            assert rig.run(SHORT_US, lambda: requested[0])
            assert rig.run(SHORT_US, rig.master)
        rig.stop_members()
