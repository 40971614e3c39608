"""Migrations of a group: the refusal of a replica, and the wait over a failover."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from duemq.cli import migration_master, retrying
from duemq.cli.migration_master import MigrationMaster
from duemq.cli.options import Target
from duemq.cli.retrying import PAUSE_FIRST_S
from duemq.client import Admin, Client
from duemq.client.admin.migrations import IsReplica
from duemq.client.errors import Unreachable
from duemq_common.codes import RequestCode
from duemq_common.request import Response
from duemq_migration.requests import referral

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
MOVING, DONE = "draining", "done"
STEPS_MAX = 100


class FakeGroup(Client):
    """A group of brokers, and its name server; a fake client.

    Args:
        broker: The address that the user selected; empty: a name server is used.

    Attributes:
        answers: Address to the state of level 4 there, or to the response; other addresses do not
            respond.
        registered: Address of the master at the name server; None: the name server is down.
        requests: Addresses of the requests.
        history: Values of (answers, registered), one for each pause.
    """

    def __init__(self, responses: Mapping[str, str | Response], broker: str = "") -> None:
        super().__init__(A, broker=broker)
        self.responses = responses
        self.registered: str | None = A
        self.requests: list[str] = []
        self.history: list[tuple[Mapping[str, str | Response], str | None]] = []

    async def ask_namesrv(self, code: int, *arguments: Any, **more: Any) -> Response:
        if self.registered is None:
            raise Unreachable("the name server does not respond")
        table = {"broker-b": {"brokerAddrs": {"0": C}}} if self.requests else {}
        if self.registered:
            table["broker-a"] = {"brokerAddrs": {"0": self.registered}}
        return Response(body=json.dumps({"brokerAddrTable": table}).encode())

    async def call(self, address: str, code: int, *arguments: Any, **more: Any) -> Response:
        assert code == RequestCode.MIGRATE
        self.requests.append(address)
        found = self.responses.get(address)
        if found is None:
            raise ConnectionError(f"{address} does not respond")
        if isinstance(found, Response):
            return found
        levels = [{"level": 4, "state": found, "paused": False}]
        return Response(body=json.dumps({"levels": levels}).encode())

    async def sleep(self, seconds: float) -> None:
        assert seconds >= PAUSE_FIRST_S
        assert len(self.requests) < STEPS_MAX
        if self.history:
            self.responses, self.registered = self.history.pop(0)


def waited(group: FakeGroup, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wait until level 4 is settled; return the shown states."""
    for module in (migration_master, retrying):
        monkeypatch.setattr(module.asyncio, "sleep", group.sleep)
    shown: list[str] = []

    async def main() -> None:
        async with MigrationMaster(target_of(group)) as master:
            status = await master.wait_until_settled(
                [4], lambda status: shown.append(status["levels"][0]["state"])
            )
            assert status["levels"][0]["state"] == DONE

    asyncio.run(main())
    return shown


def target_of(group: FakeGroup) -> Target:
    class FakeTarget:
        def admin(self) -> Admin:
            return Admin(client=group)

    return cast(Target, FakeTarget())


@pytest.mark.parametrize(
    ("master", "remark"),
    [
        (B, f"this broker is a replica: its master runs the migrations, use --broker {B}"),
        ("", "this broker is a replica, and its master is not known now: see duemq replicas"),
    ],
)
def test_a_replica_refuses_a_command_and_names_its_master(master: str, remark: str) -> None:
    group = FakeGroup({A: referral(master)})

    async def main() -> None:
        async with MigrationMaster(target_of(group)) as broker:
            with pytest.raises(IsReplica) as refused:
                await broker.migrate("rollback", levels=[4])
            assert (refused.value.remark, refused.value.master) == (remark, master)

    asyncio.run(main())
    assert group.requests == [A]


@pytest.mark.parametrize("broker", ["", A], ids=["name server", "broker"])
def test_a_wait_follows_the_referral_of_a_former_master(
    broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = FakeGroup({A: MOVING, B: referral(A)}, broker)
    group.history = [
        ({}, ""),  # the master was killed
        ({A: referral("")}, ""),  # it is back, without a master
        ({A: referral(B), B: MOVING}, ""),
        ({A: referral(B), B: MOVING}, ""),
        ({A: referral(B), B: DONE}, ""),
    ]
    assert waited(group, monkeypatch) == [MOVING, MOVING, DONE]
    assert group.requests == [A, A, A, A, B, B]
    assert capsys.readouterr().err.splitlines() == [
        f"duemq: {A} does not respond; retrying until Ctrl-C",
        f"duemq: the master is {B} now",
        "duemq: the master responds again",
    ]


def test_a_wait_follows_the_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The former master is lost; brokers of other names are not used."""
    group = FakeGroup({A: MOVING})
    group.history = [
        ({}, A),  # the name server has not noticed it
        ({}, None),
        ({}, ""),
        ({B: MOVING}, B),
        ({B: MOVING}, B),
        ({B: DONE}, B),
    ]
    assert waited(group, monkeypatch) == [MOVING, MOVING, DONE]
    assert group.requests == [A, A, A, A, A, B, B]


def test_a_wait_returns_to_the_broker_that_was_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup({A: referral(B), B: MOVING}, A)
    group.history = [
        ({A: referral(B), B: MOVING}, None),
        ({A: MOVING}, None),  # the second master was killed, too
        ({A: DONE}, None),
    ]
    assert waited(group, monkeypatch) == [MOVING, DONE]
    assert group.requests == [A, B, B, A]


def test_a_malformed_address_of_a_master_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    group = FakeGroup({A: referral("no address")}, A)
    group.history = [({A: DONE}, None)]
    assert waited(group, monkeypatch) == [DONE]
    assert group.requests == [A, A]
