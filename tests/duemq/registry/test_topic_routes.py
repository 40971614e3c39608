"""Routes of topics, from name servers and from the one in the process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.net.client import RemotingClient
from duemq.registry.topic_routes import (
    RETRY_MS,
    ROUTE_MS,
    ROUTES_MAX,
    BrokerQueues,
    TopicRoutes,
    brokers_of,
)
from duemq_common.clock import FakeClock
from duemq_common.request import Request, Response
from tests.support.free_ports import free_ports
from tests.support.running_broker import connected, running, small

ONE, TWO = "127.0.0.1:1", "127.0.0.1:2"
Route = dict[str, object]


def route(*names: str, queues: object = 1, grpc: str = "") -> Route:
    """Return the route of a topic; the address of a master is `NAME:1`."""
    datas = [{"brokerName": name, "brokerAddrs": {"0": f"{name}:1", "1": "r:1"}} for name in names]
    return {
        "brokerDatas": datas,
        "queueDatas": [
            {"brokerName": name, "readQueueNums": queues, "writeQueueNums": 9, "perm": 6}
            for name in names
        ],
        "filterServerTable": {
            f"{name}:1": ["filter:1", f"grpc://{grpc}"] for name in names if grpc
        },
    }


class NameServers:
    """Fake name servers: their routes by address; one without routes does not respond.

    Attributes:
        calls: Addresses of the servers that were called.
    """

    def __init__(self, clock: FakeClock, local: Route | None = None) -> None:
        self.servers: dict[str, dict[str, Route] | None] = {}
        self.calls: list[str] = []
        self.local = local
        self.routes = TopicRoutes(
            clock, lambda: list(self.servers), self._connect, lambda topic: self.local
        )

    def _connect(self, address: str) -> RemotingClient:
        requested = self

        class Client(RemotingClient):
            async def call(self, request: Request, *, timeout_s: float = 3.0) -> Response:
                requested.calls.append(address)
                found = requested.servers[address]
                if found is None:
                    raise TimeoutError
                data = found.get(request.fields["topic"])
                return Response(17) if data is None else Response(body=json.dumps(data).encode())

        return Client(address)

    def find(self, topic: str = "T", own: str = "") -> list[str]:
        """Return the names of the brokers of a topic."""

        async def main() -> list[BrokerQueues]:
            return await self.routes.find(topic, own)

        return [each.broker_name for each in asyncio.run(main())]


def test_a_route_has_the_ports_of_its_masters() -> None:
    data = route("b", "a", queues=2, grpc="10.0.0.1:8081")
    assert brokers_of(data) == [
        BrokerQueues(name, f"{name}:1", "10.0.0.1:8081", 2, 9, 6) for name in "ab"
    ]
    [alone] = brokers_of(route("c") | {"filterServerTable": {"c:1": ["filter:1"], "r:1": None}})
    assert (alone.address, alone.grpc) == ("c:1", "")
    headless = route("d", grpc="h:1") | {
        "brokerDatas": [{"brokerName": "d", "brokerAddrs": {"1": "d:1"}}]
    }
    assert brokers_of(headless) == [BrokerQueues("d", "", "", 1, 9, 6)]
    assert brokers_of({}) == []


@pytest.mark.parametrize("queues", [-1, 1 << 20, "x", None])
def test_a_malformed_route_is_refused(queues: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        brokers_of(route("a", queues=queues))


@pytest.mark.parametrize("key", ["brokerDatas", "queueDatas", "filterServerTable"])
@pytest.mark.parametrize("value", [1, "x", [1], [{}], {"a:1": 1}])
def test_a_malformed_route_is_no_route(
    key: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    servers = NameServers(FakeClock(), local=route("a") | {key: value})
    servers.servers[ONE] = {"T": route("a") | {key: value}}
    assert servers.find() in (["a"], [])
    if not servers.find():
        assert "embedded name server: no route of T" in caplog.text
        assert f"name server {ONE}: no route of T" in caplog.text


def test_a_route_is_fetched_again_after_its_lifetime() -> None:
    clock = FakeClock()
    servers = NameServers(clock)
    servers.servers[ONE] = {"T": route("a")}
    assert servers.find() == ["a"]
    servers.servers[ONE] = {"T": route("a", "b")}
    assert servers.find() == ["a"]
    clock.advance(ROUTE_MS)
    assert servers.find() == ["a", "b"]
    servers.servers[ONE] = {}
    clock.advance(ROUTE_MS)
    assert servers.find() == []


def test_a_route_remains_while_no_name_server_responds_and_calls_pause() -> None:
    clock = FakeClock()
    servers = NameServers(clock)
    servers.servers = {ONE: {"T": route("a")}, TWO: None}
    assert servers.find() == ["a"]
    servers.servers = {ONE: None, TWO: None}
    servers.calls.clear()
    for _ in range(RETRY_MS // ROUTE_MS):
        clock.advance(ROUTE_MS)
        assert servers.find() == ["a"]
    assert servers.find("U") == []
    assert servers.calls == [ONE, TWO]
    clock.advance(ROUTE_MS)
    servers.find()
    assert servers.calls == [ONE, TWO, ONE, TWO]


def test_the_name_server_that_responded_last_is_asked_first() -> None:
    clock = FakeClock()
    servers = NameServers(clock)
    servers.servers = {ONE: None, TWO: {"T": route("a")}}
    assert servers.find() == ["a"]
    assert servers.calls == [ONE, TWO]
    clock.advance(ROUTE_MS)
    assert servers.find() == ["a"]
    assert servers.calls == [ONE, TWO, TWO]


def test_a_route_without_the_own_broker_comes_from_a_restarted_name_server() -> None:
    clock = FakeClock()
    servers = NameServers(clock)
    servers.servers = {ONE: {"T": route("a", "b")}, TWO: {"T": route("a", "b", "c")}}
    assert servers.find(own="a") == ["a", "b"]
    servers.servers[ONE] = {"T": route("b")}
    clock.advance(ROUTE_MS)
    assert servers.find(own="a") == ["a", "b", "c"]
    servers.servers = {ONE: {}, TWO: {"T": route("c")}}
    clock.advance(ROUTE_MS)
    assert servers.find(own="a") == ["a", "b", "c"]
    clock.advance(ROUTE_MS)
    assert servers.find() == ["c"]


def test_the_embedded_name_server_adds_its_brokers() -> None:
    clock = FakeClock()
    servers = NameServers(clock, local=route("a", "b", queues=3))
    assert servers.find() == ["a", "b"]
    servers.local = route("b")
    clock.advance(ROUTE_MS)
    assert servers.find() == ["b"]
    servers.servers[ONE] = {"T": route("c")}
    clock.advance(ROUTE_MS)
    assert servers.find() == ["b", "c"]
    servers.servers[ONE], servers.local = None, None
    clock.advance(ROUTE_MS)
    assert servers.find() == ["b", "c"]


def test_the_number_of_cached_routes_is_limited() -> None:
    servers = NameServers(FakeClock())
    servers.servers[ONE] = {}

    async def main() -> None:
        for n in range(ROUTES_MAX + 1):
            await servers.routes.find(f"topic-{n}")
        count = len(servers.calls)
        await servers.routes.find(f"topic-{ROUTES_MAX}")
        assert len(servers.calls) == count
        await servers.routes.find("topic-0")
        assert len(servers.calls) == count + 1

    asyncio.run(main())


def test_the_route_of_the_embedded_name_server_needs_no_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {
        "embeddedNamesrvEnable": "true",
        "embeddedNamesrvPort": str(free_ports(1)[0]),
        "authenticationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    }
    requested = {
        "consumerGroup": "g",
        "topic": "T",
        "clientId": "c",
        "messageModel": "BROADCASTING",
    }

    async def main() -> None:
        async with (
            running(small(tmp_path, **keys)) as (broker, _),
            connected(broker.address, Credentials("root", "root-secret")) as client,
        ):
            await client.call(17, topic("T", 3))
            found = await client.call(400, {}, json.dumps(requested).encode())
            body = json.loads(bytes(found.body))
            assert len(body["messageQueueAssignments"]) == 3

    asyncio.run(main())
    assert "no route of T" not in caplog.text


def topic(name: str, queues: int) -> dict[str, object]:
    """Return the header fields of the request that creates a topic."""
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


@pytest.mark.parametrize("text", ["b..b:1", "b", "b:99999"])
def test_an_address_that_no_host_can_have_leaves_its_broker_out(text: str) -> None:
    """It ended the request for the route of all brokers."""
    data: Any = route("a", "b", grpc="v5:1")
    data["brokerDatas"][1]["brokerAddrs"]["0"] = text
    data["filterServerTable"] = {"a:1": [f"grpc://{text}"], text: ["grpc://v5:1"]}
    first, second = brokers_of(data)
    assert (first.address, first.grpc) == ("a:1", "")
    assert (second.address, second.grpc) == ("", "v5:1")
