"""Dead letters of consumer groups: list, describe, send again.

A dead letter stays in its topic when it is sent again. The sent message has the unique id of the
dead letter and a property that names it, so that the second request does not send it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from duemq.client.admin.messages import MessagesAdmin
from duemq.client.admin.topic_page import READER_GROUP, topic_page
from duemq.client.admin.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from duemq.client.errors import NoRoute
from duemq.client.message import RESERVED, Message, MessageQueue, ReceivedMessage
from duemq.client.producer import Producer
from duemq.client.pull_consumer import PullConsumer

PRODUCER_GROUP: Final = "DUEMQ_PRODUCER"
RESENT: Final = "DUEMQ_DEAD_LETTER"
"""Property of a message that was sent again: offset message id of the dead letter."""
SENT, EXISTS, NO_TOPIC, WOULD_SEND = "sent", "already sent", "no topic", "would be sent"
REMOVED: Final = frozenset(
    {
        RESENT,
        "1ST_POP_TIME",
        "DELAy",
        "DLQ_ORIGIN_MESSAGE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DUEMQ_DUE_MS",
        "DUEMQ_SCHEDULE",
        "DUEMQ_SCHEDULE_MANUAL",
        "DUEMQ_SCHEDULE_NEXT",
        "DUEMQ_SCHEDULE_TIME",
        "MAX_RECONSUME_TIMES",
        "ORIGIN_MESSAGE_ID",
        "POP_CK",
        "TIMER_DEQUEUE_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "__STARTDELIVERTIME",
    }
)
"""Properties of deliveries that a message does not keep when it is sent again."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Dead letters of a group.

    Attributes:
        last_stored_at: Time of the last one.
    """

    group: str
    messages: int
    last_stored_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Message that a group could not consume.

    Attributes:
        topic: Topic of the first delivery; empty if it is unknown.
    """

    group: str
    message: ReceivedMessage
    topic: str

    @property
    def name(self) -> str:
        """Broker and offset in the topic of dead letters, as `BROKER/17`."""
        return f"{self.message.queue.broker_name}/{self.message.queue_offset}"


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters of a group at one broker, oldest first.

    Attributes:
        cursor: Cursor of the next page; None: this is the last one.
    """

    letters: Sequence[DeadLetter]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Resent:
    """Result of sending a dead letter again.

    Attributes:
        status: `sent`, `already sent`, `no topic`, or, of a dry run, `would be sent`.
    """

    letter: DeadLetter
    topic: str
    status: str


class DeadLettersAdmin(MessagesAdmin):
    """Requests about dead letters."""

    async def dead_letter_counts(self, *, brokers: Sequence[str] = ()) -> list[DeadLetterCount]:
        """Return the groups that have a topic of dead letters, by name.

        Args:
            brokers: Broker names; none: all.
        """
        counts = []
        for topic in await self.topics(brokers=brokers):
            if not topic.name.startswith(DEAD_LETTER_PREFIX):
                continue
            queues = [
                queue
                for master in await self.masters(list(topic.settings))
                for queue in await self.queue_states(master, topic.name)
            ]
            times = [each.last_stored_at for each in queues if each.last_stored_at]
            group = topic.name.removeprefix(DEAD_LETTER_PREFIX)
            messages = sum(queue.messages for queue in queues)
            counts.append(DeadLetterCount(group, messages, max(times, default=None)))
        return counts

    async def dead_letter_page(
        self, group: str, broker: str, *, cursor: str = "", count: int
    ) -> DeadLetterPage:
        """Return a page of the dead letters of a group at one broker.

        Raises:
            ValueError: The cursor is malformed.
            Unreachable: The broker does not respond.
        """
        topic = DEAD_LETTER_PREFIX + group
        page = await topic_page(self.client, topic, broker, cursor=cursor, count=count)
        letters = [_letter(group, message) for message in page.messages]
        return DeadLetterPage(letters, page.cursor)

    async def dead_letters(
        self,
        group: str,
        *,
        names: Collection[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        count: int = 0,
    ) -> list[DeadLetter]:
        """Return dead letters of a group, oldest first by broker.

        Args:
            names: Unique ids, or `BROKER/OFFSET`; none: all.
            since, until: Range of the store time.
            count: Maximum number; 0: all.
        Raises:
            NoRoute: The group has no topic of dead letters.
        """
        topic = DEAD_LETTER_PREFIX + group
        consumer = PullConsumer(group=READER_GROUP, client=self.client)
        letters: list[DeadLetter] = []
        for queue in await consumer.queues(topic):
            offset = await consumer.min_offset(queue)
            if since is not None:
                offset = max(offset, await consumer.offset_at(queue, since))
            max_offset = await consumer.max_offset(queue)
            while offset < max_offset and not 0 < count <= len(letters):
                pulled = await consumer.pull(queue, offset)
                letters += [
                    letter
                    for letter in self._letters(group, queue, pulled.messages)
                    if (not names or {letter.name, letter.message.message_id} & set(names))
                    and (since is None or letter.message.stored_at >= since)
                    and (until is None or letter.message.stored_at < until)
                ]
                if pulled.next_offset <= offset:
                    break
                offset = pulled.next_offset
        return letters[:count] if count else letters

    def _letters(
        self, group: str, queue: MessageQueue, messages: Iterable[ReceivedMessage]
    ) -> Iterable[DeadLetter]:
        for message in messages:
            named = MessageQueue(
                queue.topic, queue.broker_name or self.client.broker, queue.queue_id
            )
            yield _letter(group, ReceivedMessage(message.record, named))

    async def resend_dead_letters(
        self, letters: Sequence[DeadLetter], *, topic: str = "", dry_run: bool = False
    ) -> list[Resent]:
        """Send dead letters to their topics, with their unique ids, each once.

        All groups that read the topic get the messages. With `%RETRY%GROUP` as `topic`, only the
        group gets them.

        Args:
            topic: Topic to send to; empty: that of the first delivery.
            dry_run: Whether to return the effect without any change.
        Raises:
            NotSent: A message was not stored; those before it were sent.
        """
        results = []
        async with Producer(client=self.client, group=PRODUCER_GROUP) as producer:
            for letter in letters:
                target = topic or letter.topic
                status = WOULD_SEND if dry_run else SENT
                if not target:
                    status = NO_TOPIC
                elif await self._was_resent(letter, target):
                    status = EXISTS
                elif not dry_run:
                    await producer.send(_message(letter, target))
                results.append(Resent(letter, target, status))
        return results

    async def _was_resent(self, letter: DeadLetter, topic: str) -> bool:
        message = letter.message
        try:
            copies = await self.messages_by_id(topic, message.message_id)
        except NoRoute:  # the topic was deleted: the send creates it or is refused
            return False
        name = message.offset_message_id
        return any(copy.properties.get(RESENT) == name for copy in copies)


def _letter(group: str, message: ReceivedMessage) -> DeadLetter:
    properties = message.properties
    origin = properties.get("RETRY_TOPIC") or properties.get("DLQ_ORIGIN_TOPIC", "")
    return DeadLetter(group, message, "" if origin.startswith(RETRY_PREFIX) else origin)


def _message(letter: DeadLetter, topic: str) -> Message:
    received = letter.message
    properties = {
        name: value
        for name, value in received.properties.items()
        if name not in RESERVED and name not in REMOVED
    }
    return Message(
        topic,
        received.body,
        tag=received.tag,
        keys=received.keys,
        properties={**properties, RESENT: received.offset_message_id},
        sharding_key=received.properties.get("__SHARDINGKEY", ""),
        flag=received.record.flag,
        message_id=received.message_id,
    )
