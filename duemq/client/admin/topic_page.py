"""Pages of the messages of a topic at one broker, queue by queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from duemq.client.client import Client
from duemq.client.errors import NoRoute
from duemq.client.message import MessageQueue, ReceivedMessage
from duemq.client.pull_consumer import PullConsumer

READER_GROUP: Final = "TOOLS_CONSUMER"  # every broker has it. MixAll.TOOLS_CONSUMER_GROUP
PULLS_MAX: Final = 32  # of one page: a response may have fewer messages than the page
PAGE_BYTES_MAX: Final = 16 << 20  # a page may have one response more than this


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Messages of a topic at one broker.

    Attributes:
        messages: Messages, each with the name of its broker.
        cursor: Cursor of the next page, `QUEUE_OFFSET`; None: this is the last one.
    """

    messages: Sequence[ReceivedMessage]
    cursor: str | None


async def topic_page(
    client: Client,
    topic: str,
    broker: str,
    *,
    cursor: str = "",
    count: int,
    since: datetime | None = None,
) -> TopicPage:
    """Return a page of a topic at one broker; empty if the broker does not have the topic.

    Args:
        broker: Name of the broker; its address, if the client has no name server.
        cursor: `QUEUE_OFFSET`; empty: the first page.
        count: Maximum number of messages; large ones fill a page earlier.
        since: Store time of the first messages, of pages in order; None: all messages.
    Raises:
        ValueError: The cursor is malformed.
        Refused: The broker refused a pull.
        Unreachable: The broker does not respond.
    """
    first_id, _, position = cursor.partition("_")
    offset = int(position or -1)
    consumer = PullConsumer(group=READER_GROUP, client=client)
    try:
        queues = await consumer.queues(topic)
    except NoRoute:
        return TopicPage([], None)
    messages: list[ReceivedMessage] = []
    left_bytes = PAGE_BYTES_MAX
    for queue in queues:
        is_there = bool(client.broker) or queue.broker_name == broker
        if not is_there or queue.queue_id < int(first_id or 0):
            continue
        named = MessageQueue(topic, queue.broker_name or broker, queue.queue_id)
        if since is not None and offset < 0:
            offset = await consumer.offset_at(queue, since)
        offset = max(offset, await consumer.min_offset(queue))
        for _ in range(PULLS_MAX):
            pulled = await consumer.pull(queue, offset, count=count - len(messages))
            messages += [ReceivedMessage(one.record, named) for one in pulled.messages]
            left_bytes -= sum(one.record.total_size for one in pulled.messages)
            is_full = len(messages) >= count or left_bytes <= 0
            is_at_end = pulled.next_offset >= pulled.max_offset
            if is_at_end or is_full or pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
        if not is_at_end:
            return TopicPage(messages, f"{queue.queue_id}_{pulled.next_offset}")
        offset = -1
        if is_full and queue != queues[-1]:
            return TopicPage(messages, f"{queue.queue_id + 1}_")
    return TopicPage(messages, None)
