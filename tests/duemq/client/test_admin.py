"""Admin against a broker in the same process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duemq.client import Admin, Message, NoRoute, Producer, Refused
from duemq.client.topics import TopicSettings
from tests.support.running_broker import running, small

Run = Callable[..., Any]


def test_a_topic_is_created_described_and_deleted(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        keys = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with (
            running(keys) as (broker, _),
            Admin(broker.namesrv_address) as admin,
            Producer(client=admin.client) as producer,
        ):
            settings = TopicSettings(
                read_queues=3, write_queues=2, attributes={"message.type": "DELAY"}
            )
            await admin.create_topic("T", settings)
            [info] = [topic for topic in await admin.topics() if topic.kind == "normal"]
            assert (info.name, info.settings) == ("T", {"test": settings})

            queue = next(q for q in (await admin.client.route("T")).write_queues)
            await producer.send(Message("T", b"x"), queue=queue)
            state = await admin.topic("T")
            assert [(each.queue.queue_id, each.max_offset) for each in state.queues] == [
                (0, 1),
                (1, 0),
                (2, 0),
            ]
            assert state.messages == 1
            assert state.queues[0].last_stored_at is not None
            assert state.queues[1].last_stored_at is None

            await admin.delete_topic("T")
            with pytest.raises(NoRoute, match="topic T does not exist"):
                await admin.topic("T")
            assert await admin.client.fetch_route("T") is None
            with pytest.raises(NoRoute, match="topic T does not exist"):
                await admin.delete_topic("T")

    run(main())


@pytest.mark.parametrize("name", ["a b", "rmq_sys_wheel_timer", "x" * 200, ""])
def test_an_invalid_or_internal_topic_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _), Admin(broker=broker.address) as admin:
            with pytest.raises(Refused):
                await admin.create_topic(name)

    run(main())


def test_a_master_is_selected_by_name(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        keys = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with running(keys) as (broker, _), Admin(broker.namesrv_address) as admin:
            [member] = await admin.members()
            assert (member.broker_name, member.broker_id, member.is_master) == ("test", 0, True)
            assert await admin.masters(["test"]) == [member]
            with pytest.raises(NoRoute, match="no master of broker other; there are: test"):
                await admin.masters(["other"])

    run(main())


def test_the_configuration_is_read_and_changed(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _), Admin(broker=broker.address) as admin:
            await admin.update_broker_config(broker.address, {"fileReservedTime": 48})
            assert (await admin.broker_config(broker.address))["fileReservedTime"] == "48"
            assert "runtime" in await admin.runtime_info(broker.address)
            with pytest.raises(Refused):
                await admin.update_broker_config(broker.address, {"rocketmqHome": "/"})
            with pytest.raises(ValueError, match="not one line"):
                await admin.update_broker_config(broker.address, {"a": "b\nc=d"})

    run(main())
