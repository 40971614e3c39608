"""POP over a connection: responses to an Apache client, and the times of redelivery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.pop.names import REVIVE_GROUP, REVIVE_QUEUES, revive_topic
from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from tests.support.pop_client import PopClient, advance, rest, send
from tests.support.running_broker import BrokerClient
from tests.support.stores import put_one

RETRY = "%RETRY%g_T"


def test_acknowledged_messages_are_not_delivered_again(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b")
        found = await client.pop()
        assert [message.body for message in found] == [b"a", b"b"]
        assert await client.pop() == []
        for message in found:
            assert (await client.ack(message)).code == 0
        await advance(broker, clock, 70_000)
        assert await client.pop() == []
        assert broker.store.queue_bounds(RETRY, 0) == (0, 0)

    run_rig(scene)


def test_unacknowledged_messages_are_visible_again_at_the_revive_time(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b", b"c")
        popped_ms = clock.now_ms()
        _, second, _ = await client.pop(invisibleTime=30_000)
        assert (await client.ack(second)).code == 0
        await advance(broker, clock, 29_990)
        assert await client.pop() == []
        await advance(broker, clock, 100, by_ms=5)
        again = await client.pop()
        assert [message.body for message in again] == [b"a", b"c"]
        assert {message.record.reconsume_times for message in again} == {1}
        assert {message.record.topic for message in again} == {"T"}
        assert {message.record.properties["1ST_POP_TIME"] for message in again} == {str(popped_ms)}
        for message in again:
            assert (await client.ack(message)).code == 0
        await advance(broker, clock, 70_000)
        assert await client.pop() == []

    run_rig(scene)


def test_a_partly_stored_revival_continues_with_the_other_messages(
    run_rig: Callable[..., Any],
) -> None:
    """Stored copies are not stored again, and their messages are no longer in flight."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b", b"c")
        await client.pop(invisibleTime=10_000)
        path, figures = broker.parts.put_path, broker.parts.pop.figures
        working, left = path.put, []

        def put(batch: PutBatch) -> None:
            working(batch)
            if batch.count == 3:
                left.append(figures.in_flight("g", "T", 0))
                batch.refuse(1, 14, "disk full")

        path.put = put
        await advance(broker, clock, 10_000)
        assert (left, figures.in_flight("g", "T", 0)) == ([3], 1)
        again = await client.pop()
        path.put = working
        await advance(broker, clock, 2_000)
        assert figures.in_flight("g", "T", 0) == 0
        again += await client.pop()
        assert [message.body for message in again] == [b"a", b"b", b"c", b"b"]
        counts = {labels[-1]: count for labels, count in figures.retries}
        assert counts == {"PUT_OK": 3, "UNKNOWN_ERROR": 1}

    run_rig(scene)


def test_copies_of_many_checkpoints_are_one_append_per_revive_queue(
    run_rig: Callable[..., Any],
) -> None:
    """There are eight revive queues."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        for first in range(0, 40, 2):
            await send(remote, b"%d" % first, b"%d" % (first + 1))
            await client.pop(maxMsgNums=2, invisibleTime=20_000)
        await advance(broker, clock, 19_500)
        appended = []
        broker.store.add_dispatcher(lambda batch: appended.append(batch.count))
        clock.advance(500)
        await rest(broker)
        assert (sum(appended), len(appended)) == (40, 8)
        found = await client.pop() + await client.pop()
        assert sorted(int(each.body) for each in found) == list(range(40))

    run_rig(scene)


def test_a_long_poll_returns_new_and_revived_messages(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        await client.pop(invisibleTime=10_000)
        waiting = asyncio.create_task(client.pop(pollTime=30_000))
        await advance(broker, clock, 9_900)
        assert not waiting.done()
        await advance(broker, clock, 200, by_ms=10)
        assert [message.body for message in await waiting] == [b"a"]
        waiting = asyncio.create_task(client.pop(pollTime=30_000))
        await advance(broker, clock, 1_000)
        await send(remote, b"b")
        assert [message.body for message in await waiting] == [b"b"]

    run_rig(scene)


def test_a_changed_invisible_time_counts_from_now(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b")
        first, _ = await client.pop(invisibleTime=10_000)
        await advance(broker, clock, 9_000)
        response = await client.change(first, 20_000)
        assert response.code == 0
        fields = response.fields
        assert fields.keys() == {"popTime", "invisibleTime", "reviveQid"}
        assert (fields["popTime"], fields["invisibleTime"]) == (str(clock.now_ms()), "20000")
        await advance(broker, clock, 1_100)
        assert [message.body for message in await client.pop()] == [b"b"]
        await advance(broker, clock, 18_800)
        assert await client.pop() == []
        await advance(broker, clock, 200, by_ms=10)
        assert [message.body for message in await client.pop()] == [b"a"]
        late = await client.change(first, 20_000)
        assert (late.code, "expired" in late.remark) == (208, True)

    run_rig(scene)


@pytest.mark.parametrize("suspend", ["false", "true"])
def test_a_suspended_message_returns_without_a_counted_retry(
    run_rig: Callable[..., Any], suspend: str
) -> None:
    """The property with how often it was popped counts only the other retries."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        await advance(broker, clock, 10_100)
        (message,) = await client.pop(invisibleTime=10_000)
        assert message.record.reconsume_times == 1
        for times in range(1, 4):
            assert (await client.change(message, 2_000, suspend=suspend)).code == 0
            await advance(broker, clock, 2_100)
            (message,) = await client.pop(invisibleTime=10_000)
            counted = 1 if suspend == "true" else 1 + times
            assert (message.body, message.record.reconsume_times) == (b"a", counted)
            assert "1ST_POP_TIME" in message.record.properties
        await advance(broker, clock, 10_100)
        (message,) = await client.pop(invisibleTime=10_000)
        assert message.record.reconsume_times == counted + 1

    run_rig(scene)


