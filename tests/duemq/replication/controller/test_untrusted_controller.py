"""A member and a controller that answers nonsense, is forged or has lost its data."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from duemq.replication.controller.member_events import MemberState
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from tests.duemq.replication.controller.test_service import VIEW
from tests.support.fakes import settle
from tests.support.group_host import GROUP
from tests.support.group_rig import BEAT_MS, LIMIT_MS, Rig

NONSENSE = [
    Response(fields={"masterEpoch": "x"}),
    Response(fields={}, body=b"\xff"),
    Response(fields={"masterEpoch": "9", "masterBrokerId": "2"}, body=b"{}"),
    Response(1, "system error"),
    Response(
        fields={"masterEpoch": "0"}, body=b'{"syncStateSet":[],"syncStateSetEpoch":0}'
    ),  # an older epoch
    Response(
        fields={"masterEpoch": "1", "masterBrokerId": "2", "masterAddress": "evil:1"},
        body=b'{"syncStateSet":[2],"syncStateSetEpoch":9}',
    ),  # a second master of the epoch
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_ends_the_lease_and_changes_no_role(tmp_path: Path, nonsense: Response) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            rig.network.change = lambda request, response: (
                nonsense if request.code == VIEW else response
            )
            await rig.run(LIMIT_MS)
            assert not first.holds(1)
            assert first.view()["groupFailure"]
            assert (host.roles, host.required) == ([("master", 1)], [frozenset({1})])
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.holds(1))

    asyncio.run(main())


def test_nonsense_in_every_answer_keeps_a_new_member_out(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.network.change = lambda request, response: Response(fields={"nextBrokerId": "-1"})
        async with rig.member(1) as (first, host):
            await rig.run(5_000)
            assert not host.roles
            assert not list((tmp_path / "1").iterdir())
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.holds(1))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("refused", "code", "repeated"),
    [
        (  # requests for ids followed each other without a pause, and each wrote a file
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        ),
        (  # it accepted the registration, and the next view did not contain the member
            VIEW,
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            RequestCode.CONTROLLER_REGISTER_BROKER,
        ),
    ],
    ids=["taken id", "denied registration"],
)
def test_a_controller_that_refuses_is_asked_once_in_a_heartbeat(
    tmp_path: Path, refused: int, code: int, repeated: int
) -> None:
    async def main() -> None:
        rig, refusal = Rig(tmp_path), Response(code, "refused")
        rig.network.change = lambda request, response: (
            refusal if request.code == refused else response
        )
        async with rig.member(1) as (first, _):
            await rig.run(10 * BEAT_MS)
            assert 2 <= rig.network.requested.count(repeated) <= 11
            rig.network.change = lambda request, response: response
            await rig.until(lambda: first.holds(1))

    asyncio.run(main())


def test_notifications_change_nothing_and_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            before = len(rig.network.requested)
            for _ in range(20):
                for _ in range(10):
                    first.notify()
                    await settle()
                await rig.run(50)
            assert len(rig.network.requested) - before <= 2 * 20 + 10
            assert host.roles == [("master", 1)]
            assert first.holds(1)

    asyncio.run(main())


def test_a_forged_registration_of_its_id_ends_the_office(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            code = RequestCode.CONTROLLER_REGISTER_BROKER
            fields = GROUP.fields | {"brokerId": "1", "brokerAddress": "evil:1"}
            rig.controller.response(Request(code, fields), object())
            await rig.run(BEAT_MS + 100)
            assert not first.holds(1)
            assert first.member.state is MemberState.CONFLICT
            assert "evil:1" in str(first.view()["groupFailure"])
            assert host.roles == [("master", 1)]
            requested = len(rig.network.requested)
            await rig.run(BEAT_MS * 4)
            assert VIEW not in rig.network.requested[requested:]

    asyncio.run(main())


def test_a_controller_that_lost_its_data_makes_no_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        async with rig.member(1) as (first, host):
            await rig.until(lambda: first.holds(1))
            rig.controller.groups.clear()
            await rig.run(3 * BEAT_MS)
            assert not first.holds(1)
            assert "its data was lost" in str(first.view()["groupFailure"])
            assert sum("its data was lost" in line for line in caplog.messages) == 1
            assert host.roles == [("master", 1)]

    asyncio.run(main())
