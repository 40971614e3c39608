"""Bulk decisions: pages of pending messages that a search finds, and decisions about them.

    search   -> HitPage, HitPage, ...      what the brokers have
    decide   HitPage -> HitVerdicts        exactly these messages, one request a page

A page keeps the broker's response as bytes, about 55 a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from duemq.client.client import Client
from duemq.client.errors import ClientError, NoBroker, Unreachable, Unsupported
from duemq.net.decisions import TIME_MS_MAX, DecisionResult, HitDecision, HitVerdicts, PendingHits
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response, bytes_of

CALL_TIMEOUT_S: Final = 60.0
TEXTS: Final = ("done", "done", "already delivered", "unknown", "refused")
"""Verdicts in results, by `delayed_delivery.pending.Verdict`: cancelled before is done, too."""
DONE, CANCELLED, UNKNOWN, REFUSED = 0, 1, 3, 4
Progress = Callable[[int, int], None]
"""Called with the number of decided messages and of all."""
OnFailure = Callable[[str, ClientError], None]
"""Called with the name of a broker that cannot be searched, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSearch:
    """Search for pending messages, of levels and timers.

    Attributes:
        topic: Topic; empty: all.
        key: Unique id, or one of the keys; empty: all.
        from_ms, until_ms: Only messages due in [from_ms, until_ms).
    """

    topic: str = ""
    key: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX


@dataclass(frozen=True, slots=True)
class HitPage:
    """Page of hits.

    Attributes:
        broker: Name of the broker that has the messages; empty with a client of one broker.
        body: `PendingHits`, encoded.
        count: Number of hits.
    """

    broker: str
    body: bytes
    count: int

    def hits(self) -> PendingHits:
        """Return the hits."""
        return msgspec.msgpack.decode(self.body, type=PendingHits)


class BulkDecisions:
    """Searches, and decisions about their hits."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def search(
        self, search: PendingSearch, failed: OnFailure | None = None
    ) -> AsyncIterator[tuple[HitPage, PendingHits]]:
        """Yield the pages of a search, broker by broker, encoded and decoded. A page may be empty.

        Args:
            failed: Gets the brokers that refuse the request, do not respond, or are not DueMQ
                brokers, and the search continues at the next one; None: their errors are raised.
        Raises:
            ClientError: Of a broker, without `failed`.
        """
        for broker, address in await self._client.masters():
            try:
                async for page in self._pages_at(broker, address, search):
                    yield page
            except ClientError as error:
                if failed is None:
                    raise
                failed(broker or address, error)

    async def _pages_at(
        self, broker: str, address: str, search: PendingSearch
    ) -> AsyncIterator[tuple[HitPage, PendingHits]]:
        fields: dict[str, object] = {"from_ms": search.from_ms, "until_ms": search.until_ms}
        fields |= {"key": search.key} if search.key else {}
        fields |= {"topic": search.topic} if search.topic else {}
        cursor: str | None = ""
        repeated: set[int] = set()
        while cursor is not None:
            code = RequestCode.SEARCH_PENDING
            response = await self._call(address, code, {**fields, "cursor": cursor})
            body = bytes(bytes_of(response))
            hits = msgspec.msgpack.decode(body, type=PendingHits)
            cursor = hits.cursor
            if not repeated.isdisjoint(hits.offsets):
                hits = without(hits, repeated)
                body = msgspec.msgpack.encode(hits)
            if hits.may_repeat:
                repeated.update(hits.offsets)
            yield HitPage(broker, body, len(hits.keys)), hits

    async def decide(
        self,
        page: HitPage,
        action: str,
        search: PendingSearch,
        *,
        deliver_ms: int | None = None,
        dry_run: bool = False,
    ) -> HitVerdicts:
        """Decide on the messages of a page.

        Args:
            search: Search that found them. A message that was moved meanwhile must still be in its
                range.
            deliver_ms: New due time of a move in ms since the epoch.
        Raises:
            Refused: The broker refused the request as a whole.
            Unreachable: The broker does not respond; it may have decided.
        """
        hits = page.hits()
        command = HitDecision(
            action=action,
            keys=hits.keys,
            offsets=hits.offsets,
            from_ms=search.from_ms,
            until_ms=search.until_ms,
            deliver_ms=deliver_ms,
            dry_run=dry_run,
        )
        fields = {"topic": search.topic} if search.topic else {}
        address = await self._address(page.broker)
        body = msgspec.msgpack.encode(command)
        response = await self._call(address, RequestCode.DECIDE_HITS, fields, body)
        return msgspec.msgpack.decode(bytes_of(response), type=HitVerdicts)

    async def _address(self, broker: str) -> str:
        """Return the address of a broker's master; a failover changes it."""
        if self._client.broker:
            return self._client.broker
        for name, address in await self._client.masters():
            if name == broker:
                return address
        raise NoBroker(f"broker {broker} is no longer registered")

    async def _call(
        self, address: str, code: int, fields: dict[str, object] | dict[str, str], body: bytes = b""
    ) -> Response:
        response = await self._client.call(address, code, fields, body, timeout_s=CALL_TIMEOUT_S)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Unsupported(f"{address} is not a DueMQ broker: it has no bulk decisions")
        if response.code != ResponseCode.SUCCESS:
            raise self._client.refusal(response, address, code)
        return response


