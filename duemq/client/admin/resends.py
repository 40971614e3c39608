"""Messages in quarantine and dead letters that are sent again, each once.

    quarantine topic --+--> search --> sent before? --no--> send
    %DLQ%GROUP       --+               query by unique id in the topic to send to

A message stays where it is when it is sent again. The sent message has its unique id, and a
property that names its record: a later request finds both, and does not send it again. So a run
that ended in the middle can be repeated. Three cases can still send a message twice: two runs at
the same time, a repetition within the few ms before the index has the sent message, and a topic
that no longer has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.client.admin.messages import TIME_MS_MAX, MessagesAdmin
from duemq.client.admin.topics import DEAD_LETTER_PREFIX
from duemq.client.errors import ClientError, NoRoute, NotSent
from duemq.client.message import Message
from duemq.client.producer import Producer
from message_store.log.record import Record

COMPRESSED: Final = 0x701  # bits of sysFlag: the body is compressed, and how
CONCURRENT_MAX: Final = 32  # messages that are sent at the same time
PRODUCER_GROUP: Final = "DUEMQ_PRODUCER"


class ResendStatus(StrEnum):
    """Result of sending a message again."""

    SENT = "sent"
    WOULD_SEND = "would be sent"
    SENT_BEFORE = "already sent"
    NO_TOPIC = "no topic"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    NO_RESPONSE = "no response"


class UndeliveredMessage(Protocol):
    """Message in quarantine, or dead letter.

    Attributes:
        broker: Name of its broker.
        record: Record of the topic that has it now.
        topic: Topic that it could not reach, or could not be consumed from; empty if unknown.
        group: Consumer group; empty if the message was not for one.
        mark: Property of a message that was sent again, with the offset message id of the record.
        original: Record to send; None if it cannot be read.
    """

    @property
    def broker(self) -> str: ...
    @property
    def record(self) -> Record: ...
    @property
    def topic(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def mark(self) -> str: ...
    @property
    def original(self) -> Record | None: ...
    @property
    def removed(self) -> frozenset[str]:
        """Properties that the message does not keep when it is sent again."""

    @property
    def unique_id(self) -> str: ...
    @property
    def offset_message_id(self) -> str: ...
    @property
    def names(self) -> set[str]:
        """Texts that select the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredSearch:
    """Search for undelivered messages.

    Attributes:
        letters_of: Group whose dead letters are searched; empty: the quarantine.
        names: Names of messages; none: all.
        topic: Topic of the message; empty: all.
        group: Consumer group of the message; empty: all.
        from_ms, until_ms: Only messages stored in [from_ms, until_ms).
    """

    letters_of: str = ""
    names: frozenset[str] = frozenset()
    topic: str = ""
    group: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX

    @property
    def store_topic(self) -> str:
        """Topic that has the messages."""
        return DEAD_LETTER_PREFIX + self.letters_of if self.letters_of else QUARANTINE_TOPIC

    def selects(self, item: UndeliveredMessage) -> bool:
        """Return whether the search has a message."""
        return (
            self.from_ms <= item.record.store_ms < self.until_ms
            and self.topic in ("", item.topic)
            and self.group in ("", item.group)
            and (not self.names or not self.names.isdisjoint(item.names))
        )


@dataclass(frozen=True, slots=True)
class Resent:
    """Result of sending a message again.

    Attributes:
        topic: Topic to send to.
        remark: Reason of a refusal, or of a missing response.
    """

    item: UndeliveredMessage
    topic: str
    status: ResendStatus
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendOptions:
    """How to send messages again.

    Attributes:
        topic: Topic to send to; empty: that of the message. With `%RETRY%GROUP`, only the group
            gets it.
        without: Properties that the messages lose.
    """

    topic: str = ""
    without: frozenset[str] = frozenset()


AS_IT_IS: Final = ResendOptions()


class ResendsAdmin(MessagesAdmin):
    """Requests that send undelivered messages again."""

    async def resend(
        self,
        items: Sequence[UndeliveredMessage],
        options: ResendOptions = AS_IT_IS,
        *,
        dry_run: bool = False,
    ) -> list[Resent]:
        """Send messages again, without delay and each once; return the result of each.

        All groups that read the topic get the messages.

        Args:
            dry_run: Whether to return the effect without any change.
        """
        results: list[Resent] = []
        once = Producer(client=self.client, group=PRODUCER_GROUP, retries=0, compressed_from=0)
        async with once as producer:
            for first in range(0, len(items), CONCURRENT_MAX):
                part = items[first : first + CONCURRENT_MAX]
                sends = [self._resend(None if dry_run else producer, one, options) for one in part]
                results += await asyncio.gather(*sends)
        return results

    async def _resend(
        self, producer: Producer | None, item: UndeliveredMessage, options: ResendOptions
    ) -> Resent:
        """Send a message; without a producer, return what would be done."""
        topic = options.topic or item.topic
        if item.original is None:
            return Resent(item, topic, ResendStatus.UNREADABLE)
        if not topic:
            return Resent(item, topic, ResendStatus.NO_TOPIC)
        try:
            if await self._was_sent(item, topic):
                return Resent(item, topic, ResendStatus.SENT_BEFORE)
            if producer is None:
                return Resent(item, topic, ResendStatus.WOULD_SEND)
            await _send(producer, item, item.original, topic, options.without)
        except NotSent as error:  # a later request finds out whether it was stored
            return Resent(item, topic, ResendStatus.NO_RESPONSE, str(error))
        except (ClientError, ValueError) as error:
            return Resent(item, topic, ResendStatus.REFUSED, str(error))
        return Resent(item, topic, ResendStatus.SENT)

    async def _was_sent(self, item: UndeliveredMessage, topic: str) -> bool:
        """Return whether an earlier request sent the message to a topic."""
        try:
            copies = await self.messages_by_id(topic, item.unique_id)
        except NoRoute:  # the send creates the topic or is refused
            return False
        return any(copy.properties.get(item.mark) == item.offset_message_id for copy in copies)


async def _send(
    producer: Producer,
    item: UndeliveredMessage,
    original: Record,
    topic: str,
    without: frozenset[str],
) -> None:
    """Send the message with its body as it is."""
    removed = item.removed | without
    properties = {name: value for name, value in original.properties.items() if name not in removed}
    properties[item.mark] = item.offset_message_id
    message = Message(
        topic,
        original.body,
        sharding_key=properties.get("__SHARDINGKEY", ""),
        flag=original.flag,
        message_id=item.unique_id,
    )
    await producer.send_with(message, properties, sys_flag=original.sys_flag & COMPRESSED)
