"""`duemq.client` with DueMQ and Apache's brokers: each test is the same for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.auth.signature import Credentials
from duemq.client import (
    ConsumeFrom,
    ConsumerSettings,
    Message,
    MessageQueue,
    NotSent,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Refused,
    Retry,
    Unsupported,
    sql,
)
from duemq.client.message import time_of
from duemq_common.codes import RequestCode
from tests.interop.apache import Apache
from tests.interop.peers import KEYS
from tests.support import accounts
from tests.support.certificates import trusting_context
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.server import BROKER_NAME, Server
from tests.support.wait_until import now_ms

APACHE = ("4.9.7", "5.3.3", "5.5.1")
N = 40
WAIT_S = 120
LEVEL_1_S = 1.0
FAST = ConsumerSettings(
    consume_from=ConsumeFrom.FIRST,
    commit_s=0.2,
    rebalance_s=2,
    retry_s=0.05,
    poll_s=2,
    retries_max=16,
)
Run = Callable[..., Any]


@pytest.fixture(
    scope="module",
    params=["duemq", extended("4.9.7"), extended("5.3.3"), extended("5.5.1")],
)
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A broker of one kind with its name server."""
    home = tmp_path_factory.mktemp("peer")
    kind = str(request.param)
    with DueMQ(home, keys=KEYS) if kind == "duemq" else Apache(kind, home, keys=KEYS) as server:
        yield server


@pytest.fixture
def run() -> Run:
    """Run a coroutine in an event loop of its own."""
    return asyncio.run


@pytest.fixture
def topic(name: str, peer: Server) -> str:
    """Topic of the test on the peer, with four queues."""
    peer.create_topic(name)
    return name


