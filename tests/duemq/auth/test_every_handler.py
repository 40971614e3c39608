"""Every request code and every v5 method, by an account without rights: no state changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.send.ingest import SEND_CODES
from duemq.v5 import acknowledgements
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.renewals import Renewals
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.free_ports import free_ports
from tests.support.running_broker import BrokerClient, connected, small
from tests.support.v5_client import V5Caller, message, sending, signed, typed_topic, v5_caller

STRANGER = Credentials("stranger", "stranger-secret")
GROUP, FRESH = "targets", "fresh-group"
QUEUE = {"topic": "orders", "brokerName": "test", "queueId": 0}
FIELDS: dict[str, Any] = {
    "a": GROUP,
    "b": "orders",
    "c": "TBW102",
    "d": 4,
    "e": 0,
    "f": 0,
    "g": 1,
    "h": 0,
    "i": "",
    "j": 0,
    "k": "false",
    "l": 0,
    "m": "false",
    **dict.fromkeys(("topic", "originTopic", "lmqTopic", "retryTopic"), "orders"),
    **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "destGroup"), GROUP),
    "producerGroup": "p",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1,
    "flag": 0,
    "properties": "",
    "reconsumeTimes": 0,
    "unitMode": "false",
    "queueOffset": 0,
    "maxMsgNums": 1,
    "commitOffset": 1,
    "subVersion": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "offset": 0,
    "delayLevel": 1,
    "pollTime": 0,
    "invisibleTime": 60_000,
    "bornTime": 0,
    "initMode": 0,
    "order": "false",
    "timestamp": 0,
    "isForce": "true",
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "perm": 6,
    "topicSysFlag": 0,
    "topicFilterType": "SINGLE_TAG",
    "commitLogOffset": 0,
    "tranStateTableOffset": 0,
    "commitOrRollback": 8,
    "fromTransactionCheck": "false",
    "msgId": "0" * 32,
    "key": "k",
    "username": "other",
    "subject": "User:other",
    "clientID": "c",
    "clientId": "c",
    "brokerName": "test",
    "clusterName": "DefaultCluster",
    "namespace": "n",
    "value": "v",
    "recallHandle": "x",
    "maxNum": 1,
    "beginTimestamp": 0,
    "endTimestamp": 1,
    "deliverOffset": 0,
}
BODY: dict[str, Any] = {
    "consumerGroup": GROUP,
    "topic": "orders",
    "clientId": "c",
    "clientID": "c",
    "mqSet": [QUEUE],
    "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [{"topic": "orders"}]}],
    "groupName": FRESH,
    "mode": "POP",
    "popShareQueueNum": 1,
    "ids": ["x"],
    "username": "other",
    "password": "secret",
    "userType": "Normal",
}
CHANGED_BY_ROOT = (10, 310, 17, 34, 41, 200, 401, 3_001)
"""Codes with which the same request of an administrator changes the state."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A broker with a message in flight, whose invisible time is renewed automatically."""

    broker: Broker
    renewals: Renewals
    root: BrokerClient
    stranger: BrokerClient
    root_v5: V5Caller
    stranger_v5: V5Caller
    handle: str

    def state(self) -> dict[str, object]:
        """Return all state that requests can change."""
        parts, access = self.broker.parts, self.broker.access
        assert access is not None
        assert access.accounts is not None
        consumers = {name: repr(group) for name, group in vars(parts.clients)["_consumers"].items()}
        found = {
            "log": parts.store.max_offset,
            "topics": parts.topics.to_json(),
            "groups": parts.groups.to_json(),
            "offsets": parts.offsets.to_json(),
            "consumers": consumers,
            "producers": sorted(vars(parts.clients)["_producers"]),
            "locks": vars(parts.locks),
            "modes": vars(parts.modes)["_table"],
            "polls": len(parts.long_polls),
            "renewals": sorted(self.renewals.table),
            "accounts": access.accounts.version,
            "config": self.broker.config,
        }
        return {name: repr(value) for name, value in found.items()}


@asynccontextmanager
async def rig_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    made: list[Renewals] = []

    def renewals(*arguments: Any) -> Renewals:
        made.append(Renewals(*arguments))
        return made[-1]

    monkeypatch.setattr(acknowledgements, "Renewals", renewals)
    keys = small(root, grpcServerPort=str(free_ports(1)[0]), timerWheelEnable="true", **KEYS)
    async with Broker(keys, clock=FakeClock()) as broker:  # nothing is renewed or checked meanwhile
        await prepare_all(broker.address, ROOT, user_steps(STRANGER, {"Topic:mine": ["All"]}))
        await typed_topic(broker, "orders", "NORMAL")
        async with (
            connected(broker.address, ROOT) as root_client,
            connected(broker.address, STRANGER) as stranger,
            v5_caller(broker.grpc_port, signed(ROOT.access_key, ROOT.secret, "push@1")) as owner,
            v5_caller(broker.grpc_port, signed(STRANGER.access_key, STRANGER.secret)) as other,
        ):
            sent = await owner.call(sending(message("orders")))
            assert sent.status.code == v2.OK, sent
            settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
            settings.subscription.group.name = GROUP
            settings.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
            stream = owner.telemetry()
            await owner.settings(stream, settings)
            _, [received] = await owner.receive("orders", GROUP, auto_renew=True)
            handle = received.system_properties.receipt_handle
            yield Rig(broker, made[0], root_client, stranger, owner, other, handle)
            stream.cancel()


