"""Records of another account, named by offset, by a retry topic, or in a body: none is reached."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delayed_delivery.pending import Verdict
from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.net.client import RemotingClient
from duemq.net.decisions import HitDecision, HitVerdicts, PendingHits
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.recall_handle import RecallHandle
from duemq_common.request import Request, Response
from message_store.log.properties import encode_properties
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.running_broker import BrokerClient, connected, running, small
from tests.support.wait_until import until

ALICE = Credentials("alice12", "alice-secret")
BOB = Credentials("bob12345", "bob-secret")
ADMINS = {"users": ROOT, "plain": Credentials("admin12", "admin-secret")}
PLAIN_ACL = """
accounts:
- {accessKey: admin12, secretKey: admin-secret, admin: true}
- {accessKey: alice12, secretKey: alice-secret, topicPerms: [mine=PUB|SUB, b_c=PUB|SUB],
  groupPerms: [ga=SUB, a=SUB]}
- {accessKey: bob12345, secretKey: bob-secret, topicPerms: [secret=PUB|SUB, c=PUB|SUB],
  groupPerms: [gb=SUB, a_b=SUB]}
"""
DENIED = {"users": ResponseCode.NO_PERMISSION, "plain": ResponseCode.SYSTEM_ERROR}
ALICES = ("Topic:mine", "Group:ga", "Topic:b_c", "Group:a")
BOBS = ("Topic:secret", "Group:gb", "Topic:c", "Group:a_b")
MESSAGE = b"SECRET-BODY"
HALF = {"TRAN_MSG": "true", "PGROUP": "pb", "UNIQ_KEY": "7F000001" + "2" * 24}
PENDING = {"DELAY": "17", "KEYS": "p1", "UNIQ_KEY": "7F000001" + "1" * 24}


@dataclass(frozen=True, slots=True)
class Rig:
    """A broker with two accounts; alice may use topic mine and group ga, bob secret and gb.

    Retries of POP of alice's group a from topic b_c, and of bob's group a_b from topic c, have one
    topic.

    Attributes:
        kind: Kind of accounts.
        stored, half, pending: Answers to bob's sends.
    """

    kind: str
    broker: Broker
    root: BrokerClient
    alice: BrokerClient
    bob: BrokerClient
    stored: Response
    half: Response
    pending: Response

    def assert_denied(self, response: Response, about: object = None) -> None:
        assert response.code == DENIED[self.kind], (about, response)
        text = "has no permission" if self.kind == "users" else "AclException"
        assert text in (response.remark or "")
        assert not response.body


def offset_of(response: Response) -> int:
    assert response.fields is not None
    return int(response.fields["msgId"][16:], 16)


def text_of(response: Response, name: str) -> str:
    assert response.fields is not None
    return response.fields[name]


def keys_of(kind: str, tmp_path: Path) -> dict[str, str]:
    if kind == "users":
        return dict(KEYS)
    path = tmp_path / "rmq" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text(PLAIN_ACL)
    return {"aclEnable": "true", "rocketmqHome": str(tmp_path / "rmq")}


@asynccontextmanager
async def rig_of(kind: str, tmp_path: Path, more: dict[str, str]) -> AsyncIterator[Rig]:
    keys = keys_of(kind, tmp_path) | more
    async with (
        running(small(tmp_path, **keys)) as (broker, _),
        connected(broker.address, ADMINS[kind]) as root,
        connected(broker.address, ALICE) as alice,
        connected(broker.address, BOB) as bob,
    ):
        if kind == "users":
            actions = ["Pub", "Sub", "Get", "Update"]
            for credentials, names in ((ALICE, ALICES), (BOB, BOBS)):
                permissions = dict.fromkeys(names, actions)
                await prepare_all(broker.address, ROOT, user_steps(credentials, permissions))
        stored = await bob.send("secret", MESSAGE, KEYS="k1")
        half = await send_half(bob)
        pending = await bob.send("secret", b"later", **PENDING)
        for remote, topic, group in ((alice, "mine", "ga"), (bob, "secret", "gb")):
            assert (await remote.send(topic, b"x")).code == 0
            assert (await remote.call(34, {}, heartbeat(group, topic))).code == 0
        yield Rig(kind, broker, root, alice, bob, stored, half, pending)


async def send_half(bob: BrokerClient) -> Response:
    fields = {
        "producerGroup": "pb",
        "topic": "secret",
        "defaultTopic": "TBW102",
        "sysFlag": 4,
        "defaultTopicQueueNums": 1,
        "queueId": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": encode_properties(HALF).decode(),
        "reconsumeTimes": 0,
        "unitMode": "false",
    }
    response = await bob.call(10, fields, b"HALF-SECRET")
    assert response.code == 0, response
    return response


def heartbeat(group: str, topic: str, *, client: str = "c", producer: str = "p") -> bytes:
    subscriptions = [{"topic": topic, "subString": "*"}]
    consumer = {"groupName": group, "subscriptionDataSet": subscriptions}
    beat = {"clientID": client, "consumerDataSet": [consumer]}
    return json.dumps(beat | {"producerDataSet": [{"groupName": producer}]}).encode()


def run(kind: str, tmp_path: Path, work: Callable[[Rig], Awaitable[None]], **more: str) -> None:
    async def main() -> None:
        async with rig_of(kind, tmp_path, more) as rig:
            await work(rig)

    asyncio.run(main())


@pytest.fixture(params=["users", "plain"])
def kind(request: pytest.FixtureRequest) -> str:
    """Accounts of ACL 2.0, then of ACL 1.0."""
    return str(request.param)


def pull(topic: str, group: str) -> dict[str, Any]:
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }


def send_to(topic: str, group: str) -> dict[str, str]:
    values = (group, topic, "TBW102", "4", "0", "0", "1", "0", "", "0", "false", "0", "false")
    return dict(zip("abcdefghijklm", values, strict=True))


def test_a_message_is_not_read_by_its_offset(kind: str, tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        offset = {"offset": offset_of(rig.stored)}
        for more in ({}, {"topic": "mine"}):
            rig.assert_denied(await rig.alice.call(33, offset | more))
        found = await rig.bob.call(33, offset)
        assert MESSAGE in bytes(found.body)

    run(kind, tmp_path, work)


def test_a_message_is_not_sent_back_to_another_group(kind: str, tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        fields = {"offset": offset_of(rig.stored), "delayLevel": 0, "originTopic": "mine"}
        rig.assert_denied(await rig.alice.call(36, fields | {"group": "ga"}))
        assert (await rig.bob.call(36, fields | {"group": "gb"})).code == 0

    run(kind, tmp_path, work)


@pytest.mark.parametrize("code", [11, 361])
def test_the_retries_of_another_group_are_not_pulled(kind: str, tmp_path: Path, code: int) -> None:
    async def work(rig: Rig) -> None:
        rig.assert_denied(await rig.alice.call(code, pull("%RETRY%gb", "ga")))
        own = await rig.alice.call(code, pull("%RETRY%ga", "ga"))
        assert own.code == ResponseCode.PULL_NOT_FOUND

    run(kind, tmp_path, work)


@pytest.mark.finding("3S6")
def test_the_retries_of_a_group_with_the_same_retry_topic_are_not_read(
    kind: str, tmp_path: Path
) -> None:
    async def work(rig: Rig) -> None:
        pop = {
            "consumerGroup": "a",
            "topic": "b_c",
            "queueId": -1,
            "maxMsgNums": 1,
            "initMode": 0,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "order": "false",
        }
        assert (await rig.alice.send("b_c", b"x")).code == 0
        assert (await rig.alice.call(34, {}, heartbeat("a", "b_c"))).code == 0
        assert (await rig.alice.call(200050, pop)).code == 0
        held = asyncio.create_task(rig.alice.call(200050, pop | {"pollTime": 10_000}))
        polls = rig.broker.parts.long_polls
        await asyncio.to_thread(until, lambda: len(polls), seconds=60, what="pop on hold")
        assert (await rig.bob.send("c", b"x")).code == 0
        assert (await rig.bob.call(34, {}, heartbeat("a_b", "c"))).code == 0
        for code in (200050, 200052, 200054):
            rig.assert_denied(await rig.alice.call(code, pop))
        assert (await rig.root.send("b_c", b"resumes the pop on hold")).code == 0
        rig.assert_denied(await held)

    run(kind, tmp_path, work)


@pytest.mark.parametrize("code", [310, 320])
def test_nothing_is_sent_to_the_retries_of_another_group(
    kind: str, tmp_path: Path, code: int
) -> None:
    async def work(rig: Rig) -> None:
        rig.assert_denied(await rig.alice.call(code, send_to("%RETRY%gb", "ga"), b"forged"))
        own = await rig.alice.call(310, send_to("%RETRY%ga", "ga"), b"own")
        assert own.code == 0

    run(kind, tmp_path, work)


def test_a_transaction_is_not_ended_by_another_account(kind: str, tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        end = {
            "producerGroup": "pb",
            "commitOrRollback": 12,
            "transactionId": "t",
            "msgId": "m",
            "tranStateTableOffset": text_of(rig.half, "queueOffset"),
            "commitLogOffset": offset_of(rig.half),
        }
        for more in ({}, {"topic": "mine"}):
            rig.assert_denied(await rig.alice.call(37, end | more))
        assert (await rig.bob.call(37, end)).code == 0

    run(kind, tmp_path, work)


def test_a_half_message_goes_only_to_producers_that_may_publish(kind: str, tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        requested: list[str] = []
        was_requested = asyncio.Event()
        transactions = rig.broker.parts.transactions
        assert transactions is not None

        async def connect(
            stack: AsyncExitStack, credentials: Credentials, group: str, topic: str
        ) -> RemotingClient:
            def check(request: Request) -> Response:
                requested.append(credentials.access_key)
                was_requested.set()
                return Response()

            handlers = {RequestCode.CHECK_TRANSACTION_STATE: check}
            address = rig.broker.address
            client = RemotingClient(address, handlers, sign=credentials.sign)
            await stack.enter_async_context(client)
            body = heartbeat(group, topic, producer="pb")
            response = await client.call(Request(34, {}, body, version=479), timeout_s=60)
            assert response.code == 0
            return client

        async with AsyncExitStack() as stack:
            client = await connect(stack, ALICE, "ga", "mine")
            await transactions.check()
            await client.call(Request(38, {"consumerGroup": "ga"}), timeout_s=60)
            assert not requested  # what was sent before this answer has arrived
            await connect(stack, BOB, "gb", "secret")
            await connect(stack, ALICE, "ga", "mine")  # the one that was heard of last
            await transactions.check()
            async with asyncio.timeout(60):
                await was_requested.wait()
            assert requested == [BOB.access_key]

    run(kind, tmp_path, work, transactionTimeOut="1")


@pytest.mark.parametrize("code", [307, 309])
def test_a_relayed_request_carries_no_credentials(kind: str, tmp_path: Path, code: int) -> None:
    async def work(rig: Rig) -> None:
        seen: list[dict[str, str]] = []

        async def relayed(request: Request) -> Response:
            seen.append(dict(request.fields))
            return Response(0, body=b"{}")

        address, handlers = rig.broker.address, {307: relayed, 309: relayed}
        async with RemotingClient(address, handlers, sign=ALICE.sign) as consumer:
            body = heartbeat("ga", "mine", client="listener")
            await consumer.call(Request(34, {}, body, version=479), timeout_s=60)
            target = {"consumerGroup": "ga", "clientId": "listener"}
            assert (await rig.root.call(code, target)).code == 0
            [fields] = seen
            assert fields.items() >= target.items()
            assert not fields.keys() & {"AccessKey", "Signature", "SecurityToken"}
            message = {"topic": "mine", "msgId": text_of(rig.stored, "msgId")}
            if code == 309:
                rig.assert_denied(await rig.alice.call(code, target | message))
                assert len(seen) == 1

    run(kind, tmp_path, work)


def handle_of(topic: str) -> str:
    return RecallHandle(topic, "test", "1", str(PENDING["UNIQ_KEY"])).encode()


SELECTIONS: list[dict[str, Any]] = [
    {"topic": "secret"},
    {"keys": ["p1"]},
    {"ids": [PENDING["UNIQ_KEY"]]},
    {"ids": [PENDING["UNIQ_KEY"]], "topic": "secret"},
    {"handles": [handle_of("secret")]},
    {"handles": [handle_of("mine"), handle_of("secret")]},
    {"handles": [handle_of("secret")], "topic": "mine"},
    {},
]


def test_decisions_need_the_topics_in_the_body(tmp_path: Path) -> None:
    requests = product([9_011, 9_012, 9_013], SELECTIONS, [{}, {"topic": "mine"}])

    async def work(rig: Rig) -> None:
        for code, selection, fields in requests:
            body = json.dumps(selection | {"dry_run": True}).encode()
            about = code, selection, fields
            rig.assert_denied(await rig.alice.call(code, fields, body), about)

    run("users", tmp_path, work)


def test_own_topics_do_not_reach_messages_of_others(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        names = [PENDING["UNIQ_KEY"], text_of(rig.pending, "msgId")]
        selections: list[dict[str, Any]] = [
            {"topic": "mine", "ids": names},
            {"topic": "mine", "keys": ["p1"]},
            {"handles": [handle_of("mine")]},
        ]
        for selection in selections:
            response = await rig.alice.call(9_011, {}, json.dumps(selection).encode())
            assert response.code == 0, response
            verdicts = {one["verdict"] for one in json.loads(bytes(response.body))["results"]}
            assert verdicts == {"unknown"}, selection
        body = json.dumps({"topic": "secret", "ids": names[:1], "dry_run": True}).encode()
        [result] = json.loads(bytes((await rig.bob.call(9_011, {}, body)).body))["results"]
        assert (result["verdict"], result["messages"]) == ("done", 1)

    run("users", tmp_path, work)


def test_pages_of_own_topics_do_not_reach_messages_of_others(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        decision = HitDecision(
            action="cancel", keys=[PENDING["UNIQ_KEY"].encode()], offsets=[offset_of(rig.pending)]
        )
        body = msgspec.msgpack.encode(decision)
        for fields in ({}, {"topic": "secret"}):
            for code in (9_018, 9_019):
                rig.assert_denied(await rig.alice.call(code, fields, body))
        page = await rig.alice.call(9_018, {"topic": "mine"}, b"")
        assert msgspec.msgpack.decode(bytes(page.body), type=PendingHits).keys == []
        verdicts = [
            msgspec.msgpack.decode(bytes(response.body), type=HitVerdicts).verdicts
            for response in (
                await rig.alice.call(9_019, {"topic": "mine"}, body),
                await rig.bob.call(9_019, {"topic": "secret"}, body),
            )
        ]
        assert verdicts == [bytes([Verdict.UNKNOWN]), bytes([Verdict.DONE])]

    run("users", tmp_path, work)


def test_a_long_poll_gets_no_message_after_its_permission_is_withdrawn(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        held = asyncio.create_task(rig.bob.pull("secret", 2, group="gb"))
        pulls = rig.broker.parts.long_polls
        await asyncio.to_thread(until, lambda: len(pulls) == 1, seconds=60, what="the pull is held")
        subject = {"subject": f"User:{BOB.access_key}", "resource": "Topic:secret"}
        assert (await rig.root.call(3008, subject)).code == 0
        assert (await rig.root.send("secret", b"after")).code == 0
        response = await held
        assert (response.code, response.body) == (ResponseCode.PULL_RETRY_IMMEDIATELY, b"")
        rig.assert_denied(await rig.bob.pull("secret", 2, group="gb"))

    run("users", tmp_path, work)


def test_accounts_of_plain_acl_do_not_reach_other_groups_and_topics(tmp_path: Path) -> None:
    async def work(rig: Rig) -> None:
        fields = {"topic": "secret", "b": "secret", "group": "gb", "consumerGroup": "gb"}
        fields |= {"destGroup": "gb", "srcGroup": "gb", "clientId": "c", "timestamp": "0"}
        lock = json.dumps({"consumerGroup": "gb", "clientId": "c", "mqSet": []}).encode()
        for code in (41, 42, 222, 309, 314, 324, 325, 9_001, 9_002):
            rig.assert_denied(await rig.alice.call(code, fields, lock), code)
        response = await rig.alice.call(77_001, fields, lock)  # not served, as no plugin has it
        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run("plain", tmp_path, work)


def test_accounts_of_plain_acl_change_no_name_server(tmp_path: Path) -> None:
    async def main() -> None:
        keys = keys_of("plain", tmp_path) | {"embeddedNamesrvEnable": "true"}
        async with (
            running(small(tmp_path, **keys, embeddedNamesrvPort="0")) as (broker, _),
            connected(broker.namesrv_address, ALICE) as alice,
        ):
            for code in (100, 102, 103, 104, 205, 216, 217, 327, 904):
                response = await alice.call(code, {"topic": "mine", "brokerName": "test"})
                assert f"Need admin permission for request code={code}" in (response.remark or "")

    asyncio.run(main())
