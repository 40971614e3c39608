"""Our registration with name servers: ours over a socket, and fakes that fail on demand."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import (
    PAUSE_MS_MIN,
    BrokerAddress,
    Registrar,
    RegistrationRefused,
)
from duemq.namesrv.registration_body import decode_body
from duemq.namesrv.route_table import BrokerAddrInfo
from duemq.namesrv.server import NameServer
from duemq.registry.topic_config import TopicConfig
from duemq_common.clock import FakeClock
from duemq_common.data_version import DataVersion
from duemq_common.request import Request, Response
from tests.support.fakes import FakePeer, settle
from tests.support.raw_connection import WAIT_S

US = BrokerAddress(cluster="C", broker_name="a", address="1.1.1.1:1", ha_address="1.1.1.1:2")
INTERVAL_MS = 30_000


class Topics:
    """A topic manager of two topics."""

    def __init__(self) -> None:
        self.version = DataVersion(1)
        self.table = {name: TopicConfig(name=name) for name in "TU"}

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self.table.values()))

    def add(self, name: str) -> list[TopicConfig]:
        self.table[name] = TopicConfig(name=name)
        self.version = self.version.next(17)
        return [self.table[name]]


class FakeNamesrv:
    """A name server that records what is reported to it. `fault` is raised instead of an answer."""

    def __init__(self) -> None:
        self.peer: FakePeer | None = None
        self.fault: Exception | None = None
        self.code = 0
        self.hold: asyncio.Event | None = None
        self.requests: list[Request] = []
        self.closed = False

    async def connect(self) -> FakePeer:
        if self.fault is not None:
            raise self.fault
        if self.peer is None or self.peer.closed:
            self.peer = FakePeer()
        return self.peer

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        await self.connect()
        self.requests.append(request)
        if self.hold is not None:
            await self.hold.wait()
        return Response(self.code, "no" if self.code else None)

    async def close(self) -> None:
        self.closed = True

    def reported(self) -> list[str]:
        """Return the topics of each registration since the last call, and `bye`."""
        requests, self.requests = self.requests, []
        return [
            "".join(t.name for t in decode_body(request.body, compressed=False).topics)
            if request.code == 103
            else "bye"
            for request in requests
        ]


class Setting:
    """A registrar with fake name servers n1, n2."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.topics = FakeClock(), Topics()
        self.servers = {"n1:1": FakeNamesrv(), "n2:1": FakeNamesrv()}
        self.registrar = Registrar(
            US,
            self.topics,
            self.clock,
            addresses=options.pop("addresses", list(self.servers)),
            interval_ms=INTERVAL_MS,
            connect=self.servers.__getitem__,
            **options,
        )

    async def pass_ms(self, ms: int) -> None:
        await settle()
        self.clock.advance(ms)
        await settle()

    async def add(self, name: str) -> None:
        await self.registrar.changed(self.topics.add(name))

    def reported(self) -> list[list[str]]:
        return [server.reported() for server in self.servers.values()]


def test_all_topics_at_the_start_and_every_30_s() -> None:
    async def main() -> None:
        setting = Setting()
        async with setting.registrar.running():
            await settle()
            assert setting.reported() == [["TU"], ["TU"]]
            await setting.pass_ms(INTERVAL_MS - 1)
            assert setting.reported() == [[], []]
            await setting.pass_ms(1)
            assert setting.reported() == [["TU"], ["TU"]]
        assert setting.reported() == [["bye"], ["bye"]]
        assert all(server.closed for server in setting.servers.values())

    asyncio.run(main())


def test_a_clock_set_back_reports_every_fault() -> None:
    async def main() -> None:
        setting = Setting()
        async with setting.registrar.running():
            await settle()
            setting.reported()
            await setting.pass_ms(-3_600_000)
            setting.reported()  # at once, or not
            await setting.pass_ms(INTERVAL_MS)
            await setting.pass_ms(INTERVAL_MS)
            assert setting.reported() in ([["TU"], ["TU"]], [["TU", "TU"], ["TU", "TU"]])

    asyncio.run(main())


