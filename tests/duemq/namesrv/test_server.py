"""A name server on a socket, alone."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import BrokerAddress, register_request
from duemq.namesrv.route_table import BrokerAddrInfo, Registration
from duemq.namesrv.server import NameServer
from duemq.net.client import RemotingClient
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.data_version import DataVersion
from duemq_common.errors import CorruptStore, UsageError
from duemq_common.request import Request
from tests.support.fakes import settle

US = BrokerAddress(cluster="C", broker_name="a", address="1.1.1.1:1", ha_address="1.1.1.1:2")
TOPICS = [TopicConfig(name="T"), TopicConfig(name="U")]


def config(tmp_path: Path, **changes: Any) -> NamesrvConfig:
    values = {"bind_address": "127.0.0.1", "listen_port": 0}
    return NamesrvConfig(**values | {"kv_config_path": str(tmp_path / "kv.json")} | changes)


def route(topic: str = "T") -> Request:
    return Request(105, {"topic": topic})


def test_a_broker_comes_and_goes_with_its_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with NameServer(config(tmp_path), FakeClock()) as server:
            address = f"127.0.0.1:{server.port}"
            async with RemotingClient(address) as client, RemotingClient(address) as broker:
                assert (await client.call(route())).code == 17
                await broker.call(register_request(US, DataVersion(1), TOPICS, 0))
                assert (await client.call(route())).code == 0
                gone = asyncio.Event()
                for connection in server._server.connections:
                    connection.on_close(lambda peer: gone.set())
                await broker.close()
                await gone.wait()
                assert (await client.call(route())).code == 17

    asyncio.run(main())


@pytest.mark.finding("3D6")
def test_the_steps_of_a_stop_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with NameServer(config(tmp_path), FakeClock()):
            pass

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert "name server has stopped (ports 0 ms, expiry 0 ms)" in caplog.messages


def test_a_silent_broker_is_dropped_by_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with (
            NameServer(config(tmp_path), clock) as server,
            RemotingClient(f"127.0.0.1:{server.port}") as client,
        ):
            await client.call(register_request(US, DataVersion(1), TOPICS, 0))
            await settle()
            for _ in range(25):
                clock.advance(5_000)
                await settle()
            assert list(server.table.live()) == []

    asyncio.run(main())


def test_a_broker_is_not_silent_while_the_name_server_is_stalled(tmp_path: Path) -> None:
    """After a suspended machine has resumed, clients found no broker for up to 30 s."""

    async def main() -> None:
        clock = FakeClock()
        async with (
            NameServer(config(tmp_path), clock) as server,
            RemotingClient(f"127.0.0.1:{server.port}") as client,
        ):
            await client.call(register_request(US, DataVersion(1), TOPICS, 0))
            await settle()
            clock.advance(3_600_000)
            await settle()
            assert len(list(server.table.live())) == 1

    asyncio.run(main())


def test_the_broker_in_this_process_needs_no_socket_and_never_expires(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with NameServer(config(tmp_path), clock) as server:
            server.register_local(
                Registration(
                    cluster="C",
                    broker_name="a",
                    broker_id=0,
                    address="1.1.1.1:1",
                    ha_address="",
                    version=DataVersion(1),
                    topics=TOPICS,
                )
            )
            clock.advance(1 << 40)
            await settle()
            assert server.table.topics() == ["T", "U"]
            assert set(server.handlers()) >= {103, 105, 106}
            server.unregister_local(BrokerAddrInfo("C", "1.1.1.1:1"))
            assert server.table.topics() == []

    asyncio.run(main())


def test_key_values_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with NameServer(config(tmp_path), FakeClock()) as server:
            await server.kv.put("N", "k", "v")
        async with NameServer(config(tmp_path), FakeClock()) as server:
            assert server.kv.get("N", "k") == "v"

    asyncio.run(main())


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with NameServer(config(tmp_path), FakeClock()) as server:
            with pytest.raises(UsageError, match="listenPort"):
                await NameServer(
                    config(tmp_path, listen_port=server.port), FakeClock()
                ).__aenter__()

    asyncio.run(main())


def test_a_torn_key_value_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("{")

    async def main() -> None:
        await NameServer(config(tmp_path), FakeClock()).__aenter__()

    with pytest.raises(CorruptStore, match=r"kv\.json"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("port_key", "text"),
    [
        (
            "listenPort",
            "set listenPort to a free port; if it is the name server in a broker, set "
            "embeddedNamesrvEnable=false and namesrvAddr=127.0.0.1:{port} in the configuration",
        ),
        (
            "embeddedNamesrvPort",
            "set embeddedNamesrvPort to a free port; if a name server uses it, set "
            "embeddedNamesrvEnable=false and namesrvAddr=127.0.0.1:{port} to register",
        ),
    ],
)
def test_a_second_name_server_names_both_remedies(tmp_path: Path, port_key: str, text: str) -> None:
    async def main() -> None:
        async with NameServer(config(tmp_path), FakeClock()) as first:
            second = NameServer(
                config(tmp_path, listen_port=first.port), FakeClock(), port_key=port_key
            )
            with pytest.raises(UsageError) as raised:
                await second.__aenter__()
            assert text.format(port=first.port) in str(raised.value)

    asyncio.run(main())
