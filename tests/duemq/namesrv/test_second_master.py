"""Two masters of one name: each reports the other, once, and when it is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from duemq.namesrv.config import NamesrvConfig
from duemq.namesrv.registration import (
    RETRY_MS,
    BrokerAddress,
    NameServerRegistration,
    Registrar,
    RegistrationSnapshot,
)
from duemq.namesrv.second_master import GONE_MS, SecondMaster
from duemq.namesrv.server import NameServer
from duemq.net import wire_json
from duemq_common.clock import FakeClock
from duemq_common.request import Response
from tests.duemq.namesrv.test_registration import INTERVAL_MS, Topics
from tests.support.fakes import settle
from tests.support.raw_connection import WAIT_S

ONE, TWO = "1.1.1.1:1", "2.2.2.2:1"


def route(address: object, *, code: int = 0, name: str = "a") -> Response:
    broker = {"brokerName": name, "cluster": "C", "brokerAddrs": {"0": address, "1": "3.3.3.3:1"}}
    return Response(code, body=wire_json.encode({"brokerDatas": [broker]}))


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = "duemq.namesrv.second_master"
    return [record.getMessage() for record in caplog.records if record.name == name]


def test_a_second_master_is_reported_once_and_when_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    second = SecondMaster("a", ONE, clock)
    with caplog.at_level(logging.WARNING):
        second.observe("n1", route(ONE))
        assert second.failure == ""
        for _ in range(3):
            second.observe("n1", route(TWO))
            clock.advance(INTERVAL_MS)
            second.observe("n2", route(ONE))  # the other one is not registered there
        assert "two masters: 2.2.2.2:1 is also registered as a with brokerId=0" in second.failure
        clock.advance(GONE_MS - INTERVAL_MS - 1)
        second.observe("n1", route(ONE))
        assert second.failure
        clock.advance(1)
        second.observe("n1", route(ONE))
        assert second.failure == ""
        second.observe("n1", route(TWO))
    assert reports(caplog) == [
        "two masters: 2.2.2.2:1 is also registered as a with brokerId=0 (name server n1), and both "
        "accept messages. Stop one of them; start it again with another brokerName, or with "
        "brokerRole=SLAVE and an empty store",
        "broker a: the second master is gone",
        second.failure,
    ]


@pytest.mark.parametrize(
    "response",
    [
        route(TWO, code=17),
        route(TWO, name="b"),
        route(None),
        route(7),
        *(Response(body=body) for body in (b"", b"[]", b"{", b'{"brokerDatas":7}')),
        *(
            Response(body=b'{"brokerDatas":%s}' % rows)
            for rows in (b"[7]", b'[{"brokerName":"a"}]')
        ),
    ],
)
def test_a_response_without_an_address_reports_nothing(response: Response) -> None:
    second = SecondMaster("a", ONE, FakeClock())
    second.observe("n1", response)
    assert second.failure == ""


def test_the_numeric_keys_of_apaches_name_servers_are_read() -> None:
    second = SecondMaster("a", ONE, FakeClock())
    body = b'{"brokerDatas":[{"brokerAddrs":{0:"2.2.2.2:1"},"brokerName":"a","cluster":"C"}]}'
    second.observe("n1", Response(body=body))
    assert "2.2.2.2:1" in second.failure


def test_an_address_is_shown_without_control_characters_and_cut() -> None:
    second = SecondMaster("a", ONE, FakeClock())
    second.observe("n1", route("\n\x1b[2J" + "x" * 10_000))
    assert second.failure.isprintable()
    assert len(second.failure) < 1_000


class Master:
    """A registrar of a master and its report."""

    def __init__(self, address: str, namesrv: str, clock: FakeClock) -> None:
        broker = BrokerAddress(cluster="C", broker_name="a", address=address, ha_address=address)
        self.second, topics = SecondMaster("a", address, clock), Topics()
        topics.add("a")  # every broker has a topic of its name
        self._clock = clock
        self.registrar = Registrar(
            broker,
            topics,
            clock,
            addresses=[namesrv],
            interval_ms=INTERVAL_MS,
            second_master=self.second,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout(WAIT_S), self.registrar.running():
            await self._link.tried.wait()
            yield

    @property
    def _link(self) -> NameServerRegistration:
        (link,) = self.registrar.links.values()
        return link

    async def registers(self, after_ms: int) -> None:
        """Let the time pass after which it registers again; return when it has."""
        await settle()  # both wait for their times
        self._link.tried.clear()
        self._clock.advance(after_ms)
        await self._link.tried.wait()


def name_server(home: Path, clock: FakeClock) -> NameServer:
    path = str(home / "kv.json")
    config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=path)
    return NameServer(config, clock)


def test_two_masters_at_one_name_server_report_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock, half_ms = FakeClock(), INTERVAL_MS // 2
        async with name_server(tmp_path, clock) as server:
            address = f"127.0.0.1:{server.port}"
            one, two = Master(ONE, address, clock), Master(TWO, address, clock)
            async with one.running():
                clock.advance(half_ms)
                async with two.running():
                    for _ in range(2):
                        await one.registers(half_ms)
                        await two.registers(half_ms)
                    assert TWO in one.second.failure
                    assert ONE in two.second.failure
                await one.registers(half_ms)
                for _ in range(GONE_MS // INTERVAL_MS - 1):
                    assert one.second.failure
                    await one.registers(INTERVAL_MS)
                assert one.second.failure == ""

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert len(reports(caplog)) == 3


def test_a_refused_registration_reports_the_master_that_has_the_name(tmp_path: Path) -> None:
    """A name server embedded in the other master refuses the registration."""

    async def main() -> None:
        clock = FakeClock()
        async with name_server(tmp_path, clock) as server:
            local = BrokerAddress(cluster="C", broker_name="a", address=ONE, ha_address=ONE)
            topics = Topics()
            topics.add("a")
            async with Registrar(local, topics, clock, local=server).running():
                two = Master(TWO, f"127.0.0.1:{server.port}", clock)
                async with two.running():
                    await two.registers(RETRY_MS)
                    assert ONE in two.second.failure

    asyncio.run(main())


def test_the_master_before_a_failover_by_hand_is_not_reported(tmp_path: Path) -> None:
    """The name server still has the address of the former master, which was killed."""

    async def main() -> None:
        clock = FakeClock()
        async with name_server(tmp_path, clock) as server:
            former = BrokerAddress(cluster="C", broker_name="a", address=ONE, ha_address=ONE)
            topics = Topics()
            topics.add("a")
            snapshot = RegistrationSnapshot(former, topics, clock, lambda: 6)
            server.table.register(replace(snapshot.local(), local=False), clock.steady_ms())
            two = Master(TWO, f"127.0.0.1:{server.port}", clock)
            async with two.running():
                await two.registers(INTERVAL_MS)
                assert two.second.failure == ""

    asyncio.run(main())
