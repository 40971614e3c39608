"""Registration with the name server of the same process."""

from __future__ import annotations

import asyncio

import pytest

from duemq.namesrv import registration
from duemq.namesrv.route_table import BrokerAddrInfo, Registration
from tests.duemq.namesrv.test_registration import Setting
from tests.support.fakes import settle


def test_the_name_server_in_our_process_knows_at_once() -> None:
    class Local:
        def __init__(self) -> None:
            self.topics: list[str] = []
            self.reported: list[list[str]] = []

        def register_local(self, reported: Registration) -> None:
            assert reported.local
            self.reported.append([topic.name for topic in reported.topics])
            self.topics += self.reported[-1]

        def drop_local_topic(self, broker_name: str, topic: str) -> None:
            self.topics.remove(topic)

        def unregister_local(self, key: BrokerAddrInfo) -> None:
            assert key == BrokerAddrInfo("C", "1.1.1.1:1")
            self.topics = []

    async def main() -> None:
        local = Local()
        setting = Setting(addresses=[], local=local)
        async with setting.registrar.running():
            assert local.topics == ["T", "U"]
            await setting.add("V")
            assert local.topics == ["T", "U", "V"]
            assert local.reported[-1] == ["V"]
            setting.registrar.removed("U")
            assert local.topics == ["T", "V"]
        assert local.topics == []


@pytest.mark.finding("E8")
def test_a_topic_more_is_one_topic_for_the_name_server_in_our_process() -> None:
    reported: list[int] = []
    permission = 6

    class Local:
        def register_local(self, registration: Registration) -> None:
            reported.append(len(registration.topics))

        def drop_local_topic(self, broker_name: str, topic: str) -> None: ...
        def unregister_local(self, key: BrokerAddrInfo) -> None: ...

    async def main() -> None:
        nonlocal permission
        setting = Setting(addresses=[], local=Local(), permission=lambda: permission)
        async with setting.registrar.running():
            reported.clear()
            await setting.add("V")
            permission = 4
            setting.registrar.set_addresses([])
            assert reported == [1, 3]

    asyncio.run(main())


@pytest.mark.finding("E12")
def test_topics_deleted_from_the_routes_only_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TOPICS_PER_TURN", 1)
    reported: list[list[str]] = []

    class Local:
        def register_local(self, payload: Registration) -> None:
            reported.append([topic.name for topic in payload.topics])

        def drop_local_topic(self, broker_name: str, topic: str) -> None: ...
        def unregister_local(self, key: BrokerAddrInfo) -> None: ...

    async def main() -> None:
        setting = Setting(addresses=[], local=Local())
        async with setting.registrar.running():
            await settle()
            reported.clear()
            setting.clock.advance(30_000)
            await settle()
            assert reported == [["T"], ["U"]]

    asyncio.run(main())


def test_a_local_registrations_first_call_holds_all_topics() -> None:
    class Local:
        def register_local(self, registration: Registration) -> None:
            assert registration.local
            names.append([topic.name for topic in registration.topics])

        def drop_local_topic(self, broker_name: str, topic: str) -> None: ...
        def unregister_local(self, key: BrokerAddrInfo) -> None: ...

    names: list[list[str]] = []

    async def main() -> None:
        async with Setting(addresses=[], local=Local()).registrar.running():
            assert names[0] == ["T", "U"]

    asyncio.run(main())