def test_103_matches_5_3_3() -> None:
    async def main() -> None:
        setting = Setting()
        async with setting.registrar.running():
            await settle()
            fields = setting.servers["n1:1"].requests[0].fields
            assert {k: v for k, v in fields.items() if k != "bodyCrc32"} == {
                "brokerAddr": "1.1.1.1:1",
                "brokerId": "0",
                "brokerName": "a",
                "clusterName": "C",
                "compressed": "false",
                "enableActingMaster": "false",
                "haServerAddr": "1.1.1.1:2",
            }

    asyncio.run(main())


def test_a_change_goes_out_alone_and_at_once() -> None:
    async def main() -> None:
        setting = Setting()
        async with setting.registrar.running():
            await settle()
            setting.reported()
            await setting.add("V")
            assert setting.reported() == [["V"], ["V"]]
            await setting.pass_ms(INTERVAL_MS)
            assert setting.reported() == [["TUV"], ["TUV"]]

    asyncio.run(main())


def test_changes_made_while_one_is_on_its_way_go_together_in_order() -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        async with setting.registrar.running():
            await settle()
            server.reported()
            server.hold = asyncio.Event()
            changes = [asyncio.create_task(setting.add(name)) for name in "VWX"]
            await settle()
            assert server.reported() == ["V"]
            server.hold.set()
            await asyncio.gather(*changes)
            assert server.reported() == ["WX"]

    asyncio.run(main())


def test_a_change_that_waited_for_a_lost_connection_sends_all_topics() -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        async with setting.registrar.running():
            await setting.pass_ms(2_000)
            server.reported()
            server.hold = asyncio.Event()
            changes = asyncio.gather(setting.add("V"), setting.add("W"))
            await settle()
            assert server.peer is not None
            server.peer.close()  # a name server then removes all topics
            server.hold.set()
            await changes
            assert server.reported()[:2] == ["V", "TUVW"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fault", "reported"),
    [
        ("refused", ["V", "TUV"]),
        ("no connection", ["TUV"]),
        ("connection lost", ["TUV"]),
    ],
)
def test_after_a_failure_all_topics_go(fault: str, reported: list[str]) -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        async with setting.registrar.running():
            await setting.pass_ms(2_000)
            server.reported()
            if fault == "refused":
                server.code = 1
            elif fault == "no connection":
                server.fault = ConnectionRefusedError("refused")
            else:
                assert server.peer is not None
                server.peer.close()
            await setting.add("V")
            server.code, server.fault = 0, None
            for _ in range(6):
                await setting.pass_ms(1_000)
            assert server.reported() == reported
            assert setting.registrar.links["n1:1"].registered

    asyncio.run(main())


def test_a_lost_connection_registers_again_without_waiting_for_30_s() -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        async with setting.registrar.running():
            await setting.pass_ms(2_000)
            server.reported()
            assert server.peer is not None
            server.peer.close()
            await settle()
            assert server.reported() == ["TU"]
            server.peer.close()
            await settle()
            assert server.reported() == []  # not at once again
            await setting.pass_ms(1_000)
            assert server.reported() == ["TU"]

    asyncio.run(main())


def test_one_that_does_not_answer_delays_no_change_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("duemq.namesrv.registration.CHANGE_TIMEOUT_S", 0.01)

    async def main() -> None:
        setting = Setting()
        deaf = setting.servers["n1:1"]
        async with setting.registrar.running():
            await settle()
            setting.reported()
            deaf.hold = asyncio.Event()
            await setting.add("V")
            assert setting.reported() == [["V"], ["V"]]
            assert not setting.registrar.links["n1:1"].registered
            await setting.add("W")  # does not wait for it
            assert setting.servers["n2:1"].reported() == ["W"]
            deaf.hold = None
            await setting.pass_ms(1_000)
            assert deaf.reported() == ["TUVW"]

    asyncio.run(main())


def test_one_that_does_not_answer_delays_no_stop() -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        setting.servers["n1:1"].hold = asyncio.Event()
        async with asyncio.timeout(WAIT_S), setting.registrar.running():
            await settle()
        assert setting.servers["n1:1"].closed
        assert setting.servers["n1:1"].reported() == ["TU"]  # no 104: it is not registered

    asyncio.run(main())