def test_an_invalid_revive_record_is_skipped(run_rig: Callable[..., Any]) -> None:
    """It hides no later record, and none is read twice."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        topic = revive_topic("DefaultCluster")
        for queue_id in range(REVIVE_QUEUES):
            put_one(broker.store, topic, queue_id, b"{")
        await send(remote, b"a", b"b")
        await client.pop(invisibleTime=10_000)
        await advance(broker, clock, 12_000)
        assert [message.body for message in await client.pop()] == [b"a", b"b"]
        assert broker.store.queue_bounds(RETRY, 0) == (0, 2)
        for queue_id in range(REVIVE_QUEUES):
            _, end = broker.store.queue_bounds(topic, queue_id)
            assert broker.parts.offsets.query(REVIVE_GROUP, topic, queue_id) == end - 1

    run_rig(scene)


def test_an_invisible_time_can_change_in_the_millisecond_of_the_pop(
    run_rig: Callable[..., Any],
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=500)
        response = await client.change(message, 800)
        fields = response.fields
        assert int(fields["popTime"]) + int(fields["invisibleTime"]) == clock.now_ms() + 800
        await advance(broker, clock, 790, by_ms=10)
        assert await client.pop() == []
        await advance(broker, clock, 20, by_ms=5)
        assert [again.body for again in await client.pop()] == [b"a"]

    run_rig(scene)


def test_the_handle_of_a_changed_invisible_time_acknowledges(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        (message,) = await client.pop(invisibleTime=10_000)
        response = await client.change(message, 30_000)
        parts = [str(message.offset), response.fields["popTime"], response.fields["invisibleTime"]]
        parts += [response.fields["reviveQid"], "0", "test", "0", str(message.offset)]
        assert (await client.ack(message, extraInfo=" ".join(parts))).code == 0
        await advance(broker, clock, 60_000)
        assert await client.pop() == []

    run_rig(scene)


def test_messages_of_a_retry_topic_have_handles_of_that_topic(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        for times in range(3):
            (message,) = await client.pop(invisibleTime=10_000)
            assert (message.body, message.record.reconsume_times) == (b"a", times)
            await advance(broker, clock, 10_100)
        (message,) = await client.pop(invisibleTime=10_000)
        assert message.real_topic == RETRY
        assert (await client.ack(message)).code == 0
        await advance(broker, clock, 60_000)
        assert await client.pop() == []

    run_rig(scene)


def test_an_invisible_time_of_0_makes_messages_visible_at_once(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a")
        for times in range(3):
            (message,) = await client.pop(invisibleTime=0)
            assert (message.body, message.record.reconsume_times) == (b"a", times)
            await advance(broker, clock, 10)

    run_rig(scene)


def test_a_receipt_property_of_a_producer_is_replaced(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", POP_CK="0 1 2 3 0 test 0 0", KEYS="k")
        for _ in range(2):
            (message,) = await client.pop(invisibleTime=10_000)
            assert message.handle.split(" ")[1] == str(clock.now_ms())
            assert message.record.properties["KEYS"] == "k"
            await advance(broker, clock, 10_100)

    run_rig(scene)


def test_a_delayed_message_is_visible_again_without_its_delay(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", TIMER_DELAY_MS="100000")
        await send(remote, b"b", TIMER_DELIVER_MS=str(clock.now_ms() + 100_000))
        await advance(broker, clock, 100_000)
        assert len(await client.pop(invisibleTime=10_000)) == 2
        await advance(broker, clock, 10_100)
        assert {message.body for message in await client.pop()} == {b"a", b"b"}

    run_rig(scene)


def test_only_messages_that_pass_the_filter_are_popped(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        for number in range(6):
            await send(remote, b"%d" % number, TAGS="odd" if number % 2 else "even")
        found = await client.pop(exp="odd", expType="TAG", maxMsgNums=2, invisibleTime=10_000)
        assert [message.body for message in found] == [b"1", b"3"]
        assert (await client.ack(found[0])).code == 0
        await advance(broker, clock, 10_100)
        again = await client.pop(exp="odd", expType="TAG")
        assert [message.body for message in again] == [b"5", b"3"]

    run_rig(scene)


def test_only_messages_that_pass_a_sql92_filter_are_popped(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        for size in ("1", "3", "x", "4"):
            await send(remote, size.encode(), size=size)
        found = await client.pop(expType="SQL92", exp="size > 2")
        assert [message.body for message in found] == [b"3", b"4"]
        refused = await client.call(expType="SQL92", exp="size >")
        assert (refused.code, "line 1, column 6" in refused.remark) == (23, True)

    run_rig(scene)


@pytest.mark.parametrize(
    "keys",
    [
        {"timerWheelEnable": "false"},
        {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:1"},
    ],
    ids=["no timers", "replica"],
)
def test_a_broker_without_checkpoints_refuses_pops(
    run_rig: Callable[..., Any], keys: dict[str, str]
) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        response = await client.call()
        assert (response.code, "pop message is forbidden" in response.remark) == (16, True)
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "offset": 0, "extraInfo": "x"}
        assert (await remote.call(200_051, fields)).code == 16
        assert (await remote.call(200_053, fields | {"invisibleTime": 1})).code == 16

    run_rig(scene, **keys)


def test_consecutive_pops_read_each_queue_in_turn(run_rig: Callable[..., Any]) -> None:
    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await broker.parts.topics.ensure("Q", queues=4)
        for queue_id in range(4):
            fields = {
                "producerGroup": "p",
                "topic": "Q",
                "defaultTopic": "TBW102",
                "flag": 0,
                "defaultTopicQueueNums": 4,
                "queueId": queue_id,
                "sysFlag": 0,
                "bornTimestamp": 1,
                "properties": "",
                "reconsumeTimes": 0,
                "unitMode": "false",
            }
            for _ in range(4):
                assert (await remote.call(10, fields, b"x")).code == 0
        for _ in range(4):
            found = [(await client.pop("Q", maxMsgNums=1))[0].queue_id for _ in range(4)]
            assert sorted(found) == [0, 1, 2, 3]

    run_rig(scene)


def test_a_batch_body_of_apaches_client_is_decoded(run_rig: Callable[..., Any]) -> None:
    """Written by Apache 5.3.3's BatchAckMessageRequestBody, with offsets 0 and 3."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        await send(remote, b"a", b"b", b"c", b"d")
        found = await client.pop(invisibleTime=60_000)
        _, pop_ms, _, revive, *_ = found[0].handle.split(" ")
        body = (
            '{"acks":[{"b":"CQ==","c":"g","it":60000,"pt":%s,"q":0,"r":"0","rq":%s,"so":0,'
            '"t":"T"}],"brokerName":"test"}'
        )
        assert (await remote.call(200_151, {}, (body % (pop_ms, revive)).encode())).code == 0
        await advance(broker, clock, 60_100)
        assert [message.body for message in await client.pop()] == [b"b", b"c"]

    run_rig(scene)


@pytest.mark.parametrize(("auto_create", "bodies"), [("true", [b"a"]), ("false", [])])
def test_messages_of_a_group_lost_in_a_kill_are_delivered_again(
    run_rig: Callable[..., Any], auto_create: str, bodies: list[bytes]
) -> None:
    """An auto-created group may not be on the disk yet; Apache's broker creates it again."""

    async def scene(
        broker: Broker, clock: FakeClock, remote: BrokerClient, client: PopClient
    ) -> None:
        assert (await remote.call(200, {}, b'{"groupName":"g"}')).code == 0
        await send(remote, b"a")
        assert [message.body for message in await client.pop(invisibleTime=5_000)] == [b"a"]
        await broker.parts.groups.delete("g")
        await advance(broker, clock, 6_000)
        assert (await remote.call(200, {}, b'{"groupName":"g"}')).code == 0
        assert [message.body for message in await client.pop()] == bodies

    run_rig(scene, autoCreateSubscriptionGroup=auto_create)
