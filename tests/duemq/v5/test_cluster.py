"""v5 clients of a cluster: three brokers, each with a port for v5 clients, and one name server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.broker.broker import Broker
from duemq.registry.topic_routes import ROUTE_MS, BrokerQueues, TopicRoutes
from duemq.v5 import cluster as forwarding
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq_common.recall_handle import RecallHandle
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.free_ports import free_ports
from tests.support.running_broker import registered, small
from tests.support.v5_client import V5Caller, message, sending, signed, typed_topic, v5_caller

pytestmark = pytest.mark.finding("3C6")
NAMES = ("broker-a", "broker-b", "broker-c")
QUEUES = 8  # of a topic on each broker, as in Apache's LocalGrpcIT
DELIVER_MS, DELAY_MS, WAIT_S = 4_000_000_000_000, 86_400_000, 60
SALE_PAIR, OTHER_PAIR = ("sale", "sale-secret"), ("other", "other-secret")
SALE, OTHER = Credentials(*SALE_PAIR), Credentials(*OTHER_PAIR)
INNER = {
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ROOT.access_key, "secretKey": ROOT.secret}
    )
}


@pytest.fixture(autouse=True)
def forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forwarded requests wait: the first recall of a broker loads kernels for seconds."""
    monkeypatch.setattr(forwarding, "FORWARD_S", WAIT_S)


@asynccontextmanager
async def cluster(
    home: Path, names: Sequence[str] = NAMES, **keys: str
) -> AsyncIterator[list[Broker]]:
    """Run brokers; the first one has the name server, at which the others register."""
    async with AsyncExitStack() as stack:
        brokers: list[Broker] = []
        for name in names:
            own = {"brokerName": name, "grpcServerPort": str(free_ports(1)[0])}
            if brokers:
                own["namesrvAddr"] = brokers[0].namesrv_address
            else:
                own["embeddedNamesrvEnable"] = "true"
                own["embeddedNamesrvPort"] = str(free_ports(1)[0])
            made = Broker(small(home / name, recallMessageEnable="true", **keys, **own))
            brokers.append(await stack.enter_async_context(made))
        for broker in brokers[1:]:
            await registered(broker)
        yield brokers


def endpoints(host: str, port: int) -> v2.Endpoints:
    return v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host=host, port=port)])


async def route(caller: V5Caller, topic: str, requested: v2.Endpoints | None = None) -> Any:
    request = api.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=requested)
    return await caller.call(request)


async def assignment(caller: V5Caller, topic: str, group: str) -> Any:
    request = api.QueryAssignmentRequest(
        topic=v2.Resource(name=topic), group=v2.Resource(name=group)
    )
    return await caller.call(request)


def ports_of(queues: Sequence[v2.MessageQueue]) -> list[tuple[str, int]]:
    """Return the broker and the port of each queue."""
    return [(each.broker.name, each.broker.endpoints.addresses[0].port) for each in queues]


def test_every_broker_returns_the_queues_of_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as brokers:
            for broker in brokers:
                await typed_topic(broker, "T", "NORMAL", queues=QUEUES)
            ports = [(each.config.broker_name, each.grpc_port) for each in brokers]
            for broker in brokers:
                async with v5_caller(broker.grpc_port) as caller:
                    found = await route(caller, "T", endpoints("127.0.0.1", 1))
                    assert found.status.code == v2.OK
                    assert ports_of(found.message_queues) == [
                        each for each in ports for _ in range(QUEUES)
                    ]
                    assert {each.permission for each in found.message_queues} == {v2.READ_WRITE}
                    assert {each.broker.id for each in found.message_queues} == {0}
                    one_each = await assignment(caller, "T", "g")
                    queues = [each.message_queue for each in one_each.assignments]
                    assert ports_of(queues) == ports
                    assert {each.id for each in queues} == {-1}

    asyncio.run(main())