def test_failures_are_reported_once_and_so_is_their_end(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        server.fault = ConnectionRefusedError("Connection refused")
        async with setting.registrar.running():
            for _ in range(4):
                await setting.pass_ms(5_000)
            assert setting.registrar.links["n1:1"].failure == "Connection refused"
            server.fault = None
            await setting.pass_ms(5_000)
            assert setting.reported() == [["TU"], []]

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "name server n1:1: not registered (Connection refused). Clients that use it do not find "
        "this broker. Retrying every 5 s; check that it runs and that its address in namesrvAddr "
        "is right",
        "name server n1:1: registered again",
    ]


def test_each_cause_of_a_failure_is_reported_once_with_its_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After the first cause is removed, the operator sees the next one."""
    reset = ConnectionResetError("n1:1 closed the connection")
    expired = ssl.SSLCertVerificationError(1, "certificate has expired")
    refused = RegistrationRefused(16, "username cannot be null.")

    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        server = setting.servers["n1:1"]
        server.fault = reset
        async with setting.registrar.running():
            for fault in (reset, expired, refused, refused, reset, None, reset):
                server.fault = fault
                await setting.pass_ms(INTERVAL_MS)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    lines = [record.getMessage().rpartition("; ")[2] for record in caplog.records]
    assert lines == [
        "check useTLS and tls.client.certPath if it requires TLS",
        "check the certificates of both, and the tls.client keys",
        "it requires an account (innerClientAuthenticationCredentials here), or does not accept "
        "brokers from this address (registerFrom there)",
        "name server n1:1: registered again",
        "check useTLS and tls.client.certPath if it requires TLS",
    ]


def test_name_servers_come_and_go() -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"])
        async with setting.registrar.running():
            await settle()
            setting.registrar.set_addresses(["n2:1", "n2:1"])
            await setting.pass_ms(1_000)
            assert setting.reported() == [["TU", "bye"], ["TU"]]
            await setting.add("V")
            assert setting.reported() == [[], ["V"]]

    asyncio.run(main())


@pytest.mark.parametrize(("permission", "perm"), [(6, 6), (4, 4), (2, 2), (7, 6)])
def test_what_the_broker_forbids_no_topic_permits(permission: int, perm: int) -> None:
    async def main() -> None:
        setting = Setting(addresses=["n1:1"], permission=lambda: permission)
        async with setting.registrar.running():
            await settle()
            body = decode_body(setting.servers["n1:1"].requests[0].body, compressed=False)
            assert {topic.perm for topic in body.topics} == {perm}

    asyncio.run(main())


def test_a_change_of_the_permission_is_registered_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        clock, permission = FakeClock(), 6
        config = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
        )

        def written() -> object:
            route: Any = server.table.route("T")
            return [queues["perm"] for queues in route["queueDatas"]]

        async with NameServer(config, clock) as server:
            addresses = [f"127.0.0.1:{server.port}"]
            registrar = Registrar(
                US, Topics(), clock, addresses=addresses, permission=lambda: permission
            )
            async with asyncio.timeout(WAIT_S), registrar.running():
                (link,) = registrar.links.values()
                await link.tried.wait()
                for changed in (4, 6):
                    permission = changed
                    link.tried.clear()
                    registrar.set_addresses(addresses)
                    clock.advance(PAUSE_MS_MIN)
                    await link.tried.wait()
                    assert written() == [permission]

    asyncio.run(main())


def test_over_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        clock, topics = FakeClock(), Topics()
        config = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json")
        )
        async with NameServer(config, clock) as server:
            registrar = Registrar(US, topics, clock, addresses=[f"127.0.0.1:{server.port}"])
            async with asyncio.timeout(WAIT_S), registrar.running():
                (link,) = registrar.links.values()
                await link.tried.wait()
                assert link.registered
                assert server.table.topics() == ["T", "U"]
                await registrar.changed(topics.add("V"))
                assert server.table.topics() == ["T", "U", "V"]
                version = server.table.version_of(BrokerAddrInfo("C", "1.1.1.1:1"))
                assert version == topics.version
            assert server.table.topics() == []

    asyncio.run(main())
