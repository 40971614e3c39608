"""Permissions: topics without a readable or writable queue, and accounts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq_common.codes import RequestCode
from duemq_common.topics import PERM_READ, PERM_WRITE
from tests.duemq.v5.conftest import Run
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.free_ports import free_ports
from tests.support.running_broker import small
from tests.support.v5_client import (
    V5Caller,
    message,
    sending,
    signed,
    typed_topic,
    v5_caller,
)

BOTH = PERM_READ | PERM_WRITE


@pytest.mark.usefixtures("short_polls")
@pytest.mark.parametrize(
    ("name", "perm", "read_queues", "write_queues", "can_send", "can_receive"),
    [
        ("perm-r", PERM_READ, 1, 1, False, True),
        ("perm-w", PERM_WRITE, 1, 1, True, False),
        ("perm-none", 0, 1, 1, False, False),
        ("no-read-queue", BOTH, 0, 1, True, False),
        ("no-write-queue", BOTH, 1, 0, False, True),
    ],
)
def test_a_topic_without_a_queue_for_the_call_is_forbidden_as_by_apaches_proxy(
    run: Run,
    broker: Broker,
    name: str,
    perm: int,
    read_queues: int,
    write_queues: int,
    can_send: bool,
    can_receive: bool,
) -> None:
    topic = TopicConfig(name=name, read_queues=read_queues, write_queues=write_queues, perm=perm)

    async def main() -> None:
        await broker.parts.topics.ensure_all([topic])
        async with v5_caller(broker.grpc_port) as caller:
            sent = await caller.call(sending(message(name)))
            status, _ = await caller.receive(name, "g-perm", poll_ms=100)
            assigned = await caller.call(
                api.QueryAssignmentRequest(
                    topic=v2.Resource(name=name), group=v2.Resource(name="g-perm")
                )
            )
            assert sent.status.code == (v2.OK if can_send else v2.FORBIDDEN)
            assert status.code == (v2.MESSAGE_NOT_FOUND if can_receive else v2.FORBIDDEN)
            assert assigned.status.code == (v2.OK if can_receive else v2.FORBIDDEN)
            for refused in [each for each in (sent.status, status) if each.code == v2.FORBIDDEN]:
                assert f"topic {name} has perm {perm}" in refused.message

    run(main())


GROUP, FOREIGN = "g-accounts", "foreign"
SUB_BOTH = {"Topic:orders": ["Sub"], f"Group:{GROUP}": ["Sub"]}
USERS: dict[str, dict[str, list[str]]] = {
    "pub": {"Topic:orders": ["Pub"]},
    "sub": {"Topic:orders": ["Sub"]},
    "group": {f"Group:{GROUP}": ["Sub"]},
    "both": SUB_BOTH,
    "stranger": {"Topic:elsewhere": ["All"]},
}


def resource(name: str) -> v2.Resource:
    return v2.Resource(name=name)


def producer_of(topic: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.topics.append(resource(topic))
    return settings


def consumer_of(topic: str) -> v2.Settings:
    settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
    settings.subscription.group.name = GROUP
    settings.subscription.subscriptions.add(topic=resource(topic))
    return settings


async def telemetry(caller: V5Caller, settings: v2.Settings) -> list[int]:
    """Return the statuses of a stream to its end, of the first only if it succeeds."""
    stream, codes = caller.telemetry(), []
    await stream.write(api.TelemetryCommand(settings=settings).SerializeToString())
    while isinstance(response := await stream.read(), api.TelemetryCommand):
        codes.append(int(response.status.code))
        if response.status.code == v2.OK:
            break
    return codes


async def outcomes(caller: V5Caller, now_ms: int) -> dict[str, Any]:
    """Return the status code of each call."""
    handle = f"0 {now_ms} 60000 0 0 test 0 0 0"
    target = {"topic": resource("orders"), "group": resource(GROUP)}
    recall = api.RecallMessageRequest(topic=resource("orders"), recall_handle="x")
    forward = api.ForwardMessageToDeadLetterQueueRequest(**target, receipt_handle=handle)
    requests = {
        "route": api.QueryRouteRequest(topic=resource("orders")),
        "assignment": api.QueryAssignmentRequest(**target),
        "forward": forward,
        "recall in a topic of another type": recall,
        "delay in a topic of another type": sending(message("orders", deliver_ms=now_ms + 9_000)),
        "send to an unknown topic": sending(message("unknown")),
    }
    found: dict[str, Any] = {}
    for name, each in requests.items():
        found[name] = int((await caller.call(each)).status.code)
    found["receive, not readable"] = int((await caller.receive("closed", GROUP))[0].code)
    found["producer"] = await telemetry(caller, producer_of("orders"))
    found["consumer"] = await telemetry(caller, consumer_of("orders"))
    return found


def test_calls_are_permitted_and_refused_as_by_apaches_proxy(tmp_path: Path) -> None:
    async def main() -> dict[str, dict[str, Any]]:
        keys = {**KEYS, "grpcServerPort": str(free_ports(1)[0])}
        async with Broker(small(tmp_path, **keys)) as broker:
            await typed_topic(broker, "orders", "NORMAL")
            closed = TopicConfig(name="closed", read_queues=1, write_queues=1, perm=PERM_WRITE)
            await broker.parts.topics.ensure_all([closed])
            await broker.parts.groups.update([GroupConfig(name=GROUP)])
            for name, permissions in USERS.items():
                steps = user_steps(Credentials(name, f"secret-{name}"), permissions)
                await prepare_all(broker.address, ROOT, steps)
            found = {}
            for name in USERS:
                fields = signed(name, f"secret-{name}", f"{name}@1")
                async with v5_caller(broker.grpc_port, fields) as caller:
                    found[name] = await outcomes(caller, broker.clock.now_ms())
            return found

    found = asyncio.run(main())
    permitted = {
        (user, call): code
        for user, codes in found.items()
        for call, code in codes.items()
        if code not in (v2.UNAUTHORIZED, [v2.UNAUTHORIZED])
    }
    assert permitted == {
        ("pub", "route"): v2.OK,
        ("pub", "recall in a topic of another type"): v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ("pub", "delay in a topic of another type"): v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ("pub", "producer"): [v2.OK],
        ("sub", "route"): v2.OK,
        ("both", "route"): v2.OK,
        ("both", "assignment"): v2.OK,
        ("both", "forward"): v2.INTERNAL_SERVER_ERROR,  # there is no such message
        ("both", "consumer"): [v2.OK],
    }


def acl_of(user: str, entries: Sequence[Mapping[str, object]]) -> tuple[int, dict[str, str], bytes]:
    policies = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
    return RequestCode.AUTH_UPDATE_ACL, {"subject": f"User:{user}"}, policies


@pytest.mark.parametrize(("network", "code"), [("127.0.0.1", v2.OK), ("10.0.0.1", FOREIGN)])
def test_permissions_of_a_network_apply_to_every_call(
    tmp_path: Path, network: str, code: object
) -> None:
    credentials = Credentials("near", "secret-near")
    entries = [
        {"resource": name, "actions": ["Pub", "Sub"], "sourceIps": [network], "decision": "Allow"}
        for name in ("Topic:orders", f"Group:{GROUP}")
    ]

    async def main() -> list[int]:
        keys = {**KEYS, "grpcServerPort": str(free_ports(1)[0])}
        async with Broker(small(tmp_path, **keys)) as broker:
            await typed_topic(broker, "orders", "NORMAL")
            await broker.parts.groups.update([GroupConfig(name=GROUP)])
            steps = user_steps(credentials, {"Topic:other": ["Sub"]})
            await prepare_all(broker.address, ROOT, [*steps, acl_of("near", entries)])
            fields = signed(credentials.access_key, credentials.secret)
            async with v5_caller(broker.grpc_port, fields) as caller:
                target = {"topic": resource("orders"), "group": resource(GROUP)}
                found = [
                    await caller.call(api.QueryRouteRequest(topic=resource("orders"))),
                    await caller.call(api.QueryAssignmentRequest(**target)),
                    await caller.call(sending(message("orders"))),
                ]
                codes = [int(each.status.code) for each in found]
                for settings in (producer_of("orders"), consumer_of("orders")):
                    codes += await telemetry(caller, settings)
                end = api.NotifyClientTerminationRequest(group=resource(GROUP))
                return [*codes, int((await caller.call(end)).status.code)]

    codes = asyncio.run(main())
    if code == FOREIGN:
        assert codes == [v2.UNAUTHORIZED] * 5 + [v2.UNRECOGNIZED_CLIENT_TYPE]
    else:
        assert codes == [v2.OK] * 6
