"""Bulk decisions: one decision about all messages that a search has found, in two steps.

    listing --> ready --confirmed--> running --> done
       |          |                     |-----> stopped
       +----------+---------------------+-----> failed

The first step lists the hits: pending messages of levels and timers, or undelivered ones that would
be sent again. The second one decides on exactly these messages, page by page, so a message that was
sent after the confirmation is not touched. A message that another operator has decided on
meanwhile, or whose due time has left the search's range, has a result that says so. Jobs are in
memory; the log of the broker has the decisions themselves, so after the end of the console the same
search has what is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

from duemq.client.admin.resends import AS_IT_IS, ResendOptions, UndeliveredSearch
from duemq.client.bulk_decisions import BulkDecisions, HitPage, PendingSearch
from duemq.client.bulk_resends import BulkResends, ResendPage
from duemq.client.client import Client
from duemq.client.errors import ClientError
from duemq.net.decisions import HitVerdicts, PendingHits

VERDICTS: Final = (
    "done",
    "before",
    "already_delivered",
    "unknown",
    "refused",
    "open",
    "no_response",
)
"""Results of an item: those of `delayed_delivery.pending.Verdict` by their numbers; not decided on
yet; the request failed, so the decision may have been made or not."""
OPEN, NO_RESPONSE = VERDICTS.index("open"), VERDICTS.index("no_response")
ACTIVE: Final = ("listing", "running")


@dataclass(slots=True)
class JobPage:
    """Hits of one page, and their results.

    Attributes:
        verdicts: Index in `VERDICTS` of each hit.
    """

    page: HitPage
    verdicts: bytes
    remarks: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class TopicHits:
    """Number of hits of one topic, and their earliest and latest due times."""

    count: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class BulkItem:
    """Message of a job."""

    topic: str
    name: str
    due_ms: int
    verdict: str
    remark: str


@dataclass(slots=True, kw_only=True)
class BulkJob:
    """Decision about the hits of a search.

    Attributes:
        account: Access key of the login that prepared it; only this account can start it.
        deliver_ms: New due time of a move; None for other actions.
        resend: How undelivered messages are sent again.
        pages: Hits, in the order of the brokers' lists.
        topics: Facts about the hits by topic.
        nameless: Hits without an id or with an unreadable record, which the job cannot decide on.
        counts: Number of items by verdict.
        damage: Unreadable parts of the timer log, whose messages the list does not have.
        unknown: Brokers whose messages the list does not have, with the reasons.
        started_ms, ended_ms: Times of the start and the end of the decisions; 0: not yet.
    """

    id: str
    account: str
    action: str
    search: PendingSearch | UndeliveredSearch
    deliver_ms: int | None
    prepared_ms: int
    prepared_s: float
    resend: ResendOptions = AS_IT_IS
    state: str = "listing"
    pages: list[JobPage] = field(default_factory=list)
    topics: dict[str, TopicHits] = field(default_factory=dict)
    nameless: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    damage: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    stopped_by: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def total(self) -> int:
        """Number of messages."""
        return self.counts.total()

    @property
    def open(self) -> int:
        """Number of messages without a result."""
        return self.counts["open"]

    def listed(self, client: Client) -> AsyncIterator[tuple[HitPage, PendingHits]]:
        """Yield the pages of the search; see `BulkDecisions` and `BulkResends`."""

        def failed(broker: str, error: ClientError) -> None:
            self.unknown[broker] = str(error)

        if isinstance(self.search, UndeliveredSearch):
            return BulkResends(client, self.search, self.resend).pages(failed)
        return BulkDecisions(client).search(self.search, failed)

    async def decide(self, client: Client, page: HitPage) -> HitVerdicts:
        """Decide on the messages of a page; see `BulkDecisions` and `BulkResends`."""
        if isinstance(self.search, UndeliveredSearch):
            assert isinstance(page, ResendPage)
            return await BulkResends(client, self.search, self.resend).resend(page)
        return await BulkDecisions(client).decide(
            page, self.action, self.search, deliver_ms=self.deliver_ms
        )

    @property
    def decided(self) -> int:
        """Number of messages with a result."""
        return self.total - self.open

    def items(self, verdict: str = "", first: int = 0) -> Iterator[tuple[int, BulkItem]]:
        """Yield position and message, of one verdict if it is given, from a position on."""
        code, base = VERDICTS.index(verdict) if verdict else -1, 0
        for one in self.pages:
            end = base + one.page.count
            if end > first and (code < 0 or code in one.verdicts):
                hits = one.page.hits()
                for index in range(max(first - base, 0), one.page.count):
                    if code < 0 or one.verdicts[index] == code:
                        yield base + index, _item(one, hits, index)
            base = end

    def add(self, page: HitPage, hits: PendingHits) -> None:
        """Add a page of hits."""
        self.nameless += hits.nameless
        self.damage += hits.damage
        if not page.count:
            return
        one = JobPage(page, bytes([OPEN]) * page.count)
        if isinstance(page, ResendPage):
            one = JobPage(page, page.verdicts, page.remarks)
        self.pages.append(one)
        self._count(one.verdicts)
        for index, name in enumerate(hits.topics):
            due_ms = hits.due_ms
            if len(hits.topics) > 1 or one.verdicts.count(OPEN) < page.count:
                rows = zip(hits.topic_indexes, hits.due_ms, one.verdicts, strict=True)
                due_ms = [due for topic, due, code in rows if (topic, code) == (index, OPEN)]
            if not due_ms:
                continue
            first_ms, last_ms = min(due_ms), max(due_ms)
            topic = self.topics.setdefault(name, TopicHits(0, first_ms, last_ms))
            topic.count += len(due_ms)
            topic.first_ms = min(topic.first_ms, first_ms)
            topic.last_ms = max(topic.last_ms, last_ms)

    def fail(self, reason: str) -> None:
        """End the job."""
        self.state, self.failure = "failed", reason

    def set_results(self, one: JobPage, verdicts: bytes, remarks: dict[int, str]) -> None:
        """Set the results of a page."""
        for code, count in Counter(one.verdicts).items():
            self.counts[VERDICTS[code]] -= count
        one.verdicts, one.remarks = verdicts, remarks
        self._count(verdicts)

    def _count(self, verdicts: bytes) -> None:
        for code, count in Counter(verdicts).items():
            self.counts[VERDICTS[code]] += count


def _item(one: JobPage, hits: PendingHits, index: int) -> BulkItem:
    return BulkItem(
        hits.topics[hits.topic_indexes[index]],
        hits.keys[index].decode("utf-8", "surrogatepass"),
        hits.due_ms[index],
        VERDICTS[one.verdicts[index]],
        one.remarks.get(index, ""),
    )
