"""`duemq timers export`: pending messages of levels and timers as a file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from duemq.cli.message_file import BROKER_PROPERTIES, MessageFileWriter, PendingLine
from duemq.cli.options import Target
from duemq.cli.output import notice, print_json_line, print_table
from duemq.client.client import Client
from duemq.client.errors import Refused
from duemq.client.message import decompressed
from duemq.client.routes import bytes_of
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.pending_pages import PendingPage
from duemq.registry.internal_topics import is_internal
from duemq_common.clock import SystemClock
from duemq_common.config import Properties
from duemq_common.errors import RecordUnreadable, UsageError
from message_store.log.record import Record, decode_record

CALL_TIMEOUT_S: Final = 60.0
GROUP_PREFIXES: Final = ("%RETRY%", "%DLQ%")
LEFT_OUT: Final = "of groups and of the broker"
DAMAGED: Final = "damaged"
DROPPED: Final = BROKER_PROPERTIES | {"UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON"}


@dataclass(slots=True)
class PendingRecord:
    """Pending message as stored, and its due time."""

    record: Record
    due_ms: int

    @property
    def topic(self) -> str:
        """Topic to which it will be delivered."""
        return self.record.properties.get("REAL_TOPIC", "")

    @property
    def is_of_application(self) -> bool:
        """Whether it can be sent elsewhere; other messages belong to groups or to the broker."""
        return _is_of_application(self.topic)

    @property
    def unique_id(self) -> str:
        """Unique id, else one that is the same in each export."""
        record = self.record
        own_id = record.properties.get("UNIQ_KEY")
        numbers = f"{record.phys_offset:X}-{record.store_ms:X}-{record.body_crc & 0xFFFFFFFF:08X}"
        return own_id or f"EXPORTED-{numbers}"

    def line(self) -> PendingLine:
        """Return its line of an export.

        Raises:
            ValueError: The body cannot be decompressed.
        """
        record, properties = self.record, self.record.properties
        queue_text = properties.get("REAL_QID", "0")
        return PendingLine(
            self.topic,
            int(queue_text) if queue_text.isdecimal() else 0,
            self.unique_id,
            self.due_ms,
            {name: value for name, value in properties.items() if name not in DROPPED},
            decompressed(record.body, record.sys_flag) if record.sys_flag else record.body,
            record.flag,
            record.store_ms,
            record.phys_offset,
        )


@lru_cache(maxsize=1_024)
def _is_of_application(topic: str) -> bool:
    return bool(topic) and not is_internal(topic) and not topic.startswith(GROUP_PREFIXES)


def pending_records(page: PendingPage) -> tuple[list[PendingRecord], int]:
    """Return the messages of a page, and the number of damaged ones."""
    view, position, damaged = memoryview(page.records), 0, len(page.unreadable)
    records: list[PendingRecord] = []
    for size, due_ms in zip(page.sizes, page.due_ms, strict=True):
        try:
            record = decode_record(view[position : position + size], position)
            records.append(PendingRecord(record, due_ms))
        except RecordUnreadable:
            damaged += 1
        position += size
    return records, damaged


async def pages_of(client: Client, address: str) -> AsyncIterator[PendingPage]:
    """Yield all pages of a broker; the next one is requested while one is used.

    Raises:
        UsageError: The server is not a DueMQ broker.
        Refused, Unreachable: As `Client.ask`.
    """
    page = await _fetch(client, address, "")
    while page.cursor:
        following = asyncio.create_task(_fetch(client, address, page.cursor), name="next page")
        try:
            yield page
            page = await following
        finally:
            following.cancel()
    yield page


async def _fetch(client: Client, address: str, cursor: str) -> PendingPage:
    fields = {"cursor": cursor}
    try:
        response = await client.ask(
            address, RequestCode.READ_PENDING, fields, timeout_s=CALL_TIMEOUT_S
        )
    except Refused as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise UsageError(
            f"{address} is not a DueMQ broker that can export: stop it and use --store DIR, or "
            "export from a replica of it"
        ) from error
    return msgspec.msgpack.decode(bytes_of(response), type=PendingPage)


class _Export:
    """Export in progress: what was written, and what was left out."""

    def __init__(self, writer: MessageFileWriter, topic: str) -> None:
        self._writer, self._topic = writer, topic
        self.counts: Counter[str] = Counter()

    def add(self, page: PendingPage) -> None:
        """Write the messages of a page."""
        records, damaged = pending_records(page)
        lines: list[PendingLine] = []
        for each in records:
            if not each.is_of_application:
                self.counts[LEFT_OUT] += 1
            elif self._topic in ("", each.topic):
                try:
                    lines.append(each.line())
                except (ValueError, ImportError):
                    damaged += 1
        if damaged:
            self.counts[DAMAGED] += damaged
        self.counts["exported"] += len(lines)
        self._writer.write(lines)


def export(
    file: Path,
    target: Target,
    *,
    topic: str,
    store: Path | None,
    work: Path | None,
    properties: Properties,
) -> None:
    """Write the pending messages of brokers or of a stopped store, and print the counts."""
    source = str(store) if store else target.broker or target.namesrv
    head = {"source": source, "exported_ms": SystemClock().now_ms()}
    with MessageFileWriter(file, head) as writer:
        progress = _Export(writer, topic)
        if store is not None:
            asyncio.run(_from_store(progress, store, work, properties))
        else:
            asyncio.run(_from_brokers(progress, target))
    counts = {name: progress.counts[name] for name in ("exported", LEFT_OUT, DAMAGED)}
    if target.as_json:
        names = ("exported", "left_out", "damaged")
        print_json_line({"file": str(file), **dict(zip(names, counts.values(), strict=True))})
    else:
        rows = [(name, f"{count:,}") for name, count in counts.items()]
        print_table(str(file), ("pending", "#messages"), rows)
    if counts[DAMAGED]:
        notice(f"{counts[DAMAGED]} pending messages cannot be read: run `duemq store verify`")


async def _from_brokers(progress: _Export, target: Target) -> None:
    async with target.client() as client:
        for _, address in await client.masters():
            async for page in pages_of(client, address):
                progress.add(page)


async def _from_store(
    progress: _Export, store: Path, work: Path | None, properties: Properties
) -> None:
    from duemq.cli.stopped_store import stopped_pages

    with stopped_pages(store, properties, work=work) as pages:
        cursor = ""
        while True:
            page = await pages.page(cursor)
            progress.add(page)
            cursor = page.cursor
            if not cursor:
                return
