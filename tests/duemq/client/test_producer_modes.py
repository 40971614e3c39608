"""Batches, one-way sends, transactions, requests with a reply, decisions about pending messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.client import (
    Client,
    LocalTransactionState,
    Message,
    NoReply,
    PendingDecisions,
    Producer,
    PullConsumer,
    ReceivedMessage,
    Requester,
    TransactionProducer,
    Unreachable,
    send_reply,
)
from tests.support.running_broker import running, small

Run = Callable[..., Any]
WAIT_S = 20.0


async def never(_: ReceivedMessage) -> LocalTransactionState:
    raise AssertionError("the broker asks for an outcome that it has")


async def bodies(consumer: PullConsumer, topic: str, *, wait_s: float = 0) -> list[bytes]:
    [queue] = await consumer.queues(topic)
    return [each.body for each in (await consumer.pull(queue, 0, wait_s=wait_s)).messages]


def test_a_batch_is_in_order_in_one_queue(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            Producer(client=client) as producer,
            PullConsumer(client=client, group="g") as consumer,
        ):
            messages = [Message("T", bytes([number]), tag=f"t{number}") for number in range(5)]
            results = await producer.send_batch(messages)
            assert [each.queue_offset for each in results] == [0, 1, 2, 3, 4]
            [queue] = await consumer.queues("T")
            received = (await consumer.pull(queue, 0)).messages
            assert [(each.body, each.tag) for each in received] == [
                (message.body, message.tag) for message in messages
            ]
            assert [each.offset_message_id for each in received] == [
                each.offset_message_id for each in results
            ]

    run(main())


def test_a_oneway_send_is_stored(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            Producer(client=client) as producer,
            PullConsumer(client=client, group="g") as consumer,
        ):
            await producer.send(Message("T", b"first"))
            await producer.send_oneway(Message("T", b"second"))
            [queue] = await consumer.queues("T")
            pulled = await consumer.pull(queue, 1, wait_s=WAIT_S)
            assert [each.body for each in pulled.messages] == [b"second"]

    run(main())


@pytest.mark.parametrize(
    "messages",
    [
        [Message("A"), Message("B")],
        [Message("A", level=1)],
        [Message("A", delay=timedelta(seconds=1))],
    ],
)
def test_a_batch_that_no_broker_takes_is_refused(run: Run, messages: list[Message]) -> None:
    async def main() -> None:
        async with Producer(broker="127.0.0.1:1") as producer:
            with pytest.raises(ValueError, match="batch"):
                await producer.send_batch(messages)

    run(main())


@pytest.mark.parametrize("outcome", [LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK])
def test_a_transaction_decides_about_its_message(
    run: Run, tmp_path: Path, outcome: LocalTransactionState
) -> None:
    async def local(_: Message) -> LocalTransactionState:
        return outcome

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            TransactionProducer(client=client, check=never) as producer,
            PullConsumer(client=client, group="g") as consumer,
        ):
            await producer.send(Message("T", b"plain"))
            await producer.send_in_transaction(Message("T", b"half"), local)
            if outcome is LocalTransactionState.ROLLBACK:
                await producer.send(Message("T", b"after"))
            [queue] = await consumer.queues("T")
            pulled = await consumer.pull(queue, 1, wait_s=WAIT_S)
            expected = b"half" if outcome is LocalTransactionState.COMMIT else b"after"
            assert [each.body for each in pulled.messages] == [expected]

    run(main())


def test_the_broker_asks_for_an_unknown_outcome(run: Run, tmp_path: Path) -> None:
    questions: list[str] = []

    async def local(_: Message) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def check(message: ReceivedMessage) -> LocalTransactionState:
        questions.append(message.message_id)
        return LocalTransactionState.COMMIT

    async def main() -> None:
        changes = {"transactionTimeOut": "1", "transactionCheckInterval": "200"}
        async with (
            running(small(tmp_path, **changes)) as (broker, _),
            Client(broker=broker.address) as client,
            TransactionProducer(client=client, check=check) as producer,
            PullConsumer(client=client, group="g") as consumer,
        ):
            await producer.send(Message("T", b"plain"))
            sent = await producer.send_in_transaction(Message("T", b"half"), local)
            [queue] = await consumer.queues("T")
            pulled = await consumer.pull(queue, 1, wait_s=WAIT_S)
            assert [each.body for each in pulled.messages] == [b"half"]
            assert {*questions} == {sent.message_id}  # repeated while there is no answer

    run(main())


@pytest.mark.parametrize("fails", [False, True], ids=["committed", "failed"])
def test_an_outcome_that_cannot_be_sent_does_not_replace_that_of_the_transaction(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The broker asks for it later."""

    async def lose(*_: object) -> None:
        raise Unreachable("the broker is away")

    async def local(_: Message) -> LocalTransactionState:
        monkeypatch.setattr(Client, "notify", lose)
        if fails:
            raise LookupError("no such account")
        return LocalTransactionState.COMMIT

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            TransactionProducer(client=client, check=never) as producer,
        ):
            await producer.send(Message("T", b"first"))
            with pytest.raises(LookupError) if fails else nullcontext():
                await producer.send_in_transaction(Message("T", b"half"), local)

    run(main())


def test_a_failed_transaction_is_rolled_back(run: Run, tmp_path: Path) -> None:
    async def local(_: Message) -> LocalTransactionState:
        raise LookupError("no such order")

    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            TransactionProducer(client=client, check=never) as producer,
            PullConsumer(client=client, group="g") as consumer,
        ):
            await producer.send(Message("T", b"plain"))
            with pytest.raises(LookupError, match="no such order"):
                await producer.send_in_transaction(Message("T", b"half"), local)
            await producer.send(Message("T", b"after"))
            assert await bodies(consumer, "T") == [b"plain", b"after"]

    run(main())


def test_a_reply_reaches_its_requester(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Requester(broker=broker.address) as requester,
            Client(broker=broker.address) as client,
            Producer(client=client) as replier,
            PullConsumer(client=client, group="g") as consumer,
        ):
            await requester.send(Message("T", b"creates the topic"))
            [queue] = await consumer.queues("T")

            async def answer() -> None:
                pulled = await consumer.pull(queue, 1, wait_s=WAIT_S)
                [request] = pulled.messages
                await send_reply(replier, request, b"re: " + request.body)

            answering = asyncio.create_task(answer())
            reply = await requester.request(Message("T", b"question"), timeout_s=WAIT_S)
            await answering
            assert reply.body == b"re: question"

    run(main())


def test_a_request_without_a_reply_fails(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Requester(broker=broker.address) as requester,
        ):
            with pytest.raises(NoReply, match="no reply to"):
                await requester.request(Message("T", b"question"), timeout_s=0.1)

    run(main())


def test_a_pending_message_is_cancelled_moved_and_fired(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            Client(broker=broker.address) as client,
            Producer(client=client) as producer,
            PendingDecisions(client=client) as pending,
            PullConsumer(client=client, group="g") as consumer,
        ):
            due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
            sent = [
                await producer.send(Message("T", name.encode(), deliver_at=due, keys=name))
                for name in ("cancelled", "moved", "fired")
            ]
            [result] = await pending.cancel(handles=[sent[0].recall_handle])
            assert result.verdict == "done"
            [result] = await pending.move(due + timedelta(hours=1), ids=[sent[1].message_id])
            assert result.due_ms == round((due + timedelta(hours=1)).timestamp() * 1_000)
            [result] = await pending.fire(keys=["fired"], topic="T")
            assert result.verdict == "done"
            assert await bodies(consumer, "T", wait_s=WAIT_S) == [b"fired"]

    run(main())
