from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from duemq.configuration.config import BrokerConfig
from duemq.net.dispatcher import Dispatcher
from duemq.registry.client_requests import PIECE_MAX, SCAN_MS, ClientProcessor
from duemq.registry.clients import CHANNEL_EXPIRES_MS, ClientTable, GroupChange
from duemq.registry.groups import GroupConfig
from duemq.registry.heartbeats import Heartbeat
from duemq_common.clock import FakeClock
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response
from tests.support.fakes import FakeGroups, FakePeer, FakeTopics, settle


class Rig:
    def __init__(self, *groups: GroupConfig) -> None:
        self.clock, self.clients = FakeClock(), ClientTable()
        self.topics, self.groups = FakeTopics(), FakeGroups(*groups)
        self.processor = ClientProcessor(
            self.clients, self.topics, self.groups, self.clock, BrokerConfig
        )
        self.handlers = self.processor.handlers()

    async def call(
        self, code: int, peer: FakePeer, body: bytes = b"", **fields: str
    ) -> Response | None:
        response = self.handlers[code](Request(code, fields, body, peer=peer))
        return await response if isinstance(response, Awaitable) else response

    async def beat(
        self,
        peer: FakePeer,
        client: str = "c",
        group: str = "G",
        model: str = "CLUSTERING",
        **more: int | list[dict[str, str | list[dict[str, str]]]],
    ) -> Response:
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": model,
            "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}],
        }
        reported = {
            "clientID": client,
            "producerDataSet": [{"groupName": "P"}],
            "consumerDataSet": [consumer] if group else [],
        }
        return await self.call(34, peer, json.dumps(reported | more).encode())  # type: ignore[return-value]

    async def members(self, peer: FakePeer) -> Response:
        return await self.call(38, peer, consumerGroup="G")  # type: ignore[return-value]