def without(hits: PendingHits, repeated: set[int]) -> PendingHits:
    """Return a page without hits that an earlier page has."""
    new = [index for index, offset in enumerate(hits.offsets) if offset not in repeated]
    return msgspec.structs.replace(
        hits,
        topic_indexes=[hits.topic_indexes[index] for index in new],
        keys=[hits.keys[index] for index in new],
        offsets=[hits.offsets[index] for index in new],
        due_ms=[hits.due_ms[index] for index in new],
    )


@dataclass(slots=True, kw_only=True)
class SearchDecision:
    """Decision about all hits of a search, with one result for all of them.

    The hits are listed first. Timers that the broker rolls meanwhile may be missing in the list, so
    the search is repeated until it has no hit that is older than its beginning.

    Attributes:
        ends: End of the log when the search began, by broker.
        counts: Number of messages by verdict.
        failures: Reason why a broker was not searched, or not to the end, by its name.
    """

    client: Client
    action: str
    search: PendingSearch
    deliver_ms: int | None = None
    delay_ms: int | None = None
    dry_run: bool = False
    progress: Progress | None = None
    ends: dict[str, int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    failures: dict[str, ClientError] = field(default_factory=dict)
    due_ms: int = -1
    remark: str = ""

    async def run(self) -> DecisionResult:
        """Decide; what the other brokers have is decided on, too, if one fails.

        Raises:
            Unreachable: A broker did not respond; it may have decided on a part.
            Refused: A broker refused the request.
            Unsupported: No broker is a DueMQ broker.
        """
        bulk, has_more = BulkDecisions(self.client), True
        while has_more:
            pages = [page async for page in self._listed(bulk)]
            former = self.counts[DONE]
            total = self.counts.total() + sum(page.count for page in pages)
            for page in pages:
                if page.broker not in self.failures:
                    await self._decide(bulk, page)
                if self.progress is not None:
                    self.progress(self.counts.total(), total)
            has_more = self.counts[DONE] > former and not self.dry_run
        self._check_failures()
        return self._result()

    def _failed(self, broker: str, error: ClientError) -> None:
        self.failures[broker] = error

    def _check_failures(self) -> None:
        """Raise the error of a broker that may have messages of the search."""
        for error in self.failures.values():
            if isinstance(error, Unsupported) and self.ends:
                self.remark = self.remark or str(error)
            elif isinstance(error, Unreachable) and self.counts[DONE]:
                text = f"{error}; {self.counts[DONE]:,} messages were decided on before"
                raise Unreachable(text) from error
            else:
                raise error

    async def _listed(self, bulk: BulkDecisions) -> AsyncIterator[HitPage]:
        """Yield the pages of the search with hits that are older than its beginning."""
        async for page, hits in bulk.search(self.search, self._failed):
            end = self.ends.setdefault(page.broker, hits.log_end)
            if self.action == "move" and self.deliver_ms is None:
                self.deliver_ms = hits.now_ms + (self.delay_ms or 0)
            if any(offset >= end for offset in hits.offsets):
                newer = {offset for offset in hits.offsets if offset >= end}
                hits = without(hits, newer)
                page = HitPage(page.broker, msgspec.msgpack.encode(hits), len(hits.keys))
            if page.count:
                yield page

    async def _decide(self, bulk: BulkDecisions, page: HitPage) -> None:
        try:
            verdicts = await bulk.decide(
                page, self.action, self.search, deliver_ms=self.deliver_ms, dry_run=self.dry_run
            )
        except ClientError as error:
            self._failed(page.broker, error)
            return
        self.counts.update(verdicts.verdicts)
        self.remark = self.remark or next(iter(verdicts.remarks.values()), "")
        times = page.hits().due_ms
        done = [due for due, one in zip(times, verdicts.verdicts, strict=True) if one == DONE]
        self.due_ms = min(done if self.due_ms < 0 else [*done, self.due_ms], default=-1)

    def _result(self) -> DecisionResult:
        done, refused = self.counts[DONE], self.counts[REFUSED]
        verdict = REFUSED if refused else DONE if done else min(self.counts, default=UNKNOWN)
        if verdict == CANCELLED and self.action != "cancel":
            verdict = UNKNOWN
        due_ms, former_ms = self.due_ms, -1
        if self.action == "move" and done and self.deliver_ms is not None:
            due_ms, former_ms = self.deliver_ms, self.due_ms
        return DecisionResult(
            self.search.topic, TEXTS[verdict], done, due_ms, refused, self.remark, former_ms
        )