class Handler:
    """Handler that collects the messages it gets."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._changed = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        self._changed.set()

    @property
    def bodies(self) -> list[bytes]:
        """Distinct bodies, sorted."""
        return sorted({message.body for message in self.messages})

    async def until(self, probe: Callable[[], bool]) -> None:
        """Wait until `probe()` is true after a message."""
        async with asyncio.timeout(WAIT_S):
            while not probe():
                self._changed.clear()
                await self._changed.wait()

    async def wait_for(self, bodies: list[bytes]) -> None:
        """Wait for the bodies, which have no others among them."""
        await self.until(lambda: len(self.bodies) >= len(bodies))
        assert self.bodies == sorted(bodies)


async def until_committed(push: PushConsumer, topic: str, count: int) -> None:
    """Wait until the group of a consumer has committed this many messages of a topic."""
    reader = PullConsumer(group=push.group, client=push.client)
    queues = await reader.queues(topic)
    async with asyncio.timeout(WAIT_S):
        while sum([await reader.committed(queue) or 0 for queue in queues]) < count:
            pass  # each round is a request to the broker


async def until(probe: Callable[[], bool]) -> None:
    """Wait until `probe()` is true."""
    async with asyncio.timeout(WAIT_S):
        while not probe():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def send(peer: Server, topic: str, bodies: list[bytes], **more: Any) -> None:
    async with Producer(peer.namesrv_address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more))


def numbered(count: int, prefix: str = "") -> list[bytes]:
    return sorted(f"{prefix}{number:04d}".encode() for number in range(count))


def consumer(
    peer: Server, topic: str, handler: Any, settings: ConsumerSettings = FAST, **more: Any
) -> PushConsumer:
    push = PushConsumer(peer.namesrv_address, group=f"g-{topic}", settings=settings)
    push.subscribe(topic, handler, **more)
    return push


def test_sent_messages_are_pulled(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        async with (
            Producer(peer.namesrv_address) as producer,
            PullConsumer(peer.namesrv_address, group=f"g-{topic}") as reader,
        ):
            sent = await producer.send(
                Message(topic, b"x" * 9_000, tag="a", keys=["k"], properties={"color": "blue"})
            )
            [message] = (await reader.pull(sent.queue, sent.queue_offset)).messages
            assert (message.body, message.tag, message.keys) == (b"x" * 9_000, "a", ["k"])
            assert message.properties["color"] == "blue"
            assert message.message_id == sent.message_id
            assert message.offset_message_id == sent.offset_message_id
            batch = await producer.send_batch([Message(topic, body) for body in numbered(3)])
            pulled = await reader.pull(batch[0].queue, batch[0].queue_offset, wait_s=1)
            assert [each.body for each in pulled.messages] == numbered(3)

    run(main())


def test_pushed_messages_are_committed(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        for prefix in ("first", "second"):
            bodies = numbered(N, prefix)
            await send(peer, topic, bodies)
            handler = Handler()
            async with consumer(peer, topic, handler):
                await handler.wait_for(bodies)
            assert len(handler.messages) == N

    run(main())


def test_filters_select_messages(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        async with Producer(peer.namesrv_address) as producer:
            for number, tag in enumerate("abc" * 4):
                properties = {"amount": str(number)}
                await producer.send(Message(topic, tag.encode(), tag=tag, properties=properties))
        by_tag, by_property = Handler(), Handler()
        async with (
            consumer(peer, topic, by_tag, only="a || c"),
            PushConsumer(peer.namesrv_address, group=f"sql-{topic}", settings=FAST) as other,
        ):
            other.subscribe(topic, by_property, only=sql("amount BETWEEN 3 AND 8"))
            await by_tag.until(lambda: len(by_tag.messages) == 8)
            await by_property.until(lambda: len(by_property.messages) == 6)
        assert by_tag.bodies == [b"a", b"c"]
        amounts = sorted(int(each.properties["amount"]) for each in by_property.messages)
        assert amounts == list(range(3, 9))

    run(main())


def test_delayed_messages_arrive_when_due(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        handler = Handler()
        async with consumer(peer, topic, handler), Producer(peer.namesrv_address) as producer:
            started = time_of(now_ms())  # whole ms, as the times of brokers
            timers = [
                Message(topic, b"delay", delay=timedelta(seconds=1)),
                Message(topic, b"due", deliver_at=started + timedelta(seconds=1)),
            ]
            bodies = [b"level"]
            await producer.send(Message(topic, b"level", level=1))
            for timer in timers:
                if peer.has_timers:
                    await producer.send(timer)
                    bodies.append(timer.body)
                else:
                    with pytest.raises(Unsupported, match="older than RocketMQ 5"):
                        await producer.send(timer)
            await handler.wait_for(bodies)
        for message in handler.messages:
            assert message.stored_at >= started + timedelta(seconds=LEVEL_1_S)

    run(main())


def test_failed_messages_are_retried_and_then_dead_letters(
    run: Run, peer: Server, topic: str
) -> None:
    async def main() -> None:
        attempts: list[tuple[int, str]] = []

        async def fail(message: ReceivedMessage) -> None:
            attempts.append((message.delivery_attempt, message.topic))
            raise Retry(level=1)

        await send(peer, topic, [b"bad"])
        async with (
            consumer(peer, topic, fail, replace(FAST, retries_max=2)),
            PullConsumer(peer.namesrv_address, group="tools") as reader,
        ):
            await until(lambda: len(attempts) == 3)
            name = f"%DLQ%g-{topic}"
            async with asyncio.timeout(WAIT_S):
                while await reader.client.fetch_route(name) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                [queue] = await reader.queues(name)
                while not (pulled := await reader.pull(queue, 0, wait_s=1)).messages:
                    continue
        assert attempts == [(1, topic), (2, topic), (3, topic)]
        assert [message.body for message in pulled.messages] == [b"bad"]

    run(main())


def test_ordered_queues_are_handled_in_order(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        handled: dict[str, list[int]] = {"x": [], "y": [], "z": []}

        async def handle(message: ReceivedMessage) -> None:
            number = int(message.body)
            if number % 7 == 3 and message.delivery_attempt == 1:
                raise Retry
            handled[message.properties["__SHARDINGKEY"]].append(number)

        settings = replace(FAST, ordered=True)
        async with consumer(peer, topic, handle, settings) as first:
            for key in handled:
                await send(peer, topic, numbered(20), sharding_key=key)
            async with consumer(peer, topic, handle, settings) as second:
                await until(lambda: first.queue_count == second.queue_count == 2)
                await until(lambda: all(len(set(each)) == 20 for each in handled.values()))
        for numbers in handled.values():
            assert list(dict.fromkeys(numbers)) == list(range(20))

    run(main())


def test_broadcasts_reach_all_consumers(run: Run, peer: Server, topic: str, tmp_path: Path) -> None:
    async def main() -> None:
        handlers = [Handler(), Handler()]
        bodies = numbered(N)
        async with AsyncExitStack() as stack:
            for number, handler in enumerate(handlers):
                settings = replace(FAST, offsets_file=tmp_path / f"{number}.json")
                await stack.enter_async_context(consumer(peer, topic, handler, settings))
            await send(peer, topic, bodies)
            for handler in handlers:
                await handler.wait_for(bodies)

    run(main())


def test_consumers_share_the_queues(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        handler = Handler()
        async with consumer(peer, topic, handler) as first:
            await until(lambda: first.queue_count == 4)
            async with consumer(peer, topic, handler) as second:
                await until(lambda: first.queue_count == second.queue_count == 2)
                bodies = numbered(N)
                await send(peer, topic, bodies)
                await handler.wait_for(bodies)
            await until(lambda: first.queue_count == 4)
            more = numbered(N, "more")
            await send(peer, topic, more)
            await handler.wait_for([*bodies, *more])

    run(main())


def test_reset_offsets_deliver_again(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        bodies = numbered(N)
        await send(peer, topic, bodies)
        handler = Handler()
        async with consumer(peer, topic, handler) as push:
            await handler.wait_for(bodies)
            await until_committed(push, topic, N)  # 4.9.7 resets committed offsets only
            fields = {
                "topic": topic,
                "group": f"g-{topic}",
                "timestamp": 0,
                "isForce": True,
                "queueId": -1,
            }
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            await push.client.ask(peer.broker_address, code, fields, timeout_s=WAIT_S)
            await handler.until(lambda: len(handler.messages) >= 2 * N)
        assert handler.bodies == bodies

    run(main())


def test_the_broker_shows_and_uses_a_consumer(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        handler = Handler()
        async with consumer(peer, topic, handler) as push:
            await send(peer, topic, [b"one"])
            await handler.wait_for([b"one"])
            client, group = push.client, f"g-{topic}"
            fields = {"consumerGroup": group, "clientId": client.client_id, "jstackEnable": False}
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            state = await client.ask(peer.broker_address, code, fields, timeout_s=WAIT_S)
            assert f'"brokerName":"{BROKER_NAME}"'.encode() in bytes(state.body)
            [message] = handler.messages
            fields = {
                "consumerGroup": group,
                "clientId": client.client_id,
                "msgId": message.offset_message_id,
                "topic": topic,
            }
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            result = await client.ask(peer.broker_address, code, fields, timeout_s=WAIT_S)
            assert json.loads(bytes(result.body))["consumeResult"] == "CR_SUCCESS"
            assert [each.body for each in handler.messages] == [b"one", b"one"]

    run(main())


def test_sends_and_pushes_by_tls(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        address, tls = peer.namesrv_address, trusting_context()
        handler = Handler()
        async with (
            Producer(address, tls=tls) as producer,
            PushConsumer(address, group=f"g-{topic}", tls=tls, settings=FAST) as push,
        ):
            push.subscribe(topic, handler)
            await producer.send(Message(topic, b"secret"))
            await handler.wait_for([b"secret"])

    run(main())


@pytest.mark.parametrize(
    "peer", ["duemq", *(extended(version) for version in APACHE)], indirect=True
)
def test_consumers_survive_a_kill_of_the_broker(run: Run, peer: Server, topic: str) -> None:
    async def main() -> None:
        handler = Handler()
        async with consumer(peer, topic, handler) as push:
            before, after = numbered(N, "before"), numbered(N, "after")
            await send(peer, topic, before)
            await handler.wait_for(before)
            await asyncio.to_thread(peer.kill)
            await asyncio.to_thread(peer.start)
            await send(peer, topic, after)
            await handler.wait_for([*before, *after])
            await until(lambda: push.queue_count == 4)
        reader = PullConsumer(peer.namesrv_address, group=f"g-{topic}")
        async with reader:
            for queue_id in range(4):
                queue = MessageQueue(topic, BROKER_NAME, queue_id)
                assert await reader.committed(queue) == await reader.max_offset(queue)

    run(main())


@pytest.mark.parametrize("kind", ["duemq", extended("5.3.3")])
def test_accounts_sign_their_requests(run: Run, tmp_path: Path, kind: str) -> None:
    server = (
        DueMQ(tmp_path, keys=accounts.KEYS)
        if kind == "duemq"
        else Apache(kind, tmp_path, keys=accounts.KEYS | accounts.PROVIDERS, heap="512m")
    )

    async def main() -> None:
        address, handler = server.namesrv_address, Handler()
        fields = topic_fields("T")
        async with Producer(address, credentials=accounts.ROOT) as producer:
            code = RequestCode.UPDATE_AND_CREATE_TOPIC
            await producer.client.ask(server.broker_address, code, fields, timeout_s=WAIT_S)
            async with PushConsumer(
                address, group="g", credentials=accounts.ROOT, settings=FAST
            ) as push:
                push.subscribe("T", handler)
                await producer.send(Message("T", b"signed"))
                await handler.wait_for([b"signed"])
        wrong = Credentials(accounts.ROOT.access_key, "wrong")
        async with Producer(server.namesrv_address, credentials=wrong, retries=0) as producer:
            with pytest.raises((Refused, NotSent)):
                await producer.send(Message("T", b"refused"))

    with server:
        run(main())


def topic_fields(topic: str) -> dict[str, object]:
    """Return the header of a request that creates a topic."""
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
