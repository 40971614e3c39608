"""Bulk resends: pages of undelivered messages that a search finds, checked and sent again.

    search -> ResendPage, ResendPage, ...    what was sent before, and what would be sent
    resend ResendPage -> HitVerdicts         exactly these messages

A page keeps ids and offsets; the messages are read again when they are sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from duemq.client.admin import Admin
from duemq.client.admin.resends import ResendOptions, ResendStatus, Resent, UndeliveredSearch
from duemq.client.bulk_decisions import HitPage, OnFailure
from duemq.client.client import Client
from duemq.net.decisions import HitVerdicts, PendingHits

OPEN: Final = 5  # not decided yet
ABSENT: Final = 3
CODES: Final = {
    ResendStatus.SENT: 0,
    ResendStatus.SENT_BEFORE: 1,
    ResendStatus.NO_TOPIC: 4,
    ResendStatus.UNREADABLE: 4,
    ResendStatus.REFUSED: 4,
    ResendStatus.WOULD_SEND: OPEN,
    ResendStatus.NO_RESPONSE: 6,
}
"""Results as indexes in `duemq.console.bulk_job.VERDICTS`."""


@dataclass(frozen=True, slots=True)
class ResendPage(HitPage):
    """Page of undelivered messages.

    Attributes:
        cursor: Cursor of the page in the topic that has the messages.
        verdicts: Result of each message; `OPEN`: it would be sent.
        remarks: By message.
    """

    cursor: str = ""
    verdicts: bytes = b""
    remarks: dict[int, str] = field(default_factory=dict)


class BulkResends:
    """Searches for undelivered messages, and resends of their pages."""

    def __init__(self, client: Client, search: UndeliveredSearch, options: ResendOptions) -> None:
        self._admin = Admin(client=client)
        self._search, self._options = search, options

    async def pages(self, failed: OnFailure) -> AsyncIterator[tuple[ResendPage, PendingHits]]:
        """Yield the pages of the search, with what a resend would do.

        Args:
            failed: Gets the brokers that do not respond; the others are searched.
        Raises:
            NoRoute: The group has no topic of dead letters.
        """
        async for broker, cursor, part in self._admin.undelivered(self._search, failed):
            results = await self._admin.resend(part.items, self._options, dry_run=True)
            hits = _hits(results)
            verdicts, remarks = _verdicts(results)
            body = msgspec.msgpack.encode(hits)
            yield ResendPage(broker, body, len(results), cursor, verdicts, remarks), hits

    async def resend(self, page: ResendPage) -> HitVerdicts:
        """Send the messages of a page that are still to be sent.

        Raises:
            Unreachable: The broker of the messages does not respond.
        """
        if OPEN not in page.verdicts:
            return HitVerdicts(verdicts=page.verdicts, remarks=page.remarks)
        part = await self._admin.undelivered_page(self._search, page.broker, cursor=page.cursor)
        present = {item.record.phys_offset: item for item in part.items}
        listed = page.hits().offsets
        left = [index for index, one in enumerate(page.verdicts) if one == OPEN]
        indexes = [index for index in left if listed[index] in present]
        items = [present[listed[index]] for index in indexes]
        codes, remarks = _verdicts(await self._admin.resend(items, self._options))
        verdicts = bytearray(page.verdicts.replace(bytes([OPEN]), bytes([ABSENT])))
        for index, code in zip(indexes, codes, strict=True):
            verdicts[index] = code
        texts = {indexes[index]: text for index, text in remarks.items()}
        return HitVerdicts(verdicts=bytes(verdicts), remarks=page.remarks | texts)


def _verdicts(results: Sequence[Resent]) -> tuple[bytes, dict[int, str]]:
    remarks = {
        index: one.remark or one.status.value
        for index, one in enumerate(results)
        if one.status not in (ResendStatus.SENT, ResendStatus.WOULD_SEND)
    }
    return bytes(CODES[one.status] for one in results), remarks


def _hits(results: Sequence[Resent]) -> PendingHits:
    topics = list(dict.fromkeys(one.topic for one in results))
    return PendingHits(
        topics=topics,
        topic_indexes=[topics.index(one.topic) for one in results],
        keys=[one.item.unique_id.encode("utf-8", "surrogatepass") for one in results],
        offsets=[one.item.record.phys_offset for one in results],
        due_ms=[one.item.record.store_ms for one in results],
        cursor=None,
    )
