"""Pending messages of a queue, the offset to commit, and limits of pulled messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from duemq.client.message import MessageQueue, ReceivedMessage
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.subscriptions import ConsumerSettings
from message_store.log.record import Record

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, size: int = 100) -> ReceivedMessage:
    host = (b"\x7f\x00\x00\x01", 1)
    record = Record(size, 0, 0, 0, 0, offset, 0, 0, 0, host, 0, host, 0, 0, b"", "T", b"")
    return ReceivedMessage(record, QUEUE)


def process_queue(offset: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, None, offset, None)


@given(st.permutations(range(10)))
def test_the_lowest_offset_that_is_not_handled_is_committed(order: list[int]) -> None:
    queue = process_queue()
    queue.add([message(offset) for offset in range(10)], 12)  # the filter skipped two
    pending = set(range(10))
    for offset in order:
        assert queue.lowest() == min(pending)
        pending.remove(offset)
        assert queue.done(offset) == 100
    assert (queue.lowest(), queue.pending_bytes) == (12, 0)


def test_a_dropped_queue_counts_no_more() -> None:
    limits, queue = FlowLimits(ConsumerSettings()), process_queue()
    messages = [message(0), message(1)]
    limits.add(queue, messages, 2)
    assert (limits.messages, limits.bytes) == (2, 200)
    limits.drop(queue)
    limits.done(queue, messages)
    assert (limits.messages, limits.bytes) == (0, 0)


def test_pulls_resume_when_there_is_room(run: Callable[..., Any]) -> None:
    async def main() -> None:
        settings = ConsumerSettings(queue_messages_max=2, messages_max=3)
        limits, first, second = FlowLimits(settings), process_queue(), process_queue()
        ours, theirs = [message(0), message(1)], [message(0)]
        limits.add(first, ours, 2)
        full = asyncio.create_task(limits.room(first))
        limits.add(second, theirs, 1)
        total = asyncio.create_task(limits.room(second))
        await asyncio.sleep(0)
        assert first.is_waiting
        assert second.is_waiting
        limits.done(first, ours[:1])
        await asyncio.gather(full, total)

    run(main())