def fields_of(rig: Rig) -> dict[str, Any]:
    return FIELDS | {"extraInfo": rig.handle.rpartition(" ")[0]}


def body_of(code: int) -> bytes:
    group = {"groupName": FRESH} if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP else {}
    return json.dumps(group or BODY).encode()


def difference(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """Return the changed values of a state, before and after."""
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


@pytest.mark.finding("3S4")
def test_no_request_code_changes_the_state_for_an_account_without_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> tuple[dict[int, object], set[int]]:
        changed: dict[int, object] = {}
        changed_by_root = set()
        async with rig_of(tmp_path, monkeypatch) as rig:
            codes = sorted({*map(int, rig.broker.parts.dispatcher), *map(int, SEND_CODES)})
            for code in codes:
                before = rig.state()
                for body in (b"", body_of(code)):
                    await rig.stranger.call(code, fields_of(rig), body)
                if found := difference(before, rig.state()):
                    changed[code] = found
            for code in CHANGED_BY_ROOT:
                before = rig.state()
                await rig.root.call(code, fields_of(rig), body_of(code))
                if difference(before, rig.state()):
                    changed_by_root.add(code)
        return changed, changed_by_root

    changed, changed_by_root = asyncio.run(main())
    assert changed == {}
    assert changed_by_root == set(CHANGED_BY_ROOT)


def calls(rig: Rig) -> dict[str, Any]:
    target = {"topic": v2.Resource(name="orders"), "group": v2.Resource(name=GROUP)}
    ack = api.AckMessageRequest(**target)
    ack.entries.add(message_id="m", receipt_handle=rig.handle)
    two = api.AckMessageRequest(**target)
    for _ in range(2):
        two.entries.add(message_id="m", receipt_handle=rig.handle)
    change = api.ChangeInvisibleDurationRequest(**target, receipt_handle=rig.handle)
    change.invisible_duration.FromSeconds(30)
    batch = api.SendMessageRequest(messages=[message("orders"), message("orders")])
    topic = v2.Resource(name="orders")
    return {
        "QueryRoute": api.QueryRouteRequest(topic=topic),
        "QueryAssignment": api.QueryAssignmentRequest(topic=topic, group=v2.Resource(name=FRESH)),
        "Heartbeat": api.HeartbeatRequest(group=v2.Resource(name=FRESH)),
        "SendMessage": sending(message("orders")),
        "SendMessage, two": batch,
        "RecallMessage": api.RecallMessageRequest(topic=topic, recall_handle="x"),
        "AckMessage": ack,
        "AckMessage, two": two,
        "ChangeInvisibleDuration": change,
        "ForwardMessageToDeadLetterQueue": api.ForwardMessageToDeadLetterQueueRequest(
            **target, receipt_handle=rig.handle
        ),
        "EndTransaction": api.EndTransactionRequest(
            topic=topic, message_id="m", transaction_id="0-0", resolution=v2.COMMIT
        ),
        "NotifyClientTermination": api.NotifyClientTerminationRequest(
            group=v2.Resource(name=GROUP)
        ),
    }


UNSERVED = {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "SyncLiteSubscription"}


@pytest.mark.finding("3S4")
def test_no_v5_method_changes_the_state_for_an_account_without_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: dict[str, object] = {}
    codes: dict[str, set[int]] = {}

    async def main() -> list[int]:
        async with rig_of(tmp_path, monkeypatch) as rig:
            before = rig.state()
            assert len(rig.renewals.table) == 1
            for name, request in calls(rig).items():
                response = await rig.stranger_v5.call(request)
                entries = getattr(response, "entries", [])
                codes[name] = {each.status.code for each in entries} or {response.status.code}
                changed[name] = difference(before, rig.state())
            status, _ = await rig.stranger_v5.receive("orders", FRESH)
            codes["ReceiveMessage"] = {status.code}
            changed["ReceiveMessage"] = difference(before, rig.state())
            settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
            settings.subscription.group.name = FRESH
            settings.subscription.subscriptions.add(topic=v2.Resource(name="orders"))
            stream = rig.stranger_v5.telemetry()
            await stream.write(api.TelemetryCommand(settings=settings).SerializeToString())
            codes["Telemetry"] = {(await stream.read()).status.code}
            changed["Telemetry"] = difference(before, rig.state())
            acknowledged = await rig.root_v5.ack("orders", GROUP, rig.handle)
            return [*acknowledged, len(rig.renewals.table)]

    ended = asyncio.run(main())
    requests = [name for name in dir(api) if name.endswith("Request")]
    served = {name.removesuffix("Request") for name in requests} - UNSERVED | {"Telemetry"}
    assert {name.partition(",")[0] for name in changed} == served
    assert {name: each for name, each in changed.items() if each} == {}
    expected = {name: {v2.UNAUTHORIZED} for name in codes}
    for name in ("Heartbeat", "NotifyClientTermination"):  # without settings
        expected[name] = {v2.UNRECOGNIZED_CLIENT_TYPE}
    assert codes == expected
    assert ended == [v2.OK, 0]
