"""Registration of DueMQ at Apache's name servers, and of Apache's brokers at DueMQ's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from duemq.configuration.config import BrokerConfig
from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import BrokerAddress, Registrar
from duemq.namesrv.second_master import SecondMaster
from duemq.namesrv.server import NameServer
from duemq.net.client import RemotingClient
from duemq.net.wire_json import parse
from duemq.registry.config_file import ConfigFile
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common.clock import SystemClock
from duemq_common.request import Request
from message_store.queues.topic_table import TopicTable
from tests.interop.admin_process import mqadmin
from tests.interop.apache import NEWEST, Apache
from tests.support.extended import extended
from tests.support.no_journal import topic_journal
from tests.support.remoting_requests import has_route
from tests.support.wait_until import until

US = BrokerAddress(
    cluster="DefaultCluster",
    broker_name="broker-a",
    address="127.0.0.1:10911",
    ha_address="127.0.0.1:10912",
    grpc="127.0.0.1:8081",
)
WAIT_S = 120


def topic_manager(home: Path) -> TopicManager:
    config = BrokerConfig(broker_name="broker-a")
    file = ConfigFile(home / "topics.json")
    topics = TopicManager(config, TopicTable(), file, SystemClock(), journal=topic_journal())
    topics.load()
    return topics


async def queues(client: RemotingClient, topic: str) -> dict[str, Any] | None:
    """Return the only queue data of a route; None if the response code is 17 (no route)."""
    response = await client.call(Request(105, {"topic": topic}), timeout_s=WAIT_S)
    if response.code == 17:
        return None
    assert response.code == 0
    (found,) = parse(bytes(response.body))["queueDatas"]
    return dict(found)


async def filter_servers(client: RemotingClient, topic: str) -> object:
    """Return the table of filter servers in a route, which has the ports for v5 clients."""
    response = await client.call(Request(105, {"topic": topic}), timeout_s=WAIT_S)
    return parse(bytes(response.body))["filterServerTable"]


async def wait_for(probe: Callable[[], bool], what: str) -> None:
    """Wait until `probe()` is true."""
    await asyncio.to_thread(until, probe, seconds=WAIT_S, what=what)


@pytest.mark.extended
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_we_register_with_apaches_name_server(version: str, tmp_path: Path) -> None:
    async def main(apache: Apache) -> None:
        topics = topic_manager(tmp_path)
        registrar = Registrar(US, topics, SystemClock(), addresses=[apache.namesrv_address])
        topics.changed = registrar.changed
        async with registrar.running():
            (link,) = registrar.links.values()
            await link.tried.wait()
            async with RemotingClient(apache.namesrv_address) as client:
                assert (await queues(client, "TBW102") or {})["perm"] == 7
                assert await filter_servers(client, "TBW102") == {US.address: [f"grpc://{US.grpc}"]}
                assert await queues(client, "New") is None
                await topics.ensure("New", queues=3)
                assert (await queues(client, "New") or {})["writeQueueNums"] == 3
                await topics.update(
                    [TopicConfig(name="New", read_queues=3, write_queues=3, perm=4)]
                )
                assert (await queues(client, "New") or {})["perm"] == 4
            namesrv = apache.namesrv
            assert namesrv is not None
            await asyncio.to_thread(namesrv.stop)
            await asyncio.to_thread(apache.start_namesrv)
            await wait_for(lambda: has_route(apache.namesrv_port, "New"), "registered again")
        # 5.3.3 unregisters brokers in batches, after its answer.
        await wait_for(lambda: not has_route(apache.namesrv_port, "New"), "unregistered")

    apache = Apache(version, tmp_path / "apache")
    try:
        apache.start_namesrv()
        asyncio.run(main(apache))
    finally:
        apache.stop()


@pytest.mark.extended
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", NEWEST])
def test_two_masters_at_apaches_name_server_report_each_other(version: str, tmp_path: Path) -> None:
    async def main(apache: Apache) -> None:
        clock, found = SystemClock(), []
        async with AsyncExitStack() as stack:
            for port, period_ms in ((10911, 1_000), (20911, 1_300)):
                broker = replace(US, address=f"127.0.0.1:{port}")
                found.append(SecondMaster("broker-a", broker.address, clock))
                registrar = Registrar(
                    broker,
                    topic_manager(tmp_path / str(port)),
                    clock,
                    addresses=[apache.namesrv_address],
                    interval_ms=period_ms,
                    second_master=found[-1],
                )
                await stack.enter_async_context(registrar.running())
                (link,) = registrar.links.values()
                await link.tried.wait()
            await wait_for(lambda: all(each.failure for each in found), "both masters report")
        assert "127.0.0.1:20911" in found[0].failure
        assert "127.0.0.1:10911" in found[1].failure

    apache = Apache(version, tmp_path / "apache")
    try:
        apache.start_namesrv()
        asyncio.run(main(apache))
    finally:
        apache.stop()


@pytest.mark.extended
@pytest.mark.parametrize("version", ["4.9.7", extended("5.3.3")])
def test_apaches_broker_and_tools_use_our_name_server(version: str, tmp_path: Path) -> None:
    async def main(apache: Apache) -> None:
        config = NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=apache.namesrv_port,
            kv_config_path=str(tmp_path / "kv.json"),
        )

        async def tool(*arguments: str) -> str:
            address = apache.namesrv_address
            return await asyncio.to_thread(mqadmin, version, apache.home, *arguments, "-n", address)

        async with NameServer(config, SystemClock()) as server:
            broker = apache.start_broker()
            try:
                await wait_for(lambda: "TBW102" in server.table.topics(), "registered")
                await tool("updateTopic", "-c", "DefaultCluster", "-t", "T1", "-r", "3", "-w", "3")
                await wait_for(lambda: server.table.route("T1") is not None, "T1 registered")
                route = server.table.route("T1")
                assert route is not None
                assert route["queueDatas"][0]["writeQueueNums"] == 3
                assert "T1" in (await tool("topicList")).split()
                assert json.dumps("broker-a") in await tool("topicRoute", "-t", "T1")
                await tool("updateKvConfig", "-s", "N", "-k", "k", "-v", "v")
                assert server.kv.get("N", "k") == "v"
                await tool("deleteTopic", "-c", "DefaultCluster", "-t", "T1")
                assert server.table.route("T1") is None
            finally:
                await asyncio.to_thread(broker.stop)
            assert server.table.topics() == []

    asyncio.run(main(Apache(version, tmp_path)))
