"""Servers that go away in the middle of a call, send malformed frames, or name other servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.client import (
    ConsumeFrom,
    ConsumerSettings,
    Message,
    NotSent,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Unreachable,
    Unsupported,
)
from duemq.client.client import FIRST_VERSION_5
from duemq.client.message import MessageQueue
from duemq.net import codec
from duemq_common.codes import RequestCode
from duemq_common.errors import RecordUnreadable
from duemq_common.request import Request, Response
from tests.support.free_ports import free_ports
from tests.support.running_broker import running, small
from tests.support.scripted_server import reply, route_to, scripted

Run = Callable[..., Any]
WAIT_S = 30
FAST = ConsumerSettings(consume_from=ConsumeFrom.FIRST, commit_s=0.01, rebalance_s=0.05)


def test_a_broker_that_hangs_up_during_a_send_gets_it_again(run: Run) -> None:
    sends: list[str] = []

    def script(request: Request) -> bytes | None:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            body = b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'
            return reply(request, Response(body=body))
        sends.append(request.fields["i"])
        if len(sends) == 1:
            return None
        return reply(request, Response(fields={"msgId": "1", "queueId": "0", "queueOffset": "0"}))

    async def main() -> None:
        async with scripted(script) as address, Producer(broker=address) as producer:
            sent = await producer.send(Message("T", b"once"))
            assert sent.queue_offset == 0
            assert sends == [sends[0]] * 2  # the same unique id
            assert sent.message_id in sends[0]

    run(main())


@pytest.mark.parametrize("oneway", [False, True])
def test_a_timer_is_not_sent_to_a_broker_that_would_deliver_it_at_once(
    run: Run, oneway: bool
) -> None:
    codes: list[int] = []

    def script(request: Request) -> bytes:
        codes.append(request.code)
        body = b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'
        now = f'"version":{codec.VERSION}'.encode()
        old = b'"version":%d' % (FIRST_VERSION_5 - 1)
        frame = reply(request, Response(body=body))
        assert frame.count(now) == 1
        return frame.replace(now, old)

    async def main() -> None:
        async with scripted(script) as address, Producer(broker=address) as producer:
            message = Message("T", b"body", delay=timedelta(hours=1))
            with pytest.raises(Unsupported, match="older than RocketMQ"):
                await (producer.send_oneway if oneway else producer.send)(message)
            assert not {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE} & {*codes}

    run(main())


@pytest.mark.parametrize("is_woken", [False, True])
def test_a_cancelled_send_gives_its_turn_to_the_next(run: Run, is_woken: bool) -> None:
    """It is cancelled in the turn of the event loop in which the send before it ends."""

    def script(request: Request) -> bytes:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            body = b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'
            return reply(request, Response(body=body))
        return reply(request, Response(fields={"msgId": "1", "queueId": "0", "queueOffset": "0"}))

    async def main() -> None:
        async with (
            scripted(script) as address,
            Producer(broker=address, in_flight_max=1) as producer,
        ):

            async def send_first() -> None:
                await producer.send(Message("T", b"body"))
                second.cancel()  # woken, and cancelled before it continues

            first = asyncio.create_task(send_first())
            second, third = (
                asyncio.create_task(producer.send(Message("T", b"body"))) for _ in range(2)
            )
            await asyncio.sleep(0)  # the first send is in flight, the others wait
            if not is_woken:
                first.cancel()
                second.cancel()
            await asyncio.wait([first, second, third], timeout=WAIT_S)
            assert third.result().status == "stored"
            assert second.cancelled()
            assert first.cancelled() != is_woken

    run(main())


@pytest.mark.parametrize(
    "frame",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00\x00\x00\x10\x00\x00\x00\xffshort header",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x05\x09\x00\x00\x01x",
    ],
)
def test_malformed_frames_end_the_call(run: Run, frame: bytes) -> None:
    async def main() -> None:
        async with (
            scripted(lambda request: frame) as address,
            PullConsumer(broker=address, group="g") as reader,
        ):
            with pytest.raises(Unreachable):
                await reader.queues("T")

    run(main())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"brokerDatas":[1],"queueDatas":[]}', b"{"])
def test_malformed_routes_are_reported(run: Run, body: bytes) -> None:
    async def main() -> None:
        async with (
            scripted(lambda request: reply(request, Response(body=body))) as address,
            PullConsumer(address, group="g") as reader,
        ):
            with pytest.raises(Unreachable, match="cannot be read"):
                await reader.queues("T")

    run(main())


def test_an_unreachable_broker_of_a_name_server_is_named(run: Run) -> None:
    async def main() -> None:
        [port] = free_ports(1)
        broker = f"127.0.0.1:{port}"
        async with (
            scripted(lambda request: reply(request, route_to(broker))) as namesrv,
            Producer(namesrv, retries=1) as producer,
        ):
            with pytest.raises(NotSent, match=broker):
                await producer.send(Message("T", b"body"))

    run(main())


def test_a_consumer_waits_for_the_broker_that_the_name_server_names(
    run: Run, tmp_path: Path
) -> None:
    async def main() -> None:
        _, _, port, _ = free_ports(4)  # VIP is 2 below, replicas 1 above
        broker = f"127.0.0.1:{port}"
        handled = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            handled.set()

        async with (
            scripted(lambda request: reply(request, route_to(broker))) as namesrv,
            PushConsumer(namesrv, group="g", settings=FAST) as consumer,
        ):
            consumer.subscribe("T", handle)
            with pytest.raises(Unreachable):  # as for each turn of the consumer until now
                await consumer.client.connect(broker)
            async with (
                running(small(tmp_path, listenPort=str(port), brokerName="b")),
                Producer(broker=broker) as producer,
            ):
                await producer.send(Message("T", b"body"))
                await asyncio.wait_for(handled.wait(), WAIT_S)

    run(main())


def test_a_broker_that_hangs_up_during_pulls_is_pulled_again(run: Run) -> None:
    """The pull loop neither ends nor floods the broker."""
    pulls = 0
    second = asyncio.Event()

    def script(request: Request) -> bytes | None:
        nonlocal pulls
        if request.code == RequestCode.PULL_MESSAGE:
            pulls += 1
            if pulls > 1:
                second.set()
            return None
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            ids = json.dumps({"consumerIdList": [consumer_id]}).encode()
            return reply(request, Response(body=ids))
        if request.code == RequestCode.GET_TOPIC_CONFIG:
            body = b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'
            return reply(request, Response(body=body))
        return reply(request, Response(fields={"offset": "0"}))

    consumer_id = ""

    async def main() -> None:
        nonlocal consumer_id

        async def handle(message: ReceivedMessage) -> None:
            raise AssertionError("there is no message")

        async with scripted(script) as address:
            consumer = PushConsumer(broker=address, group="g", settings=FAST)
            consumer_id = consumer.client.client_id
            consumer.subscribe("T", handle)
            begin_s = asyncio.get_running_loop().time()
            async with consumer:
                await asyncio.wait_for(second.wait(), WAIT_S)
                assert consumer.queue_count == 1
            seconds = asyncio.get_running_loop().time() - begin_s
            assert pulls <= 2 * (1 + seconds)  # of topic and retry topic, one second apart

    run(main())


def test_a_pull_of_damaged_records_is_refused(run: Run) -> None:
    def script(request: Request) -> bytes | None:
        if request.code == RequestCode.PULL_MESSAGE:
            return reply(
                request, Response(fields={"nextBeginOffset": "1"}, body=b"\x00\x00\x00\x09x")
            )
        body = b'{"readQueueNums":1,"writeQueueNums":1,"perm":6}'
        return reply(request, Response(body=body))

    async def main() -> None:
        async with (
            scripted(script) as address,
            PullConsumer(broker=address, group="g") as reader,
        ):
            with pytest.raises(RecordUnreadable, match="size is 9 bytes"):
                await reader.pull(MessageQueue("T", "", 0), 0)

    run(main())
