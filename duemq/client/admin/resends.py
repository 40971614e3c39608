"""Messages in quarantine and dead letters that are sent again, each once.

    quarantine topic --+--> search --> sent before? --no--> send
    %DLQ%GROUP       --+               queries by unique ids in the topic to send to

DueMQ's brokers are asked and sent to in batches, Apache's message by message.

A message stays where it is when it is sent again. The sent message has its unique id, and a
property that names its record: a later request finds both, and does not send it again. So a run
that ended in the middle can be repeated, and runs at the same time take turns by a lock at the
broker that has the messages (`resend_lock`). Three cases can still send a message twice: a topic
that no longer has the sent message, a restart or failover of the broker with the lock while two
runs send, and at Apache's brokers a repetition within the few ms before the index has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from delayed_delivery.names import REPAIRED
from duemq.client.admin.copies import CopiesAdmin
from duemq.client.admin.messages import QUERY_COUNT, TIME_MS_MAX
from duemq.client.admin.resend_lock import HELD_S, locked
from duemq.client.errors import ClientError, NotSent, Unreachable
from duemq.client.message import Message
from duemq.client.producer import Producer
from duemq_common.topics import DLQ_PREFIX, QUARANTINE_TOPIC, RETRY_PREFIX
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record

COMPRESSED: Final = 0x701  # bits of sysFlag: the body is compressed, and how
CONCURRENT_MAX: Final = 32  # messages that are sent at the same time, but for batches
BATCH_COUNT: Final = 64
BATCH_BYTES_MAX: Final = 1 << 20
SHARDING_KEY: Final = "__SHARDINGKEY"
PRODUCER_GROUP: Final = "DUEMQ_PRODUCER"
SHARED_ID: Final = f"the broker does not return all messages with its id, at most {QUERY_COUNT}"


class ResendStatus(StrEnum):
    """Result of sending a message again."""

    SENT = "sent"
    WOULD_SEND = "would be sent"
    SENT_BEFORE = "already sent"
    NO_TOPIC = "no topic"
    UNREADABLE = "unreadable"
    REFUSED = "refused"
    NO_RESPONSE = "no response"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredMessage:
    """Message in quarantine, or dead letter.

    Attributes:
        mark: Property of a message that was sent again, with the offset message id of the record.
        removed: Properties that the message does not keep when it is sent again.
        broker: Name of its broker.
        record: Record of the topic that has it now.
        topic: Topic that it could not reach, or could not be consumed from; empty if unknown.
        group: Consumer group; empty if the message was not for one.
        original: Record to send; None if it cannot be read.
    """

    mark: ClassVar[str]
    removed: ClassVar[frozenset[str]]

    broker: str
    record: Record
    topic: str
    group: str
    original: Record | None

    @property
    def name(self) -> str:
        """Broker and offset in the topic that has the message, as `BROKER/17`."""
        return f"{self.broker}/{self.record.queue_offset}"

    @property
    def offset_message_id(self) -> str:
        """Offset message id of the record of the topic that has the message."""
        return encode_offset_id(*self.record.store_host, self.record.phys_offset)

    @property
    def unique_id(self) -> str:
        """Unique id of the message, else the offset message id."""
        return self.record.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def repaired(self) -> str:
        """Value of REPAIRED in the copy of `duemq send --from`; empty: it sends none."""
        return ""

    @property
    def names(self) -> set[str]:
        """Texts that select the message: `BROKER/17`, its unique id."""
        return {self.name, self.unique_id}


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
        return DLQ_PREFIX + self.letters_of if self.letters_of else QUARANTINE_TOPIC

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


@dataclass(slots=True)
class _PlannedResend:
    """Message that is to be sent again to a topic.

    Attributes:
        result: Result; None: not yet.
    """

    item: UndeliveredMessage
    topic: str
    result: Resent | None = None

    def end(self, status: ResendStatus, remark: str = "") -> None:
        """Set the result."""
        self.result = Resent(self.item, self.topic, status, remark)


class ResendsAdmin(CopiesAdmin):
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
        attempts = [_PlannedResend(item, options.topic or item.topic) for item in items]
        sources: dict[tuple[str, str], list[_PlannedResend]] = {}
        for one in attempts:
            if one.item.original is None:
                one.end(ResendStatus.UNREADABLE)
            elif not one.topic:
                one.end(ResendStatus.NO_TOPIC)
            else:
                source = one.item.broker, one.item.record.topic
                sources.setdefault(source, []).append(one)
        once = Producer(client=self.client, group=PRODUCER_GROUP, retries=0, compressed_from=0)
        async with once as producer:
            for (broker, topic), group in sources.items():
                if dry_run:
                    await self._send_group(None, group, options.without)
                    continue
                with _ended_by_errors(group):
                    async with locked(self.client, broker, topic):
                        await self._send_group(producer, group, options.without)
        return [one.result for one in attempts if one.result is not None]

    async def _send_group(
        self,
        producer: Producer | None,
        attempts: Sequence[_PlannedResend],
        without: frozenset[str],
    ) -> None:
        """Send the messages that were not sent before; without a producer, only check them."""
        groups: dict[tuple[str, str], list[_PlannedResend]] = {}
        for one in attempts:
            groups.setdefault((one.topic, one.item.mark), []).append(one)
        for (topic, mark), group in groups.items():
            with _ended_by_errors(group):
                has_batches = await self._check(topic, mark, group)
                if producer is None:
                    _end_all(group, ResendStatus.WOULD_SEND)
                    continue
                left = [one for one in group if one.result is None]
                await _send_all(producer, left, without, has_batches=has_batches)

    async def _check(self, topic: str, mark: str, attempts: Sequence[_PlannedResend]) -> bool:
        """End the attempts that need no send.

        Returns:
            Whether the brokers of the topic give each message of a batch its unique id.
        Raises:
            ClientError: It is not known which messages were sent before.
        """
        route = await self.client.fetch_route(topic)
        if route is None:  # the send creates the topic or is refused
            return False
        unique_ids = [one.item.unique_id for one in attempts]
        marks, has_batches = await self.marks_of(route, mark, unique_ids)
        if any(one.item.repaired for one in attempts):
            repaired, _ = await self.marks_of(route, REPAIRED, unique_ids)
            for one, offsets in zip(attempts, repaired, strict=True):
                if offsets is not None and one.item.repaired in offsets:
                    one.end(ResendStatus.SENT_BEFORE)
        for one, values in zip(attempts, marks, strict=True):
            if one.result is None and values is None:
                one.end(ResendStatus.REFUSED, SHARED_ID)
            elif values is not None and one.item.offset_message_id in values:
                one.end(ResendStatus.SENT_BEFORE)
        return has_batches and not topic.startswith(RETRY_PREFIX)


@contextmanager
def _ended_by_errors(attempts: Sequence[_PlannedResend]) -> Iterator[None]:
    """End the attempts without a result if the block cannot send them."""
    try:
        yield
    except TimeoutError:
        _end_all(attempts, ResendStatus.NO_RESPONSE, f"no response within {HELD_S:.0f} s")
    except Unreachable as error:
        _end_all(attempts, ResendStatus.NO_RESPONSE, f"not sent: {error}")
    except ClientError as error:
        _end_all(attempts, ResendStatus.REFUSED, str(error))


def _end_all(attempts: Sequence[_PlannedResend], status: ResendStatus, remark: str = "") -> None:
    """Set the result of the attempts that have none."""
    for one in attempts:
        if one.result is None:
            one.end(status, remark)


async def _send_all(
    producer: Producer,
    attempts: Sequence[_PlannedResend],
    without: frozenset[str],
    *,
    has_batches: bool,
) -> None:
    """Send messages of one topic, those that can be in a batch in batches."""
    batches: list[list[_PlannedResend]] = []
    singles: list[_PlannedResend] = []
    size = BATCH_BYTES_MAX
    for one in attempts:
        original = one.item.original
        assert original is not None
        record_bytes = original.total_size
        if not has_batches or original.sys_flag & COMPRESSED or SHARDING_KEY in original.properties:
            singles.append(one)
            continue
        if size + record_bytes > BATCH_BYTES_MAX or len(batches[-1]) == BATCH_COUNT:
            batches.append([])
            size = 0
        batches[-1].append(one)
        size += record_bytes
    sends = [_send_batch(producer, batch, without) for batch in batches]
    sends += [_send_part(producer, part, without) for part in _parts(singles)]
    await asyncio.gather(*sends)


def _parts(attempts: Sequence[_PlannedResend]) -> list[Sequence[_PlannedResend]]:
    return [attempts[first::CONCURRENT_MAX] for first in range(min(CONCURRENT_MAX, len(attempts)))]


async def _send_batch(
    producer: Producer, attempts: Sequence[_PlannedResend], without: frozenset[str]
) -> None:
    """Send messages in one request; if it is refused, one by one."""
    try:
        pairs = [_copy_of(one, without) for one in attempts]
        messages, properties = zip(*pairs, strict=True)
        await producer.send_batch_with(messages, properties)
    except NotSent as error:
        for one in attempts:
            one.end(ResendStatus.NO_RESPONSE, str(error))
    except (ClientError, ValueError):
        await _send_part(producer, attempts, without)
    else:
        for one in attempts:
            one.end(ResendStatus.SENT)


async def _send_part(
    producer: Producer, attempts: Sequence[_PlannedResend], without: frozenset[str]
) -> None:
    """Send messages one after the other."""
    for one in attempts:
        assert one.item.original is not None
        flags = one.item.original.sys_flag & COMPRESSED
        try:
            message, properties = _copy_of(one, without)
            await producer.send_with(message, properties, sys_flag=flags)
        except NotSent as error:  # a later request finds out whether it was stored
            one.end(ResendStatus.NO_RESPONSE, str(error))
        except (ClientError, ValueError) as error:
            one.end(ResendStatus.REFUSED, str(error))
        else:
            one.end(ResendStatus.SENT)


def _copy_of(attempt: _PlannedResend, without: frozenset[str]) -> tuple[Message, dict[str, str]]:
    """Return the message to send, with its body as it is, and its properties.

    Raises:
        ValueError: The message cannot be sent.
    """
    item, original = attempt.item, attempt.item.original
    assert original is not None
    removed = item.removed | without
    properties = {name: value for name, value in original.properties.items() if name not in removed}
    properties[item.mark] = item.offset_message_id
    message = Message(
        attempt.topic,
        original.body,
        sharding_key=properties.get(SHARDING_KEY, ""),
        flag=original.flag,
        message_id=item.unique_id,
    )
    return message, properties
