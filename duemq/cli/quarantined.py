"""Records of the quarantine topic: the message in each, and sending it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.cli.confirmation import confirm
from duemq.cli.messages import PRODUCER_GROUP, body_text, producer_of, time_text
from duemq.cli.options import Target
from duemq.cli.output import (
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from duemq.client.admin import Admin
from duemq.client.client import Client
from duemq.client.errors import NoRoute
from duemq.client.message import Message
from duemq.client.pull_consumer import PullConsumer
from duemq_common.errors import RecordUnreadable, UsageError
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record, decode_record
from recurring_schedules.names import OCCURRENCE_NAMES
from timer_store.names import STALE_NAMES

COMPRESSED: Final = 0x701  # bits of sysFlag: the body is compressed, and how
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
    def offset_message_id(self) -> str:
        """Offset message id of the record of the quarantine topic."""
        return encode_offset_id(*self.record.store_host, self.record.phys_offset)

    @property
    def unique_id(self) -> str:
        """Unique id of the message, else the offset message id."""
        return self.record.properties.get("UNIQ_KEY") or self.offset_message_id

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


def show_quarantined(name: str, target: Target) -> None:
    """Print a message in quarantine: reason, properties and body."""
    for item in asyncio.run(_selected({name}, "", target)):
        plain = item.plain()
        plain["properties"] = {} if item.original is None else dict(item.original.properties)
        if target.as_json:
            print_json_line(plain)
            continue
        rows = [(key.replace("_", " "), _text(value)) for key, value in plain.items()]
        print_table("", ("", ""), [row for row in rows if row[1]])


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} = {text}" for key, text in value.items())
    return "" if value is None else str(value)


async def _selected(names: Collection[str], from_topic: str, target: Target) -> list[Quarantined]:
    """Return messages in quarantine by name; without names, all.

    Raises:
        UsageError: No message has one of the names.
    """
    async with target.client() as client:
        items = [
            item
            async for item in _quarantined(client)
            if (not names or _names(item) & set(names)) and from_topic in ("", item.topic)
        ]
    missing = set(names) - {name for item in items for name in _names(item)}
    if missing:
        raise UsageError(f"no message in quarantine is {', '.join(sorted(missing))}")
    return items


def resend_quarantined(
    names: Sequence[str],
    from_topic: str,
    topic: str,
    without: Sequence[str],
    target: Target,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send messages in quarantine again, each once, and print the result of each.

    Args:
        names: Offsets as listed, or unique ids; none: all.
        topic: Topic to send to; empty: the topic of the message.
        without: Properties that the message loses.
    """
    items = asyncio.run(_selected(names, from_topic, target))
    if items and not (dry_run or yes or names):
        effect = f"{len(items):,} {plural(len(items), 'message')}"
        confirm(f"Send {effect} again", f"quarantine resend sends {effect}")
    asyncio.run(_send_all(items, topic, without, target, dry_run=dry_run))


async def _send_all(
    items: Sequence[Quarantined],
    topic: str,
    without: Sequence[str],
    target: Target,
    *,
    dry_run: bool,
) -> None:
    async with target.client() as client, Admin(client=client) as admin:
        for item in items:
            where = topic or item.topic
            if item.original is None:
                status = "not sent: its record cannot be read"
            elif not where:
                status = "not sent: its topic is unknown, give --topic"
            elif await _was_sent(admin, item, where):
                status = "already sent"
            elif dry_run:
                status = "not sent: --dry-run"
            else:
                status = await _send(client, item, item.original, where, without)
            _print_sent(item, where, status, target)


async def _was_sent(admin: Admin, item: Quarantined, topic: str) -> bool:
    """Return whether an earlier command sent the message to a topic."""
    try:
        copies = await admin.messages_by_id(topic, item.unique_id)
    except NoRoute:  # the send creates the topic or is refused
        return False
    return any(copy.properties.get(RESENT) == item.offset_message_id for copy in copies)


def _names(item: Quarantined) -> set[str]:
    offset = str(item.record.queue_offset)
    return {offset, f"{item.broker}/{offset}", item.unique_id}


def _print_sent(item: Quarantined, topic: str, status: str, target: Target) -> None:
    if target.as_json:
        print_json_line(item.plain() | {"topic": topic, "status": status})
        return
    print(printable(f"{item.record.queue_offset} to {topic}: {status}  {summary(item)}"))


async def _send(
    client: Client, item: Quarantined, record: Record, topic: str, without: Sequence[str]
) -> str:
    """Send a message again, without delay; return its status.

    Raises:
        Refused: The broker refuses it.
    """
    omitted = {*BROKERS_PROPERTIES, *without}
    properties = {name: value for name, value in record.properties.items() if name not in omitted}
    properties[RESENT] = item.offset_message_id
    message = Message(topic, record.body, flag=record.flag, message_id=item.unique_id)
    async with producer_of(client) as producer:
        sent = await producer.send_with(message, properties, sys_flag=record.sys_flag & COMPRESSED)
    return sent.status