def test_an_orderly_group_is_assigned_each_queue_of_all_brokers(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as brokers:
            for broker in brokers:
                await typed_topic(broker, "T", "FIFO", queues=QUEUES)
                group = broker.parts.groups.find_or_create("g")
                assert group is not None
                await broker.parts.groups.update([group.replace(orderly=True)])
            async with v5_caller(brokers[1].grpc_port) as caller:
                found = await assignment(caller, "T", "g")
            queues = [each.message_queue for each in found.assignments]
            assert [(each.broker.name, each.id) for each in queues] == [
                (name, n) for name in NAMES for n in range(QUEUES)
            ]

    asyncio.run(main())


def test_a_topic_of_other_brokers_is_found_and_its_types_are_checked_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as brokers:
            await typed_topic(brokers[2], "T", "DELAY")
            async with v5_caller(brokers[0].grpc_port) as caller:
                found = await route(caller, "T")
                assert ports_of(found.message_queues) == [("broker-c", brokers[2].grpc_port)]
                assert len(found.message_queues[0].accept_message_types) == 4
                assert ports_of(
                    [
                        each.message_queue
                        for each in (await assignment(caller, "T", "g")).assignments
                    ]
                ) == [("broker-c", brokers[2].grpc_port)]
                assert (await route(caller, "U")).status.code == v2.TOPIC_NOT_FOUND
            async with v5_caller(brokers[2].grpc_port) as caller:
                refused = await caller.call(sending(message("T")))
                assert refused.status.code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE

    asyncio.run(main())


def test_a_broker_without_a_port_for_v5_clients_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:1]) as [broker]:
            keys = {"namesrvAddr": broker.namesrv_address, "brokerName": "apache"}
            async with Broker(small(tmp_path / "other", **keys)) as other:
                await registered(other)
                for each in (broker, other):
                    await typed_topic(each, "T", "NORMAL")
                await typed_topic(other, "U", "NORMAL")
                async with v5_caller(broker.grpc_port) as caller:
                    requested = endpoints("10.9.8.7", 80)
                    found = await route(caller, "T", requested)
                    assert ports_of(found.message_queues) == [("broker-a", 80)]
                    nowhere = await route(caller, "U", requested)
                    assert nowhere.status.code == v2.HA_NOT_AVAILABLE

    asyncio.run(main())
    assert "topic T: broker apache (127.0.0.1:" in caplog.text


async def names_of(caller: V5Caller, topic: str) -> set[str]:
    """Return the names of the brokers in a route."""
    return {name for name, _ in ports_of((await route(caller, topic)).message_queues)}


async def route_until(caller: V5Caller, topic: str, names: set[str]) -> None:
    """Query a route until its brokers have these names; routes are cached for ROUTE_MS."""
    async with asyncio.timeout(WAIT_S):
        while await names_of(caller, topic) != names:  # noqa: ASYNC110
            await asyncio.sleep(ROUTE_MS / 10_000)


def test_a_route_loses_a_deleted_topic_and_a_broker_that_stops(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:2]) as brokers:
            first, second = brokers
            keys = {
                "brokerName": NAMES[2],
                "grpcServerPort": str(free_ports(1)[0]),
                "namesrvAddr": first.namesrv_address,
            }
            async with v5_caller(second.grpc_port) as caller:
                async with Broker(small(tmp_path / "third", **keys)) as third:
                    await registered(third)
                    for broker in (first, second, third):
                        await typed_topic(broker, "T", "NORMAL")
                    await route_until(caller, "T", set(NAMES))
                    await first.parts.topics.delete("T")
                    await route_until(caller, "T", set(NAMES[1:]))
                await route_until(caller, "T", {NAMES[1]})
                await second.parts.topics.delete("T")
                assert (await route(caller, "T")).status.code == v2.TOPIC_NOT_FOUND

    asyncio.run(main())


def test_a_route_has_the_new_master_after_a_failover(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:1]) as [first]:
            await typed_topic(first, "T", "NORMAL")
            async with v5_caller(first.grpc_port) as caller:
                ports = []
                for number in range(2):
                    keys = {
                        "brokerName": NAMES[1],
                        "grpcServerPort": str(free_ports(1)[0]),
                        "namesrvAddr": first.namesrv_address,
                    }
                    async with Broker(small(tmp_path / str(number), **keys)) as master:
                        await registered(master)
                        await typed_topic(master, "T", "NORMAL")
                        await route_until(caller, "T", {*NAMES[:2]})
                        found = (await route(caller, "T")).message_queues
                        assert ports_of(found)[1] == (NAMES[1], master.grpc_port)
                        ports.append(master.grpc_port)
                    await route_until(caller, "T", {NAMES[0]})
                assert len(set(ports)) == 2

    asyncio.run(main())


async def delayed(caller: V5Caller, topic: str) -> tuple[str, str]:
    """Send a message that is due in decades; return its id and its recall handle."""
    made = message(topic, deliver_ms=int(time.time() * 1_000) + DELAY_MS)
    sent = await caller.call(sending(made))
    assert sent.status.code == v2.OK, sent
    return made.system_properties.message_id, sent.entries[0].recall_handle


