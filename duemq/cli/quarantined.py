"""Records of the quarantine topic: the message in each, and sending it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from delayed_delivery.quarantine import QUARANTINE_TOPIC
from duemq.cli.client import PULL_COUNT, SUBSCRIPTION, Cluster, Queue, pull_fields
from duemq.cli.messages import PRODUCER_GROUP, body_text, put, time_text, writable_queues
from duemq.cli.options import Target
from duemq.cli.output import (
    plural,
    print_json,
    print_json_line,
    print_table,
    printable,
)
from duemq.client.routes import READ, bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, UsageError
from message_store.log.record import Record, decode_record, split_records
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

    queue: Queue
    record: Record
    topic: str
    reason: str
    detail: str
    original: Record | None

    def plain(self) -> dict[str, object]:
        """Return the record as plain data."""
        original = self.original
        return {
            "broker": self.queue.broker_name or self.queue.address,
            "offset": self.record.queue_offset,
            "stored": time_text(self.record.store_ms),
            "topic": self.topic,
            "reason": self.reason,
            "detail": self.detail,
            "group": self.record.properties.get("DUEMQ_GROUP", ""),
            "unique_key": self.record.properties.get("UNIQ_KEY", ""),
            "body": None if original is None else body_text(original.body),
        }


def parsed(queue: Queue, record: Record) -> Quarantined:
    """Return a record of the quarantine topic with the message in it."""
    properties, original = record.properties, None
    with suppress(RecordUnreadable):
        original = decode_record(memoryview(record.body), 0, check_crc=False)
    return Quarantined(
        queue,
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
    async with target.cluster() as cluster:
        items = [item async for item in _quarantined(cluster) if topic in ("", item.topic)]
    shown = items[:count] if count else items
    if target.as_json:
        print_json([item.plain() for item in shown])
        return
    rows = [
        (
            f"{item.queue.broker_name or item.queue.address}/{item.record.queue_offset}",
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


async def _quarantined(cluster: Cluster) -> AsyncIterator[Quarantined]:
    """Yield all records of the quarantine topic, broker by broker."""
    for queue in await cluster.queues(QUARANTINE_TOPIC, permission=READ):
        fields = {"topic": QUARANTINE_TOPIC, "queueId": queue.queue_id}
        bound = await cluster.call(queue.address, RequestCode.GET_MIN_OFFSET, fields)
        offset = int((bound.fields or {})["offset"])
        while records := await _pull(cluster, queue, offset):
            for record in records:
                yield parsed(queue, record)
            offset = records[-1].queue_offset + 1


async def _pull(cluster: Cluster, queue: Queue, offset: int) -> list[Record]:
    fields = pull_fields(
        queue, QUARANTINE_TOPIC, PRODUCER_GROUP, offset, count=PULL_COUNT, sys_flag=SUBSCRIPTION
    )
    response = await cluster.request(queue.address, RequestCode.PULL_MESSAGE, fields)
    if response.code == ResponseCode.SUCCESS:
        return split_records(bytes_of(response))
    if response.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
        return []
    raise RequestError(response.code, response.remark or "the pull was refused")


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
    async with target.cluster() as cluster:
        items = [item async for item in _quarantined(cluster) if _names(item) & offsets]
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
                status = await _send(cluster, item.original, topic or item.topic, without)
            _print_sent(item, topic or item.topic, status, target)


def _names(item: Quarantined) -> set[str]:
    offset = str(item.record.queue_offset)
    return {offset, f"{item.queue.broker_name or item.queue.address}/{offset}"}


def _print_sent(item: Quarantined, topic: str, status: str, target: Target) -> None:
    if target.as_json:
        print_json_line(item.plain() | {"topic": topic, "status": status})
        return
    print(printable(f"{item.record.queue_offset} to {topic}: {status}  {summary(item)}"))


async def _send(cluster: Cluster, message: Record, topic: str, without: Sequence[str]) -> str:
    """Send a message again, without delay; return its status.

    Raises:
        RequestError: The broker refuses it.
    """
    queues = await writable_queues(cluster, topic)
    omitted = {*BROKERS_PROPERTIES, *without}
    properties = {name: value for name, value in message.properties.items() if name not in omitted}
    flags = {"flag": message.flag, "sys_flag": message.sys_flag & COMPRESSED}
    status, _ = await put(cluster, queues[0], topic, properties, message.body, **flags)
    return status
