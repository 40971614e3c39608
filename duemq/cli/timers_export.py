"""`duemq timers export`: pending messages of levels and timers as a file."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from duemq.cli.decoded_page import decode_page
from duemq.cli.message_file import MessageFileWriter
from duemq.cli.options import Target
from duemq.cli.output import notice, print_json_line, print_table
from duemq.client.client import Client
from duemq.client.errors import Refused
from duemq.net.pending_pages import PendingPage
from duemq_common.clock import SystemClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.config import Properties
from duemq_common.errors import UsageError
from duemq_common.request import bytes_of

CALL_TIMEOUT_S: Final = 60.0
LEFT_OUT: Final = "of groups and of the broker"
DAMAGED: Final = "damaged"


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
        decoded = decode_page(page, self._topic)
        self.counts["exported"] += len(decoded.lines)
        self.counts[LEFT_OUT] += decoded.left_out
        self.counts[DAMAGED] += decoded.damaged
        self._writer.write(decoded.lines)


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
                # in a thread, so that the event loop receives the next page meanwhile
                await asyncio.to_thread(progress.add, page)


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
