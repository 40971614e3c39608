"""Admin against a broker in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from duemq.client import (
    Admin,
    Client,
    Message,
    NoRoute,
    Producer,
    PullConsumer,
    Refused,
)
from duemq.client.admin.dead_letters import DeadLetter
from duemq.client.admin.groups import GroupSettings, ResetTo
from duemq.client.admin.resends import UndeliveredMessage, UndeliveredSearch
from duemq.client.admin.topics import TopicSettings
from duemq_common.codes import RequestCode
from tests.support.running_broker import TIMEOUT_S, running, small

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
            await admin.create_topic("T")  # exists, and is not changed
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


async def consume(client: Client, group: str, topic: str, offset: int) -> None:
    consumer = PullConsumer(group=group, client=client)
    [queue] = await consumer.queues(topic)
    await consumer.commit(queue, offset)


def test_a_group_is_described_changed_reset_and_deleted(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        keys = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with (
            running(keys) as (broker, _),
            Admin(broker.namesrv_address) as admin,
            Producer(client=admin.client) as producer,
        ):
            await admin.create_group("g", GroupSettings(retries=3))
            assert (await admin.group("g")).info.settings == {"test": GroupSettings(retries=3)}
            await admin.create_group("g", GroupSettings(retries=4, broadcast=False))
            await admin.create_group("g")  # exists, and is not changed
            [info] = [each for each in await admin.groups() if each.name == "g"]
            assert info.settings == {"test": GroupSettings(retries=4, broadcast=False)}

            for body in (b"1", b"2", b"3"):
                await producer.send(Message("T", body))
            await consume(admin.client, "g", "T", 2)
            state = await admin.group("g")
            [progress] = [each for each in state.queues if each.queue.topic == "T"]
            assert (progress.offset, progress.max_offset, progress.lag) == (2, 3, 1)
            assert progress.last_consumed_at is not None
            assert (state.lag, state.members) == (1, [])
            assert (await admin.topic("T")).groups == ["g"]

            [planned] = await admin.reset_offsets("g", "T", "earliest", dry_run=True)
            assert (planned.former, planned.offset) == (2, 0)
            assert await admin.reset_offsets("g", "T", "earliest") == [planned]
            [latest] = await admin.reset_offsets("g", "T", "latest")
            assert (latest.former, latest.offset) == (0, 3)
            [now] = await admin.reset_offsets("g", "T", datetime(1990, 1, 1, tzinfo=UTC))
            assert now.offset == 0

            await admin.delete_group("g")
            with pytest.raises(NoRoute, match="group g does not exist"):
                await admin.group("g")

    run(main())


@pytest.mark.parametrize(
    ("group", "topic", "to", "text"),
    [
        ("g", "Missing", "earliest", "topic Missing does not exist"),
        ("missing", "T", "earliest", "group missing does not exist"),
        ("g", "T", datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001
        ("g", "T", "yesterday", "neither a time, nor earliest, nor latest"),
    ],
)
def test_a_reset_of_something_else_is_refused(
    run: Run, tmp_path: Path, group: str, topic: str, to: ResetTo, text: str
) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _), Admin(broker=broker.address) as admin:
            await admin.create_topic("T")
            await admin.create_group("g")
            with pytest.raises((NoRoute, ValueError), match=text):
                await admin.reset_offsets(group, topic, to)

    run(main())


async def make_dead_letter(admin: Admin, group: str, topic: str) -> None:
    """Send the first message of a topic back, for the last time."""
    consumer = PullConsumer(group=group, client=admin.client)
    [queue] = await consumer.queues(topic)
    [message] = (await consumer.pull(queue, 0)).messages
    fields = {
        "offset": message.record.phys_offset,
        "group": group,
        "delayLevel": -1,
        "originMsgId": message.offset_message_id,
        "originTopic": topic,
    }
    [master] = await admin.masters()
    await admin.client.ask(master.address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def letters_of(admin: Admin, **search: Any) -> list[UndeliveredMessage]:
    """Return the dead letters of group `g`."""
    pages = admin.undelivered(UndeliveredSearch(letters_of="g", **search))
    return [one async for _, _, page in pages for one in page.items]


async def check_searches(admin: Admin, letter: DeadLetter) -> None:
    """Check which searches select a dead letter of topic `T`."""
    assert await letters_of(admin, names=frozenset({"test/0", "other"})) != []
    stored_ms = letter.record.store_ms
    alike: tuple[dict[str, Any], ...] = (
        {"from_ms": stored_ms},
        {"topic": "T"},
        {"until_ms": stored_ms + 1},
    )
    for search in alike:
        [same] = await letters_of(admin, **search)
        assert same.names == letter.names, search
    for search in (
        {"names": frozenset({"other"})},
        {"from_ms": stored_ms + 1},
        {"until_ms": stored_ms},
        {"topic": "U"},
        {"group": "other"},
    ):
        assert await letters_of(admin, **search) == [], search


def test_a_dead_letter_is_sent_again_once(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        keys = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with (
            running(keys) as (broker, _),
            Admin(broker.namesrv_address) as admin,
            Producer(client=admin.client) as producer,
        ):
            await admin.create_group("g")
            sent = await producer.send(
                Message("T", b"x" * 30_000, tag="a", keys=["k"], properties={"color": "blue"})
            )
            await make_dead_letter(admin, "g", "T")
            [count] = await admin.dead_letter_counts()
            assert (count.group, count.messages) == ("g", 1)
            [letter] = await letters_of(admin)
            assert isinstance(letter, DeadLetter)
            assert (letter.name, letter.topic) == ("test/0", "T")
            assert letter.message.message_id == sent.message_id
            await check_searches(admin, letter)

            [planned] = await admin.resend([letter], dry_run=True)
            assert planned.status == "would be sent"
            [result] = await admin.resend([letter])
            assert (result.topic, result.status) == ("T", "sent")
            await broker_has(admin, "T", sent.message_id, 2)
            [again] = await admin.resend([letter])
            assert again.status == "already sent"

            _, second = await admin.messages_by_id("T", sent.message_id)
            assert (second.body, second.tag, second.keys) == (b"x" * 30_000, "a", ["k"])
            assert second.properties["color"] == "blue"
            assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID"} & second.properties.keys()

    run(main())


async def broker_has(admin: Admin, topic: str, unique_id: str, count: int) -> None:
    """Return when the index has the messages, a few ms after they were stored."""
    for _ in range(1_000):
        if len(await admin.messages_by_id(topic, unique_id)) >= count:
            return
    raise AssertionError(f"the index does not have {count} messages")


async def until_quarantined(admin: Admin, count: int) -> None:
    """Wait until the quarantine has messages."""
    quarantined = 0
    async with asyncio.timeout(TIMEOUT_S):
        while quarantined < count:  # each look is a request, meanwhile the broker delivers
            pages = admin.undelivered(UndeliveredSearch())
            quarantined = sum([len(page.items) async for _, _, page in pages])


def test_a_dead_letter_of_pops_is_sent_again_without_their_group(run: Run, tmp_path: Path) -> None:
    """Brokers from 5.4 on name the group in the retries of pops."""

    async def main() -> None:
        keys = small(tmp_path, embeddedNamesrvEnable="true", embeddedNamesrvPort="0")
        async with (
            running(keys) as (broker, remote),
            Admin(broker.namesrv_address) as admin,
        ):
            await admin.create_group("g")
            await remote.send("T", b"x", UNIQ_KEY="u", ORIGIN_GROUP="g")
            await make_dead_letter(admin, "g", "T")
            await admin.resend(await letters_of(admin))
            await broker_has(admin, "T", "u", 2)
            _, copy = await admin.messages_by_id("T", "u")
            assert "ORIGIN_GROUP" not in copy.properties

    run(main())
