"""Producer and pull consumer against a broker in the same process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duemq.client import (
    Client,
    Message,
    MessageQueue,
    NotSent,
    Producer,
    PullConsumer,
    Refused,
    Unreachable,
)
from duemq.client.message import milliseconds
from duemq.client.routes import TopicRoute
from duemq_common.codes import ResponseCode
from duemq_common.request import Response
from tests.support.free_ports import free_ports
from tests.support.running_broker import TIMEOUT_S, running, small

Run = Callable[..., Any]
WAIT_S = 20.0
IMPORT = """
import resource, sys
from duemq import Message, Producer, PullConsumer
assert not {"numpy", "numba"} & sys.modules.keys(), "the client imports NumPy"
"""


def test_a_sent_message_is_pulled(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as consumer,
        ):
            sent = await producer.send(
                Message("T", b"body", tag="a", keys=["k1", "k2"], properties={"color": "blue"})
            )
            [queue] = await consumer.queues("T")
            assert sent.queue == queue
            pulled = await consumer.pull(queue, 0)
            [message] = pulled.messages
            assert (message.body, message.tag, message.keys) == (b"body", "a", ["k1", "k2"])
            assert message.properties["color"] == "blue"
            assert message.message_id == sent.message_id
            assert message.offset_message_id == sent.offset_message_id
            assert (pulled.next_offset, pulled.max_offset) == (1, 1)
            await consumer.commit(queue, 1)
            assert await consumer.committed(queue) == 1

    run(main())


def test_a_filter_of_tags_selects_messages(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as consumer,
        ):
            for tag in ("a", "b", "c"):
                await producer.send(Message("T", tag.encode(), tag=tag))
            [queue] = await consumer.queues("T")
            pulled = await consumer.pull(queue, 0, only="a || c")
            assert [message.body for message in pulled.messages] == [b"a", b"c"]

    run(main())


def test_a_long_body_is_compressed_and_read_again(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as consumer,
        ):
            await producer.send(Message("T", b"x" * 30_000))
            [queue] = await consumer.queues("T")
            [message] = (await consumer.pull(queue, 0)).messages
            assert len(message.record.body) < 1_000
            assert message.body == b"x" * 30_000

    run(main())


def test_a_priority_selects_the_queue(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
            PullConsumer(broker=broker.address, group="g") as consumer,
        ):
            await broker.parts.topics.ensure("T", queues=4, perm=6)
            for priority in (3, 0, 9):
                sent = await producer.send(Message("T", b"body", priority=priority))
                queue = sent.queue
                assert queue.queue_id == min(priority, 3)
                pulled = await consumer.pull(queue, sent.queue_offset)
                assert pulled.messages[0].priority == priority
            sent = await producer.send(Message("T", b"body"))
            pulled = await consumer.pull(sent.queue, sent.queue_offset)
            assert pulled.messages[0].priority is None
            with pytest.raises(ValueError, match="priorities"):
                await producer.send_batch([Message("T", b"body", priority=1)])

    run(main())


def test_a_broker_that_cannot_be_reached_is_named(run: Run) -> None:
    async def main() -> None:
        [port] = free_ports(1)
        async with Producer(broker=f"127.0.0.1:{port}", retries=1) as producer:
            message = Message("T", b"body")
            with pytest.raises(NotSent, match=rf"2 attempts: 127.0.0.1:{port} does not respond"):
                await producer.send(message)

    run(main())


def test_a_refusal_for_good_is_not_repeated(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,
        ):
            with pytest.raises(Refused, match="has a character outside"):
                await producer.send(Message("bad topic", b"body"))

    run(main())


@pytest.mark.parametrize(
    ("brokers", "code", "pauses_s"),
    [
        ("a", ResponseCode.SYSTEM_BUSY, [0.1, 0.2]),
        ("a", ResponseCode.SERVICE_NOT_AVAILABLE, [0.1, 0.2]),
        ("a", ResponseCode.NO_PERMISSION, []),
        ("ab", ResponseCode.SYSTEM_BUSY, [0.2]),
        ("abc", ResponseCode.SYSTEM_BUSY, []),
    ],
)
def test_a_busy_broker_has_a_pause_before_it_gets_a_message_again(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    brokers: str,
    code: ResponseCode,
    pauses_s: list[float],
) -> None:
    """A broker that was busy for a short time refused all attempts, which were made at once."""
    attempts, pauses = list[str](), list[float]()

    async def route(*_: object) -> TopicRoute:
        return TopicRoute("T", {}, tuple(MessageQueue("T", each, 0) for each in brokers), ())

    async def call(*_: object) -> Response:
        return Response(code, "not now")

    async def connect(producer: Producer, queue: MessageQueue, *_: object) -> Any:
        attempts.append(queue.broker_name)
        return SimpleNamespace(call=call)

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    async def main() -> None:
        producer = Producer(broker="127.0.0.1:1")
        with monkeypatch.context() as patch:
            patch.setattr(Client, "route", route)
            patch.setattr(Producer, "_connect", connect)
            patch.setattr(asyncio, "sleep", sleep)
            with pytest.raises(NotSent, match="3 attempts"):
                await producer.send(Message("T", b""))
        await producer.close()

    run(main())
    assert (sorted(attempts), pauses) == (sorted((brokers * 3)[:3]), pauses_s)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"topic": ""}, "the topic is empty"),
        ({"delay": timedelta(seconds=-1)}, "is negative"),
        ({"deliver_at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"level": -1}, "levels begin at 1"),
        ({"level": 1, "delay": timedelta(1)}, "exclude each other"),
        ({"priority": -1}, "is not a number from 0"),
        ({"priority": 1, "sharding_key": "k"}, "exclude each other"),
        ({"properties": {"DELAY": "3"}}, "DELAY is set by the client"),
        ({"properties": {"ORIGIN_GROUP": "g"}}, "ORIGIN_GROUP is set by the client"),
        ({"properties": {"__LITE_TOPIC": "l"}}, "__LITE_TOPIC is set by the client"),
    ],
)
def test_bad_messages_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Message(**({"topic": "T"} | values))


@pytest.mark.parametrize("values", [{"tag": "a\x01b"}, {"properties": {"a\x02": "b"}}])
def test_separators_in_properties_are_refused(values: dict[str, Any]) -> None:
    message = Message("T", message_id="1", **values)
    with pytest.raises(ValueError, match="0x01 or 0x02"):
        message.property_text({})


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="2030-01-01T00:00:00 has no time zone"):
        milliseconds(datetime(2030, 1, 1))  # noqa: DTZ001


def test_due_times_are_rounded_up() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert milliseconds(epoch + timedelta(microseconds=1)) == 1
    assert milliseconds(epoch + timedelta(milliseconds=1)) == 1
    message = Message("T", delay=timedelta(microseconds=1_001), message_id="1")
    assert "TIMER_DELAY_MS\x012\x02" in message.property_text({})


def test_the_import_needs_no_numpy() -> None:
    subprocess.run([sys.executable, "-c", IMPORT], check=True)


def test_a_send_behind_others_has_an_outcome_when_the_producer_closes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def route(*_: object) -> TopicRoute:
            return TopicRoute("T", {}, (MessageQueue("T", "b", 0),), ())

        async def lose(*_: object) -> None:
            await released.wait()
            raise Unreachable("the broker is away")

        monkeypatch.setattr(Client, "route", route)
        monkeypatch.setattr(Producer, "_connect", lose)
        producer = Producer(broker="127.0.0.1:1", in_flight_max=1, retries=0)
        first = asyncio.create_task(producer.send(Message("T", b"")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        second = asyncio.create_task(producer.send(Message("T", b"")))
        await asyncio.sleep(0)
        released.set()
        await closing
        for send in (first, second):
            with pytest.raises(NotSent):
                await asyncio.wait_for(send, WAIT_S)

    run(main())
