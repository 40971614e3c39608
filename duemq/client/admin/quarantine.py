"""Messages in quarantine: list, describe, send again.

A message stays in quarantine when it is sent again. The sent message has the same unique id and a
property that names its record in quarantine, so that the second request does not send it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.client.admin.dead_letters import PRODUCER_GROUP, DeadLettersAdmin
from duemq.client.admin.topic_page import topic_page
from duemq.client.errors import NoRoute
from duemq.client.message import Message
from duemq.client.producer import Producer
from duemq_common.errors import RecordUnreadable
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record, decode_record
from recurring_schedules.names import OCCURRENCE_NAMES
from timer_store.names import STALE_NAMES

COMPRESSED: Final = 0x701  # bits of sysFlag: the body is compressed, and how
PAGE_COUNT: Final = 1_000
RESENT: Final = "DUEMQ_QUARANTINED"
"""Property of a message that was sent again: offset message id of its record in quarantine."""
BROKERS_PROPERTIES: Final = (
    "REAL_TOPIC",
    "REAL_QID",
    "DELAY",
    "DELAy",
    "1ST_POP_TIME",
    "ORIGIN_GROUP",
    "POP_CK",
    "TRAN_MSG",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    *STALE_NAMES,
    *OCCURRENCE_NAMES,
)
"""Properties that would delay or redirect the message again."""
UNREADABLE: Final = "not sent: its record cannot be read"
NO_TOPIC: Final = "not sent: its topic is unknown, give --topic"
EXISTS, DRY_RUN = "already sent", "not sent: --dry-run"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One record of the quarantine topic.

    Attributes:
        topic: Topic that the message could not reach; empty if unknown.
        original: The pending or popped record; None if it cannot be decoded.
    """

    broker: str
    record: Record
    topic: str
    reason: str
    detail: str
    original: Record | None

    @property
    def name(self) -> str:
        """Broker and offset in the quarantine topic, as `BROKER/17`."""
        return f"{self.broker}/{self.record.queue_offset}"

    @property
    def offset_message_id(self) -> str:
        """Offset message id of the record of the quarantine topic."""
        return encode_offset_id(*self.record.store_host, self.record.phys_offset)

    @property
    def unique_id(self) -> str:
        """Unique id of the message, else the offset message id."""
        return self.record.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def names(self) -> set[str]:
        """Texts that select the message: `17`, `BROKER/17`, its unique id."""
        return {str(self.record.queue_offset), self.name, self.unique_id}


@dataclass(frozen=True, slots=True)
class QuarantinePage:
    """Messages in quarantine at one broker, oldest first.

    Attributes:
        cursor: Cursor of the next page; None: this is the last one.
    """

    messages: Sequence[Quarantined]
    cursor: str | None


class QuarantineAdmin(DeadLettersAdmin):
    """Requests about messages in quarantine."""

    async def quarantine_page(
        self, broker: str, *, cursor: str = "", count: int = PAGE_COUNT
    ) -> QuarantinePage:
        """Return a page of the messages in quarantine at one broker.

        Raises:
            Unreachable: The broker does not respond.
        """
        page = await topic_page(self.client, QUARANTINE_TOPIC, broker, cursor=cursor, count=count)
        items = [quarantined(one.queue.broker_name, one.record) for one in page.messages]
        return QuarantinePage(items, page.cursor)

    async def quarantined(self, names: Collection[str] = ()) -> AsyncIterator[Quarantined]:
        """Yield messages in quarantine, broker by broker, oldest first.

        Args:
            names: `17`, `BROKER/17` or unique ids; none: all.
        """
        for master in await self.masters():
            cursor: str | None = ""
            while cursor is not None:
                page = await self.quarantine_page(master.name, cursor=cursor)
                for item in page.messages:
                    if not names or item.names & set(names):
                        yield item
                cursor = page.cursor

    async def resend_quarantined(
        self,
        item: Quarantined,
        *,
        topic: str = "",
        without: Sequence[str] = (),
        dry_run: bool = False,
    ) -> str:
        """Send a message in quarantine again, without delay, once; return the status.

        Args:
            topic: Topic to send to; empty: the topic of the message.
            without: Properties that the message loses.
            dry_run: Whether to return the effect without any change.
        Raises:
            Refused: The broker refuses the message.
        """
        target = topic or item.topic
        if item.original is None:
            return UNREADABLE
        if not target:
            return NO_TOPIC
        if await self._was_sent(item, target):
            return EXISTS
        if dry_run:
            return DRY_RUN
        omitted = {*BROKERS_PROPERTIES, *without}
        properties = {
            name: value for name, value in item.original.properties.items() if name not in omitted
        }
        properties[RESENT] = item.offset_message_id
        original = item.original
        message = Message(target, original.body, flag=original.flag, message_id=item.unique_id)
        as_it_is = Producer(client=self.client, group=PRODUCER_GROUP, retries=0, compressed_from=0)
        async with as_it_is as producer:
            sent = await producer.send_with(
                message, properties, sys_flag=original.sys_flag & COMPRESSED
            )
        return sent.status

    async def _was_sent(self, item: Quarantined, topic: str) -> bool:
        """Return whether an earlier request sent the message to a topic."""
        try:
            copies = await self.messages_by_id(topic, item.unique_id)
        except NoRoute:  # the send creates the topic or is refused
            return False
        return any(copy.properties.get(RESENT) == item.offset_message_id for copy in copies)


def quarantined(broker: str, record: Record) -> Quarantined:
    """Return a record of the quarantine topic with the message in it."""
    properties, original = record.properties, None
    with suppress(RecordUnreadable):
        original = decode_record(memoryview(record.body), 0, check_crc=False)
    return Quarantined(
        broker,
        record,
        properties.get("DUEMQ_TOPIC", ""),
        properties.get("DUEMQ_REASON", ""),
        properties.get("DUEMQ_DETAIL", ""),
        original,
    )
