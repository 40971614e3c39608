"""`duemq send`, and messages as plain data."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from duemq.cli.options import Outgoing, Target
from duemq.cli.output import notice, print_json_line, printable
from duemq.cli.times import duration_text, parse_time
from duemq.client.errors import Refused, Unsupported
from duemq.client.message import Message, MessageQueue, time_of
from duemq.client.producer import Producer, SendResult
from duemq.net.view_names import LEVELS_VIEW
from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError
from message_store.log.offset_id import encode_offset_id
from message_store.log.record import Record
from timer_store.enqueue.due_time import number_of

if TYPE_CHECKING:
    from duemq.client.admin import Admin
    from duemq.client.client import Client

PRODUCER_GROUP = "duemq_cli"
BODY_SHOWN_CHARS_MAX = 2_000


def send_messages(outgoing: Outgoing, target: Target) -> None:
    """Send messages; print status, ids, due time and recall handle of each."""
    if outgoing.due_text and outgoing.level:
        raise UsageError("--at and --level exclude each other: give only one")
    asyncio.run(_send_all(outgoing, target))


async def _send_all(outgoing: Outgoing, target: Target) -> None:
    now_ms = SystemClock().now_ms()
    due_ms = parse_time(outgoing.due_text, now_ms) if outgoing.due_text else None
    if due_ms is not None and due_ms <= now_ms:
        notice(f"{outgoing.due_text} is in the past: the message is delivered now")
        outgoing, due_ms = replace(outgoing, due_text=""), None
    elif due_ms is not None:
        outgoing = replace(outgoing, due_text=str(due_ms))  # same time for all copies
    body = sys.stdin.buffer.read() if outgoing.body == "-" else (outgoing.body or "").encode()
    async with target.admin() as admin:
        delay_ms = await _delay_of(admin, outgoing.level) if outgoing.level else None
        async for sent in sending(admin.client, outgoing, body):
            broker = sent.queue.broker_name or admin.client.broker
            if target.as_json:
                print_json_line(
                    {
                        "status": sent.status,
                        "message_id": sent.message_id,
                        "offset_message_id": sent.offset_message_id,
                        "broker": broker,
                        "queue_id": sent.queue.queue_id,
                        "queue_offset": sent.queue_offset,
                        "recall_handle": sent.recall_handle,
                        "due_ms": due_ms,
                        "delay_ms": delay_ms,
                    }
                )
                continue
            position = f"{broker}/{sent.queue.queue_id}/{sent.queue_offset}"
            print(printable(f"{sent.status}  {sent.message_id}  {position}"))
            print(printable(f"  offset id      {sent.offset_message_id}"))
            if due_ms is not None:
                print(f"  due            {time_text(due_ms)}")
            if delay_ms is not None:
                print(f"  due            {duration_text(delay_ms)} after it was stored")
            if sent.recall_handle:
                print(printable(f"  recall handle  {sent.recall_handle}"))


async def _delay_of(admin: Admin, level: int) -> int | None:
    """Return the delay of a level in ms; None if the broker does not report its levels.

    A level above the highest counts as the highest, with a notice.
    """
    for master in await admin.masters():
        try:
            view = await admin.view(master.address, LEVELS_VIEW)
        except (Refused, Unsupported):
            return None
        delays = {one["level"]: one["delay_ms"] for one in view["levels"]}
        highest = max((n for n, delay_ms in delays.items() if delay_ms is not None), default=0)
        if level > highest:
            notice(f"there is no level {level}: the broker uses the highest, {highest}")
        level_delay_ms: int | None = delays.get(min(level, highest))
        return level_delay_ms
    return None


async def sending(client: Client, outgoing: Outgoing, body: bytes) -> AsyncIterator[SendResult]:
    """Send the copies one by one, to the queues in turn unless one is given."""
    queue = await _queue_of(client, outgoing) if outgoing.queue_id >= 0 else None
    async with producer_of(client) as producer:
        for _ in range(outgoing.count):
            yield await producer.send(_message(outgoing, body), queue=queue)


def producer_of(client: Client) -> Producer:
    """Return a producer that sends bodies as they are, and once."""
    return Producer(client=client, group=PRODUCER_GROUP, retries=0, compressed_from=0)


async def _queue_of(client: Client, outgoing: Outgoing) -> MessageQueue:
    """Return the queue with the number that was given.

    Raises:
        UsageError: The topic has no such queue.
    """
    queues = (await client.route(outgoing.topic)).write_queues
    selected = [queue for queue in queues if queue.queue_id == outgoing.queue_id]
    if not selected:
        last = max((queue.queue_id for queue in queues), default=-1)
        wrong = f"--queue {outgoing.queue_id}: topic {outgoing.topic} has no such queue"
        raise UsageError(f"{wrong}; its queues are 0 to {last}")
    return selected[0]


def _message(outgoing: Outgoing, body: bytes) -> Message:
    deliver_at = None
    if outgoing.due_text:
        deliver_at = time_of(parse_time(outgoing.due_text, SystemClock().now_ms()))
    try:
        return Message(
            outgoing.topic,
            body,
            tag=outgoing.tag,
            keys=outgoing.key.split(),
            level=outgoing.level,
            deliver_at=deliver_at,
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from None


def describe(record: Record) -> dict[str, object]:
    """Return a message as plain data, times in ms and as text.

    `due` is given only if it is exact: TIMER_OUT_MS is rounded to a slot, and a level's delay
    counts from the store time of another record.
    """
    address, port = record.store_host
    properties = dict(record.properties)
    due_ms = number_of(properties.get("DUEMQ_DUE_MS", properties.get("TIMER_DELIVER_MS")))
    origin = -record.prepared_offset - 1 if record.prepared_offset < 0 else None
    return {
        "offset_message_id": encode_offset_id(address, port, record.phys_offset),
        "unique_key": properties.get("UNIQ_KEY"),
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "real_topic": properties.get("REAL_TOPIC"),
        "commit_log_offset": record.phys_offset,
        "size": record.total_size,
        "born": time_text(record.born_ms),
        "stored": time_text(record.store_ms),
        "stored_ms": record.store_ms,
        "due": None if due_ms is None else time_text(due_ms),
        "due_ms": due_ms,
        "origin_commit_log_offset": origin,
        "reconsume_times": record.reconsume_times,
        "sys_flag": record.sys_flag,
        "properties": properties,
        "body": body_text(record.body),
        "body_bytes": len(record.body),
    }


def time_text(ms: int) -> str:
    """Return a UTC time with milliseconds, or a number if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def table_time(ms: int | None) -> str:
    """Return a time as text for a table, empty if there is none."""
    return "" if ms is None else time_text(ms)[:23].replace("T", " ")


def body_text(body: bytes) -> str:
    """Return the beginning of a body as text."""
    text = body.decode("utf-8", "backslashreplace")
    return text if len(text) <= BODY_SHOWN_CHARS_MAX else text[:BODY_SHOWN_CHARS_MAX] + "…"
