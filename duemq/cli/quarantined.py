"""Records of the quarantine topic: the message in each, and sending it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.cli.messages import PRODUCER_GROUP, body_text, producer_of, time_text
from duemq.cli.options import Target
from duemq.cli.output import (
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from duemq.client.client import Client
from duemq.client.message import Message
from duemq.client.pull_consumer import PullConsumer
from duemq_common.errors import RecordUnreadable, UsageError
from message_store.log.record import Record, decode_record
from recurring_schedules.names import OCCURRENCE_NAMES
from timer_store.names import STALE_NAMES

COMPRESSED: Final = 0x701  # bits of sysFlag: the body is compressed, and how
BROKERS_PROPERTIES: Final = (
    "REAL_TOPIC",
    "REAL_QID",
    "DELAY",
    "DELAy",
    "1ST_POP_TIME",
    "POP_CK",
    "TRAN_MSG",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    *STALE_NAMES,
    *OCCURRENCE_NAMES,
)
"""Properties that would delay or redirect the message again."""


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

    def plain(self) -> dict[str, object]:
        """Return the record as plain data."""
        original = self.original
        return {
            "broker": self.broker,
            "offset": self.record.queue_offset,
            "stored": time_text(self.record.store_ms),
            "topic": self.topic,
            "reason": self.reason,
            "detail": self.detail,
            "group": self.record.properties.get("DUEMQ_GROUP", ""),
            "unique_key": self.record.properties.get("UNIQ_KEY", ""),
            "body": None if original is None else body_text(original.body),
        }


def parsed(broker: str, record: Record) -> Quarantined:
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


def summary(item: Quarantined) -> str:
    """Return a quarantined message as text: why, for which topic, its body."""
    body = "the record cannot be read" if item.original is None else body_text(item.original.body)
    return f"{item.reason}: {item.detail}  topic {item.topic or 'unknown'}  {body}"


def list_quarantined(topic: str, count: int, target: Target) -> None:
    """Print the messages in quarantine, oldest first."""
    asyncio.run(_list(topic, count, target))


async def _list(topic: str, count: int, target: Target) -> None:
    async with target.client() as client:
        items = [item async for item in _quarantined(client) if topic in ("", item.topic)]
    shown = items[:count] if count else items
    if target.as_json:
        print_json([item.plain() for item in shown])
        return
    rows = [
        (
            f"{item.broker}/{item.record.queue_offset}",
            time_text(item.record.store_ms),
            item.topic or "-",
            printable(f"{item.reason}: {item.detail}"),
            item.record.properties.get("UNIQ_KEY", "-"),
        )
        for item in shown
    ]
    columns = ("offset", "since", "topic", "reason", "unique key")
    title = f"{len(items)} {plural(len(items), 'message')} in quarantine"
    title += f", the first {len(shown)}:" if len(shown) < len(items) else ""
    print_table(title, columns, rows, optional=("unique key", "since"))


async def _quarantined(client: Client) -> AsyncIterator[Quarantined]:
    """Yield all records of the quarantine topic, broker by broker."""
    consumer = PullConsumer(client=client, group=PRODUCER_GROUP)
    for queue in await consumer.queues(QUARANTINE_TOPIC):
        offset = await consumer.min_offset(queue)
        while messages := (await consumer.pull(queue, offset)).messages:
            for message in messages:
                yield parsed(queue.broker_name or client.broker, message.record)
            offset = messages[-1].queue_offset + 1


def send_quarantined(
    offsets: Sequence[str], topic: str, without: Sequence[str], target: Target, *, dry_run: bool
) -> None:
    """Send the messages at offsets of the quarantine topic again.

    Args:
        offsets: As listed: BROKER/OFFSET, or the number alone.
        topic: Topic to send to; empty: the topic of the message.
        without: Properties that the message loses.
    """
    if not offsets:
        raise UsageError("no messages selected: give --offset as `duemq quarantine list` shows it")
    asyncio.run(_send_all(set(offsets), topic, without, target, dry_run))


async def _send_all(
    offsets: set[str], topic: str, without: Sequence[str], target: Target, dry_run: bool
) -> None:
    async with target.client() as client:
        items = [item async for item in _quarantined(client) if _names(item) & offsets]
        missing = offsets - {name for item in items for name in _names(item)}
        if missing:
            shown = ", ".join(sorted(missing))
            raise UsageError(f"no message in quarantine has the offset {shown}")
        for item in items:
            where = topic or item.topic
            if item.original is None or not where:
                reason = "its record cannot be read" if item.original is None else "give --topic"
                raise UsageError(f"message {item.record.queue_offset} cannot be sent: {reason}")
        for item in items:
            assert item.original is not None
            status = "not sent: --dry-run"
            if not dry_run:
                status = await _send(client, item.original, topic or item.topic, without)
            _print_sent(item, topic or item.topic, status, target)


def _names(item: Quarantined) -> set[str]:
    offset = str(item.record.queue_offset)
    return {offset, f"{item.broker}/{offset}"}


def _print_sent(item: Quarantined, topic: str, status: str, target: Target) -> None:
    if target.as_json:
        print_json_line(item.plain() | {"topic": topic, "status": status})
        return
    print(printable(f"{item.record.queue_offset} to {topic}: {status}  {summary(item)}"))


async def _send(client: Client, record: Record, topic: str, without: Sequence[str]) -> str:
    """Send a message again, without delay; return its status.

    Raises:
        Refused: The broker refuses it.
    """
    omitted = {*BROKERS_PROPERTIES, *without}
    properties = {name: value for name, value in record.properties.items() if name not in omitted}
    message = Message(
        topic, record.body, flag=record.flag, message_id=properties.get("UNIQ_KEY", "")
    )
    async with producer_of(client) as producer:
        sent = await producer.send_with(message, properties, sys_flag=record.sys_flag & COMPRESSED)
    return sent.status