def test_a_heartbeat_makes_the_retry_topic_and_the_member_visible(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        response = await rig.beat(peer)
        assert (response.code, response.body) == (0, b"")
        assert response.fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        assert rig.topics.table["%RETRY%G"].read_queues == 1
        response = await rig.members(peer)
        assert json.loads(response.body) == {"consumerIdList": ["c"]}

    run(scene())


def test_everybody_of_a_changed_group_gets_40(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, a, b = Rig(), FakePeer("a"), FakePeer("b")
        await rig.beat(a, "a")
        await rig.beat(b, "b")
        await rig.beat(b, "b")
        assert (a.codes(), b.codes()) == ([40, 40], [40])
        assert a.sent[0].fields == {"consumerGroup": "G"}
        await rig.call(35, a, clientID="a", consumerGroup="G", producerGroup="")
        assert (a.codes(), b.codes()) == ([40, 40], [40, 40])
        await rig.beat(a, "a")
        a.close()
        assert b.codes() == [40] * 4
        assert (await rig.members(b)).code == 0

    run(scene())


@pytest.mark.parametrize(
    ("group", "model"),
    [
        (GroupConfig(name="G", notify_changed=False), "CLUSTERING"),
        (GroupConfig(name="G"), "BROADCASTING"),
    ],
)
def test_who_is_not_told(run: Callable[..., Any], group: GroupConfig, model: str) -> None:
    async def scene() -> None:
        rig, peer = Rig(group), FakePeer()
        await rig.beat(peer, model=model)
        assert peer.codes() == []

    run(scene())


def test_a_fingerprint_learns_whether_the_group_changed(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        responses = [await rig.beat(peer, heartbeatFingerprint=5) for _ in range(2)]
        assert [a.fields["IS_SUB_CHANGE"] for a in responses] == ["true", "false"]

    run(scene())


def test_a_group_without_members_is_answered_with_1(run: Callable[..., Any]) -> None:
    assert run(Rig().members(FakePeer())).code == 1


def test_a_silent_client_is_forgotten(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        async with rig.processor.running():
            await rig.beat(peer)
            for _ in range(CHANNEL_EXPIRES_MS // SCAN_MS + 2):
                await settle()
                rig.clock.advance(SCAN_MS)
            await settle()
        assert rig.clients.members("G") == []

    run(scene())


def test_a_client_is_not_silent_while_the_broker_is_stalled(run: Callable[..., Any]) -> None:
    """After a suspended machine has resumed, all clients were removed before their heartbeats."""

    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        async with rig.processor.running():
            await rig.beat(peer)
            await settle()
            rig.clock.advance(10 * CHANNEL_EXPIRES_MS)
            await settle()
            assert rig.clients.members("G") == ["c"]
            for _ in range(CHANNEL_EXPIRES_MS // SCAN_MS + 2):
                await settle()
                rig.clock.advance(SCAN_MS)
            await settle()
            assert rig.clients.members("G") == []

    run(scene())


def test_a_closed_connection_joins_nothing(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        peer.closed = True
        with pytest.raises(RequestError):
            await rig.beat(peer)
        assert rig.clients.members("G") == []

    run(scene())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"topic": "T", "subString": "a", "expressionType": "TAG"}, 0),
        ({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}, 0),
        ({"topic": "T", "subString": "a >", "expressionType": "SQL92"}, 23),
        ({"topic": "T", "expressionType": "SQL92"}, 23),
        ({"topic": "T", "subString": "a > 1", "expressionType": "SQL99"}, 23),
        ({"topic": "T", "subString": "||"}, 23),
        ([], 0),
        ([1], 1),
    ],
)
def test_configuration_check(
    run: Callable[..., Any], data: dict[str, str] | list[int], code: int
) -> None:
    body = json.dumps({"clientId": "c", "group": "G", "subscriptionData": data}).encode()
    try:
        found = run(Rig().call(46, FakePeer(), body)).code
    except RequestError as refusal:
        found = refusal.code
    assert found == code


def many(groups: int, subscriptions: int = 1) -> list[dict[str, str | list[dict[str, str]]]]:
    wanted = [{"topic": f"t{n}", "subString": "*"} for n in range(subscriptions)]
    return [{"groupName": f"g{n}", "subscriptionDataSet": wanted} for n in range(groups)]


@pytest.mark.finding("E8")
def test_a_large_heartbeat_is_taken_in_piece_by_piece(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tasks have their turn between the pieces, and every piece is bounded."""
    sizes, turns = [], []
    take_in = ClientTable.heartbeat

    def counted(
        self: ClientTable, reported: Heartbeat, peer: FakePeer, **more: str | int
    ) -> list[GroupChange]:
        sizes.append(sum(1 + len(entry.subscriptions) for entry in reported.consumers))
        turns.append(next(others))
        return take_in(self, reported, peer, **more)

    others = iter(range(1_000_000))

    async def other() -> None:
        while True:
            next(others)
            await asyncio.sleep(0)

    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        task = asyncio.create_task(other())
        response = await rig.beat(peer, consumerDataSet=many(1_500, 3))
        task.cancel()
        assert response.code == 0
        assert sum(sizes) == 1_500 * 4
        assert max(sizes) <= PIECE_MAX + 3
        assert len(sizes) > 10
        assert all(after - before > 1 for before, after in pairwise(turns))
        assert len(list(rig.clients.consumer_groups())) == 1_500
        assert len(rig.topics.table) == 1_500
        assert rig.clients.producer("P") is not None

    monkeypatch.setattr(ClientTable, "heartbeat", counted)
    run(scene())


@pytest.mark.finding("E8")
def test_a_peer_that_leaves_between_two_pieces_leaves_nothing(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_in = ClientTable.heartbeat

    def closing(
        self: ClientTable, reported: Heartbeat, peer: FakePeer, **more: str | int
    ) -> list[GroupChange]:
        found = take_in(self, reported, peer, **more)
        peer.close()
        return found

    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        with pytest.raises(RequestError):
            await rig.beat(peer, consumerDataSet=many(1_500))
        assert not list(rig.clients.consumer_groups())

    monkeypatch.setattr(ClientTable, "heartbeat", closing)
    run(scene())


@pytest.mark.finding("E8")
def test_a_heartbeat_beyond_the_limit_creates_nothing(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, peer = Rig(), FakePeer()
        with pytest.raises(RequestError, match="clientGroupsMax=4096"):
            await rig.beat(peer, consumerDataSet=many(4_097))
        assert not rig.topics.table

    run(scene())


@pytest.mark.finding("3S2")
def test_a_long_filter_is_checked_while_the_loop_runs(run: Callable[..., Any]) -> None:
    async def scene() -> None:
        rig, turns = Rig(), 0
        texts = {"a" + " or a" * 2_000: 0, "a" + " or a" * 2_000 + " or": 23}
        for text, code in texts.items():
            data = {"topic": "T", "subString": text, "expressionType": "SQL92"}
            body = json.dumps({"subscriptionData": data}).encode()
            check = asyncio.create_task(rig.call(46, FakePeer(), body))
            await asyncio.sleep(0)
            turns += 0 if check.done() else 1
            assert (response := await check) is not None
            assert response.code == code
        assert turns == len(texts)

    run(scene())


@pytest.mark.finding("3S2")
def test_the_body_of_a_check_is_bounded(run: Callable[..., Any]) -> None:
    with pytest.raises(RequestError, match="the limit is 262144"):
        run(Rig().call(46, FakePeer(), b" " * 300_000))


class NoRights:
    """Access of accounts without rights."""

    version = 0

    def may_publish(self, account: str, address: str) -> bool:
        return False


@pytest.mark.finding("3S3")
def test_an_account_that_may_not_send_registers_no_producer_groups(
    run: Callable[..., Any],
) -> None:
    async def scene() -> None:
        rig = Rig(GroupConfig(name="G"))
        rig.processor = ClientProcessor(
            rig.clients,
            rig.topics,
            rig.groups,
            rig.clock,
            BrokerConfig,
            NoRights(),
        )
        rig.handlers = rig.processor.handlers()
        await rig.beat(FakePeer())
        assert (list(rig.clients.producer_groups()), rig.clients.members("G")) == ([], ["c"])

    run(scene())


@pytest.mark.parametrize("code", [35, 38])
def test_members_need_no_task(code: int) -> None:
    assert Dispatcher(Rig().handlers).responds_at_once(code)


@pytest.mark.parametrize(("access_key", "account"), [("alice", "alice"), ("x" * 256, "")])
def test_a_registered_client_keeps_only_what_can_be_an_account(
    run: Callable[..., Any], access_key: str, account: str
) -> None:
    async def scene() -> None:
        rig = Rig()
        body = b'{"clientID":"c","producerDataSet":[{"groupName":"P"}]}'
        await rig.call(34, FakePeer(), body, AccessKey=access_key)
        channel = rig.clients.producer("P")
        assert channel is not None
        assert channel.account == account

    run(scene())
