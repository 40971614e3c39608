"""Queues of a topic on all brokers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duemq.auth.signature import Credentials
from duemq.net.client import RemotingClient
from duemq.pop.allocation import AssignedQueue
from duemq.pop.topic_queues import ROUTE_MS, TopicQueues, readable_queues
from message_store.clock import FakeClock
from tests.support.free_ports import free_ports
from tests.support.running_broker import connected, running, small


def data(broker: str, queues: object, perm: int = 6) -> dict[str, object]:
    return {"brokerName": broker, "readQueueNums": queues, "writeQueueNums": 9, "perm": perm}


def test_readable_queues_of_all_brokers_are_returned() -> None:
    route = {"queueDatas": [data("b", 1), data("a", 2, perm=4), data("c", 4, perm=2)]}
    assert sorted(readable_queues("T", route)) == [
        AssignedQueue("T", "a", 0),
        AssignedQueue("T", "a", 1),
        AssignedQueue("T", "b", 0),
    ]


@pytest.mark.parametrize("queues", [-1, 1 << 20, "x", None])
def test_a_malformed_route_is_refused(queues: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        list(readable_queues("T", {"queueDatas": [data("a", queues)]}))


def test_routes_are_refreshed_and_remain_while_no_name_server_responds(tmp_path: Path) -> None:
    clock, addresses = FakeClock(), [""]

    async def main() -> None:
        keys = {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": str(free_ports(1)[0])}
        async with running(small(tmp_path, **keys)) as (broker, remote):
            addresses[0] = broker.namesrv_address
            queues = TopicQueues(
                broker.parts.topics, broker.parts.identity, clock,
                lambda: addresses, RemotingClient,
            )  # fmt: skip
            await remote.call(17, topic("T", 2))
            assert len(await queues.of("T")) == 2
            await remote.call(17, topic("T", 3))
            assert len(await queues.of("T")) == 2
            clock.advance(ROUTE_MS)
            assert len(await queues.of("T")) == 3
            addresses[0] = f"127.0.0.1:{free_ports(1)[0]}"
            clock.advance(ROUTE_MS)
            assert len(await queues.of("T")) == 3
            assert await queues.of("no such topic") == []
            await remote.call(17, topic("U", 4))
            assert [queue.queue_id for queue in await queues.of("U")] == [0, 1, 2, 3]

    asyncio.run(main())


def test_own_queues_are_used_if_the_route_of_the_embedded_name_server_is_malformed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, remote):
            await remote.call(17, topic("T", 2))
            queues = TopicQueues(
                broker.parts.topics, broker.parts.identity, FakeClock(), list, RemotingClient,
                lambda name: {"queueDatas": [data("a", 1 << 20)]},
            )  # fmt: skip
            assert len(await queues.of("T")) == 2

    asyncio.run(main())
    assert "embedded name server: no route of T: a topic has at most" in caplog.text


def test_the_route_of_the_embedded_name_server_needs_no_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": str(free_ports(1)[0]),
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    }
    asked = {"consumerGroup": "g", "topic": "T", "clientId": "c", "messageModel": "BROADCASTING"}

    async def main() -> None:
        async with (
            running(small(tmp_path, **keys)) as (broker, _),
            connected(broker.address, Credentials("root", "root-secret")) as client,
        ):
            await client.call(17, topic("T", 3))
            found = await client.call(400, {}, json.dumps(asked).encode())
            body = json.loads(bytes(found.body))
            assert len(body["messageQueueAssignments"]) == 3

    asyncio.run(main())
    assert "no route of T" not in caplog.text


def test_a_route_in_the_process_is_used_if_no_other_name_server_responds(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _):
            routes = {"T": {"queueDatas": [data("b", 1), data("a", 2)]}}
            dead = f"127.0.0.1:{free_ports(1)[0]}"
            queues = TopicQueues(
                broker.parts.topics, broker.parts.identity, FakeClock(),
                lambda: [dead], RemotingClient, routes.get,
            )  # fmt: skip
            assert [queue.broker_name for queue in await queues.of("T")] == ["a", "a", "b"]
            assert await queues.of("no such topic") == []

    asyncio.run(main())


def topic(name: str, queues: int) -> dict[str, object]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