async def recall(caller: V5Caller, topic: str, handle: str) -> Any:
    request = api.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
    return await caller.call(request)


def test_a_recall_reaches_the_broker_of_the_handle_through_every_port(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as brokers:
            for broker in brokers[1:]:
                await typed_topic(broker, "T", "DELAY")
            async with AsyncExitStack() as stack:
                callers = [
                    await stack.enter_async_context(v5_caller(each.grpc_port)) for each in brokers
                ]
                for caller in callers:
                    message_id, handle = await delayed(callers[2], "T")
                    found = await recall(caller, "T", handle)
                    assert (found.status.code, found.message_id) == (v2.OK, message_id)
                _, handle = await delayed(callers[2], "T")
                assert (await recall(callers[1], "U", handle)).status.code != v2.OK
                foreign = RecallHandle("T", "absent", str(DELIVER_MS), "id").encode()
                found = await recall(callers[1], "T", foreign)
                assert "broker not match" in found.status.message

    asyncio.run(main())


def test_a_forwarded_recall_has_the_permissions_of_its_account(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:2], **KEYS, **INNER) as brokers:
            first, second = brokers
            for broker in brokers:
                await typed_topic(broker, "T", "DELAY")
                steps = [
                    *user_steps(SALE, {"Topic:T": ["Pub"]}),
                    *user_steps(OTHER, {"Topic:U": ["Pub"]}),
                ]
                await prepare_all(broker.address, ROOT, steps)
            async with (
                v5_caller(second.grpc_port, signed(*SALE_PAIR)) as caller,
                v5_caller(first.grpc_port, signed(*SALE_PAIR)) as elsewhere,
                v5_caller(first.grpc_port, signed(*OTHER_PAIR)) as stranger,
            ):
                _, handle = await delayed(caller, "T")
                assert (await recall(stranger, "T", handle)).status.code == v2.UNAUTHORIZED
                assert (await recall(elsewhere, "T", handle)).status.code == v2.OK

    asyncio.run(main())


def test_a_recall_reports_a_broker_that_does_not_respond(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:2]) as brokers:
            first, second = brokers
            for broker in brokers:
                await typed_topic(broker, "T", "DELAY")
            async with v5_caller(second.grpc_port) as caller:
                _, handle = await delayed(caller, "T")
            assert first.namesrv is not None
            with pytest.MonkeyPatch.context() as patch:
                dead = f"127.0.0.1:{free_ports(1)[0]}"
                queues = BrokerQueues(NAMES[1], dead, "", 1, 1, 6)

                async def find(routes: object, topic: str, own: str = "") -> list[BrokerQueues]:
                    return [queues]

                patch.setattr(TopicRoutes, "find", find)
                async with v5_caller(first.grpc_port) as caller:
                    found = await recall(caller, "T", handle)
                    assert found.status.code == v2.PROXY_TIMEOUT
                    assert f"broker {NAMES[1]} at {dead}" in found.status.message
                    queues = BrokerQueues(NAMES[1], second.address, "", 1, 1, 6)
                    patch.setattr(forwarding, "FORWARD_S", 0.0)
                    found = await recall(caller, "T", handle)
                    assert found.status.code == v2.PROXY_TIMEOUT
                    assert found.status.message.endswith(f"at {second.address}: no response")

    asyncio.run(main())


def test_a_replica_returns_the_route_of_its_master(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, NAMES[:1]) as [master]:
            await typed_topic(master, "T", "DELAY", queues=2)
            keys = {
                "brokerName": NAMES[0],
                "brokerId": "1",
                "brokerRole": "SLAVE",
                "grpcServerPort": str(free_ports(1)[0]),
                "namesrvAddr": master.namesrv_address,
            }
            async with (
                Broker(small(tmp_path / "replica", **keys)) as replica,
                v5_caller(replica.grpc_port) as caller,
            ):
                await route_until(caller, "T", {NAMES[0]})
                found = await route(caller, "T", endpoints("127.0.0.1", replica.grpc_port))
                assert ports_of(found.message_queues) == [(NAMES[0], master.grpc_port)] * 2
                async with v5_caller(master.grpc_port) as at_master:
                    message_id, handle = await delayed(at_master, "T")
                recalled = await recall(caller, "T", handle)
                assert (recalled.status.code, recalled.message_id) == (v2.OK, message_id)

    asyncio.run(main())
