"""Brokers that go away in the middle of a call, and replicas that are read instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from duemq.client import (
    Admin,
    Client,
    ClientError,
    ConsumeFrom,
    ConsumerSettings,
    Message,
    MessageQueue,
    NotSent,
    PendingDecisions,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Unreachable,
)
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from recurring_schedules.definition import Definition
from tests.support.encoded_records import encode_record
from tests.support.scripted_server import reply, route_to, scripted

Run = Callable[..., Any]
Api = Callable[[Client], Awaitable[object]]
WAIT_S = 30
HOST = (bytes((127, 0, 0, 1)), 10911)
FAST = ConsumerSettings(consume_from=ConsumeFrom.FIRST, commit_s=0.01, rebalance_s=0.05)
QUEUE = MessageQueue("T", "", 0)
NOW = datetime.now(UTC)
TOPIC = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
CALLS: dict[str, Api] = {
    "send": lambda client: Producer(client=client).send(Message("T", b"x")),
    "batch": lambda client: Producer(client=client).send_batch([Message("T", b"x")]),
    "pull": lambda client: PullConsumer(client=client, group="g").pull(QUEUE, 0, wait_s=9),
    "commit": lambda client: PullConsumer(client=client, group="g").commit(QUEUE, 1),
    "committed": lambda client: PullConsumer(client=client, group="g").committed(QUEUE),
    "min offset": lambda client: PullConsumer(client=client, group="g").min_offset(QUEUE),
    "max offset": lambda client: PullConsumer(client=client, group="g").max_offset(QUEUE),
    "offset at": lambda client: PullConsumer(client=client, group="g").offset_at(QUEUE, NOW),
    "cancel": lambda client: PendingDecisions(client=client).cancel(keys=["k"], topic="T"),
    "move": lambda client: PendingDecisions(client=client).move(NOW, keys=["k"], topic="T"),
    "topics": lambda client: Admin(client=client).topics(),
    "groups": lambda client: Admin(client=client).groups(),
    "message": lambda client: Admin(client=client).messages_by_id("T", "1"),
    "schedule": lambda client: Admin(client=client).create_schedule(
        Definition(name="s", topic="T", cron="0 0 * * *")
    ),
    "migration": lambda client: Admin(client=client).migrate(client.broker, "start", levels=[4]),
}


@pytest.mark.parametrize("api", CALLS.values(), ids=list(CALLS))
def test_a_broker_that_hangs_up_in_a_call_ends_it(run: Run, api: Api) -> None:
    def script(request: Request) -> bytes | None:
        if request.code == RequestCode.GET_TOPIC_CONFIG:
            return reply(request, Response(body=json.dumps(TOPIC).encode()))
        return None

    async def main() -> None:
        async with scripted(script) as address, Client(broker=address) as client:
            await client.route("T")
            with pytest.raises(ClientError) as lost:
                async with asyncio.timeout(WAIT_S):
                    await api(client)
            assert isinstance(lost.value, NotSent | Unreachable)
            assert address in str(lost.value)

    run(main())


def test_a_send_after_a_failed_one_uses_the_next_master(run: Run) -> None:
    """The client does not keep the route of a lost master for 30 s."""

    def store(request: Request) -> bytes:
        return reply(request, Response(fields={"msgId": "1", "queueId": "0", "queueOffset": "7"}))

    async def main() -> None:
        async with scripted(lambda _: None) as lost, scripted(store) as next_master:
            masters = [lost, lost, next_master]

            def namesrv(request: Request) -> bytes:
                return reply(request, route_to(masters.pop(0) if len(masters) > 1 else masters[0]))

            async with (
                scripted(namesrv) as address,
                Producer(address, retries=0) as producer,
            ):
                for _ in range(2):
                    with pytest.raises(NotSent):
                        await producer.send(Message("T", b"x"))
                assert (await producer.send(Message("T", b"x"))).queue_offset == 7

    run(main())


@pytest.mark.parametrize("has_master", [True, False], ids=["suggested", "without a master"])
def test_a_push_consumer_reads_from_a_replica(run: Run, has_master: bool) -> None:
    received = asyncio.Event()
    record = encode_record(
        topic="T",
        body=b"from the replica",
        queue_id=0,
        queue_offset=0,
        phys_offset=0,
        born_ms=0,
        born_host=HOST,
        store_ms=0,
        store_host=HOST,
        property_text=b"",
    )

    def answer(request: Request, of_replica: bool) -> bytes:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return reply(request, Response(body=json.dumps({"consumerIdList": ids}).encode()))
        if request.code == RequestCode.PULL_MESSAGE:
            offset = int(request.fields["queueOffset"])
            fields = {"minOffset": "0", "maxOffset": "1", "suggestWhichBrokerId": "1"}
            if of_replica and offset == 0:
                return reply(request, Response(0, None, fields | {"nextBeginOffset": "1"}, record))
            fields |= {"nextBeginOffset": str(offset)}
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
            return reply(request, Response(code, None, fields))
        return reply(request, Response(0, None, {"offset": "0"}))

    async def handle(message: ReceivedMessage) -> None:
        assert message.body == b"from the replica"
        received.set()

    async def main() -> None:
        async with (
            scripted(lambda request: answer(request, False)) as master,
            scripted(lambda request: answer(request, True)) as replica,
        ):
            members = {"1": replica} | ({"0": master} if has_master else {})
            route = json.loads(bytes(route_to("").body))
            route["brokerDatas"][0]["brokerAddrs"] = members
            response = Response(body=json.dumps(route).encode())

            def namesrv(request: Request) -> bytes:
                if request.fields.get("topic") == "T":
                    return reply(request, response)
                return reply(request, Response(ResponseCode.TOPIC_NOT_EXIST))

            async with scripted(namesrv) as address:
                consumer = PushConsumer(address, group="g", settings=FAST)
                ids.append(consumer.client.client_id)
                consumer.subscribe("T", handle)
                async with consumer, asyncio.timeout(WAIT_S):
                    await received.wait()

    ids: list[str] = []
    run(main())
