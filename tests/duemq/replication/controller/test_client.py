"""The client finds the controllers' leader, and reports a lost connection at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from duemq.replication.controller.client import ControllerClient
from duemq.replication.controller.requests import (
    ControllerFault,
    ControllerRefusal,
    next_id_request,
    replica_info_request,
)
from duemq_common.request import Request, Response
from tests.support.fake_controller import ControllerModel, FakeControllers
from tests.support.group_host import GROUP

ADDRESSES = ("c:1", "c:2", "c:3")
TIMEOUT_S = 5.0


class Rig:
    """Three controllers and a client of them; the second one leads."""

    def __init__(self, *configured: str) -> None:
        models = {address: ControllerModel(lambda: 0) for address in ADDRESSES}
        self.network = FakeControllers(models)
        self.lost = 0
        self.client = ControllerClient(
            configured or ADDRESSES, self.network.connect, self.count_lost
        )
        self.lead("c:2")

    def lead(self, *leaders: str, named: str = "") -> None:
        """Have controllers believe that they lead, and the others name one."""
        for address, model in self.network.models.items():
            model.is_leader = address in leaders
            model.leader_address = address if model.is_leader else named or leaders[-1]

    def count_lost(self) -> None:
        self.lost += 1

    async def call(self) -> Response:
        return await self.client.call(next_id_request(GROUP), timeout_s=TIMEOUT_S)

    async def find(self) -> str:
        return await self.client.find_leader(timeout_s=TIMEOUT_S)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.parametrize(
    "configured", [ADDRESSES, ("c:1",), ("c:2",)], ids=["all", "another", "the leader"]
)
def test_the_leader_is_asked(configured: tuple[str, ...]) -> None:
    async def main() -> None:
        rig = Rig(*configured)
        assert (await rig.call()).fields == {"nextBrokerId": "1"}
        assert rig.client.leader == "c:2"
        assert rig.lost == 0

    run(main())


def test_one_connection_is_used_for_all_requests_to_the_leader() -> None:
    async def main() -> None:
        rig = Rig("c:2")
        for _ in range(5):
            await rig.call()
        assert rig.network.opened == 1

    run(main())


def test_controllers_that_are_away_are_passed_over() -> None:
    async def main() -> None:
        rig = Rig()
        rig.network.away = {"c:1", "c:3"}
        assert await rig.find() == "c:2"
        rig.network.away = set(ADDRESSES)
        with pytest.raises(ControllerFault, match="no leader among the controllers c:1, c:2, c:3"):
            await rig.find()

    run(main())


def test_an_address_that_no_controller_answers_at_is_not_the_leader() -> None:
    async def main() -> None:
        rig = Rig()
        rig.lead("nowhere:9")
        rig.network.away = {"nowhere:9"}
        with pytest.raises(ControllerFault, match="no leader among the controllers"):
            await rig.find()

    run(main())


def test_of_two_that_claim_to_lead_the_one_that_the_others_name_is_asked() -> None:
    async def main() -> None:
        rig = Rig()
        assert await rig.find() == "c:2"
        rig.lead("c:2", "c:3")  # c:2 is cut off from its peers and does not know
        assert await rig.find() == "c:3"
        assert rig.lost == 1

    run(main())


def test_a_leader_that_leads_no_longer_is_asked_once() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.call()
        rig.lead("c:3")
        with pytest.raises(ControllerRefusal):
            await rig.call()
        assert rig.lost == 1
        assert (await rig.call()).code == 0
        assert rig.client.leader == "c:3"

    run(main())


def test_a_lost_connection_is_reported_before_anything_else_runs() -> None:
    async def main() -> None:
        rig = Rig("c:2")
        await rig.call()
        rig.network.cut_all()
        assert rig.lost == 1
        await rig.call()
        assert (rig.lost, rig.network.opened) == (1, 2)

    run(main())


def test_a_new_connection_reports_the_loss_of_the_last_one() -> None:
    """The transport may notice the end of a connection later than the next request does."""

    async def main() -> None:
        rig = Rig("c:2")
        await rig.call()
        [link] = rig.network.links
        assert link.peer is not None
        link.peer.closed = True  # and no callback yet
        await rig.call()
        assert rig.lost == 1

    run(main())


def test_a_lost_connection_to_another_controller_is_no_loss() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.call()
        await rig.client.send_heartbeat("c:1", replica_info_request(GROUP))
        for link in rig.network.links:
            if link.address != "c:2":
                rig.network.cut(link)
        assert rig.lost == 0

    run(main())


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (TimeoutError(), "does not respond to CONTROLLER_GET_NEXT_BROKER_ID"),
        (ConnectionResetError("reset"), "controller c:2: reset"),
    ],
)
def test_failures_of_the_network_are_faults(failure: OSError, text: str) -> None:
    def fail(request: Request, response: Response) -> Response:
        raise failure

    async def main() -> None:
        rig = Rig("c:2")
        await rig.call()
        rig.network.change = fail
        with pytest.raises(ControllerFault, match=text):
            await rig.call()

    run(main())


def test_dropping_the_leader_closes_its_connection() -> None:
    async def main() -> None:
        rig = Rig("c:2")
        await rig.call()
        [link] = rig.network.links
        await rig.client.drop_leader()
        assert (link.peer, rig.lost, rig.client.leader) == (None, 1, "")
        await rig.client.drop_leader()
        assert (await rig.call()).code == 0

    run(main())


def test_addresses_that_controllers_name_are_not_kept() -> None:
    """A controller that names another leader each time does not fill the memory."""

    async def main() -> None:
        rig = Rig("c:1")
        for number in range(1, 20):
            address = f"other:{number}"
            rig.network.models[address] = ControllerModel(lambda: 0)
            rig.lead(address)
            assert await rig.find() == address
        open_links = [link for link in rig.network.links if link.peer is not None]
        assert len(open_links) <= 3
        await rig.client.close()
        assert not [link for link in rig.network.links if link.peer is not None]

    run(main())


def test_a_closed_client_has_lost_its_leader() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.call()
        await rig.client.close()
        assert rig.lost == 1
        assert (await rig.call()).code == 0

    run(main())


def test_a_controller_that_accepts_and_never_answers_is_passed_over() -> None:
    async def main() -> None:
        rig = Rig()
        rig.network.silent = {"c:1"}
        for _ in range(5):
            assert await rig.find() == "c:2"
        rig.network.silent = {"c:2"}
        rig.lead("c:3")
        assert await rig.find() == "c:3"
        assert (await rig.call()).code == 0

    run(main())
