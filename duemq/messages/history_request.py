"""History requests (9002, 9023): messages of a name, and their histories.

    FIND_MESSAGE            body: JSON with name (unique key, one of the KEYS, or offset message id)
                            and topic, which may be missing
    FIND_MESSAGE_OF_TOPIC   header: topic, for which the account needs a permission; body: name
        response            0 + JSON: the messages of that name, each with its state and its records

The handler searches the key index by topic: first the topics of pending messages, then topics that
the found records name and, if there are no records, all topics. It accepts an offset message id
only if the record at its offset has this id, so that a request cannot read arbitrary bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from delayed_delivery.pending import PendingMessages, Verdict
from delayed_delivery.quarantine import origin_of
from delayed_delivery.steps import Pauses
from duemq.messages.message_history import (
    OWN_TOPICS,
    SCHEDULED_TOPICS,
    HistoryRecord,
    chains,
    history_of,
)
from duemq.net import fields
from duemq.registry.internal_topics import check_readable
from duemq_common.bodies.histories import HistoryRequest, HistoryResponse, OpenPop
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, StoreError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from message_store.index.key_search import frames, search
from message_store.log.offset_id import decode_offset_id, encode_offset_id
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

OpenPopSearch = Callable[[Sequence[Record]], Awaitable[tuple[dict[int, list[OpenPop]], bool]]]
"""Returns open pops by the log offset of their record, and whether older ones were omitted."""
NAME_CHARS_MAX: Final = 1_024
MESSAGES_MAX: Final = 32
RECORDS_MAX: Final = 256
TOPICS_MAX: Final = 64  # topics searched per request because records name them
TOPICS_PER_TURN: Final = 16  # the disk may have to read a page of the index for each
RELATED_TOPICS_MAX: Final = 1_024  # topics of retries and dead letters searched per request
STEPS_PER_TURN: Final = 16  # topics searched and records read between two pauses
BODY_BYTES_MAX: Final = 65_536
DELIVERY_UNITS_MAX: Final = 4_096  # units searched for a delivery, from the due time


class HistoryProcessor:
    """Handler of history requests (9002, 9023).

    Args:
        ports: Returns the components that own pending messages.
        half_finished: Returns whether the half message at a queue offset is finished.
        open_pops: Finds the open pops of records.
    """

    def __init__(
        self,
        store: MessageStore,
        ports: Callable[[], Sequence[PendingMessages]],
        half_finished: Callable[[int], bool],
        open_pops: OpenPopSearch,
    ) -> None:
        self._store, self._ports, self._half_finished = store, ports, half_finished
        self._open_pops = open_pops
        self._all_topics = asyncio.Lock()  # held by the search of all topics, one at a time

    def handlers(self) -> dict[int, RequestHandler]:
        """Return handlers by request code."""
        return {
            RequestCode.FIND_MESSAGE: self.find,
            RequestCode.FIND_MESSAGE_OF_TOPIC: self.find_in_topic,
        }

    async def find(self, request: Request) -> Response:
        """Return the newest messages of a name.

        Raises:
            RequestError: The request is malformed, or keys cannot be looked up now.
        """
        return await self._newest(_parse(request))

    async def find_in_topic(self, request: Request) -> Response:
        """Return the newest messages of a name in the topic of the header.

        Raises:
            RequestError: The request is malformed, or keys cannot be looked up now.
        """
        topic, query = fields.text(request, "topic"), _parse(request)
        if not topic or query.topic not in ("", topic):
            raise _illegal("the header names the topic, and the body no other one")
        check_readable(topic)
        return await self._newest(HistoryRequest(query.name, topic))

    async def _newest(self, query: HistoryRequest) -> Response:
        records = _Records(self._store)
        by_offset = self._record_by_offset_id(query.name)
        if by_offset is not None:
            records.add(by_offset)
        try:
            if by_offset is None:
                await self._search(records, [query.name], query.topic)
            uniques = records.unique_keys(MESSAGES_MAX)
            if uniques and uniques != [query.name]:
                await self._search(records, uniques, query.topic, everywhere=False)
        except StoreError as error:
            if by_offset is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        records.add_origins()
        await self._set_states(records.records)
        records.add_deliveries()
        groups = chains(records.records)
        if by_offset is not None:
            offset = by_offset.phys_offset
            groups = [chain for chain in groups if any(one.log_offset == offset for one in chain)]
        selected = [chain for chain in groups if query.topic in ("", history_of(chain).topic)]
        newest = selected[-MESSAGES_MAX:]
        pops_omitted = await self._set_pops([one for chain in newest for one in chain])
        response = HistoryResponse(
            [history_of(chain) for chain in newest],
            more=records.truncated or len(selected) > MESSAGES_MAX,
            pops_omitted=pops_omitted,
        )
        return Response(body=msgspec.json.encode(response))

    async def _set_pops(self, records: Sequence[HistoryRecord]) -> bool:
        """Set the open pops of records; return whether older pops were omitted."""
        readable = [one.record for one in records if one.record.topic not in OWN_TOPICS]
        if not readable:
            return False
        pops, omitted = await self._open_pops(readable)
        for one in records:
            one.pops = pops.get(one.log_offset, [])
        return omitted

    def _record_by_offset_id(self, name: str) -> Record | None:
        """Return the record whose offset message id is `name`; None if there is none."""
        try:
            _, _, offset = decode_offset_id(name)
            record = self._store.read_queued(offset)
        except (ValueError, OverflowError, RecordUnreadable):
            return None
        own = encode_offset_id(*record.store_host, record.phys_offset)
        return record if own == name.upper() else None

    async def _search(
        self, records: _Records, keys: Sequence[str], topic: str, *, everywhere: bool = True
    ) -> None:
        """Add the records with any of the keys.

        Args:
            everywhere: Whether all topics are searched if the first searches find nothing.

        Raises:
            StoreError: The key index is disabled, or lags far behind the log.
        """
        done: set[str] = set()
        first = [*OWN_TOPICS, *([topic] if topic else [])]
        await self._search_named(records, keys, first, done)
        await records.search_all(self._related_topics(done), keys)
        await self._search_named(records, keys, [], done)
        if records.records or topic or not everywhere:
            return
        topics = self._store.topics
        names = [topics.name(index) for index in range(len(topics))]
        rest = [name for name in names if name not in done]
        async with self._all_topics:
            for begin in range(0, len(rest), TOPICS_PER_TURN):
                await records.search(rest[begin : begin + TOPICS_PER_TURN], keys)
                await records.pauses.after_step()

    async def _search_named(
        self, records: _Records, keys: Sequence[str], first: Sequence[str], done: set[str]
    ) -> None:
        """Search topics, then those that the records name, and so on; add them to `done`."""
        next_topics = [*first, *records.named_topics()]
        while next_topics:
            for name in next_topics:
                await records.search([name], keys)
            done.update(next_topics)
            next_topics = [name for name in records.named_topics() if name not in done]
            next_topics = next_topics[: max(TOPICS_MAX - len(done), 0)]

    def _related_topics(self, searched: Collection[str]) -> list[str]:
        """Return the topics of dead letters, and of pop retries of the topics that were searched.

        Their records name no other record, unlike retries by level.
        """
        topics = self._store.topics
        ends = tuple(f"{separator}{name}" for name in searched for separator in "_+")
        related = []
        for index in range(len(topics)):
            name = topics.name(index)
            is_retry = name.startswith(RETRY_PREFIX) and name.endswith(ends)
            if (is_retry or name.startswith(DLQ_PREFIX)) and name not in searched:
                related.append(name)
        return related

    async def _set_states(self, records: Sequence[HistoryRecord]) -> None:
        """Set due times, verdicts and `half_finished`, which the log does not contain."""
        scheduled = [one for one in records if one.record.topic in SCHEDULED_TOPICS]
        offsets = np.array([one.log_offset for one in scheduled], np.int64)
        for port in self._ports():
            due_ms = port.promised(offsets)
            try:
                verdicts = (await port.by_offset(offsets)).verdicts
            except StoreError:  # no key index
                verdicts = np.full(offsets.size, Verdict.UNKNOWN, np.int8)
            for index, one in enumerate(scheduled):
                if one.due_ms is None and due_ms[index] >= 0:
                    one.due_ms = int(due_ms[index])
                one.verdict = min(one.verdict, Verdict(int(verdicts[index])))
        _keep_newest_pending(scheduled)
        for one in records:
            if one.record.topic == HALF_TOPIC:
                one.half_finished = self._half_finished(one.record.queue_offset)


def _keep_newest_pending(scheduled: Sequence[HistoryRecord]) -> None:
    """Set the verdict of superseded records to UNKNOWN.

    A port returns DONE for every record of a pending message; only the newest is pending.
    """
    superseded = {one.origin for one in scheduled if one.settles}
    for one in scheduled:
        if one.verdict == Verdict.DONE and one.log_offset in superseded:
            one.verdict = Verdict.UNKNOWN


class _Records:
    """Records found for one request, without duplicates, at most the newest RECORDS_MAX.

    Attributes:
        truncated: Whether older records were omitted.
        pauses: Pauses of the request.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store, self.pauses = store, Pauses()
        self._by_offset: dict[int, HistoryRecord] = {}
        self.truncated = False
        self._steps = 0

    @property
    def records(self) -> list[HistoryRecord]:
        """Found records in log order."""
        return [self._by_offset[position] for position in sorted(self._by_offset)]

    def add(self, record: Record) -> None:
        """Add a record with its body shortened to BODY_BYTES_MAX."""
        shortened = replace(record, body=record.body[:BODY_BYTES_MAX])
        self._by_offset[record.phys_offset] = HistoryRecord(shortened, len(record.body))

    async def search_all(self, topics: Sequence[str], keys: Sequence[str]) -> None:
        """Search many topics, of which few have a record."""
        self.truncated |= len(topics) > RELATED_TOPICS_MAX
        for begin in range(0, min(len(topics), RELATED_TOPICS_MAX), TOPICS_MAX):
            await self.search(topics[begin : begin + TOPICS_MAX], keys)

    async def search(self, topics: Sequence[str], keys: Sequence[str]) -> None:
        """Add the newest records of topics with any of the keys, in bounded steps."""
        offsets = (await search(self._store, topics, keys)).offsets
        self.truncated |= offsets.size > RECORDS_MAX
        for offset in np.sort(offsets)[-RECORDS_MAX:].tolist():
            self._read(offset)
            await self._yield_periodically()
        await self._yield_periodically()
        while len(self._by_offset) > RECORDS_MAX:
            del self._by_offset[min(self._by_offset)]
            self.truncated = True

    async def _yield_periodically(self) -> None:
        self._steps += 1
        if self._steps % STEPS_PER_TURN == 0:
            await self.pauses.after_step()

    def _read(self, offset: int) -> None:
        if offset in self._by_offset:
            return
        try:
            self.add(self._store.read_queued(offset))
        except RecordUnreadable:
            return

    def unique_keys(self, count_max: int) -> list[str]:
        """Return the unique keys of the newest records."""
        keys = [one.record.properties.get("UNIQ_KEY", "") for one in reversed(self.records)]
        return list(dict.fromkeys(key for key in keys if key))[:count_max]

    def named_topics(self) -> list[str]:
        """Return the topics of the records, including those named by properties."""
        return list(dict.fromkeys(_topics_of(one.record for one in self.records)))

    def add_origins(self) -> None:
        """Add the records that other records name as origin, unless retention removed them."""
        for _ in range(RECORDS_MAX):
            missing = {one.origin for one in self.records if one.origin is not None}
            missing -= self._by_offset.keys()
            before = len(self._by_offset)
            for offset in missing:
                self._read(offset)
            if len(self._by_offset) == before:
                return

    def add_deliveries(self) -> None:
        """Add deliveries that the search by key did not find."""
        settled = {one.origin for one in self.records}
        for one in self.records:
            is_scheduled = one.record.topic in SCHEDULED_TOPICS
            if is_scheduled and one.verdict != Verdict.DONE and one.log_offset not in settled:
                self._add_delivery(one)

    def _add_delivery(self, scheduled: HistoryRecord) -> None:
        """Search the target queue from the due time, and add the delivery of a scheduled record."""
        properties = scheduled.record.properties
        topic, text = properties.get("REAL_TOPIC", ""), properties.get("REAL_QID", "")
        is_queue = text.isascii() and text.isdigit() and len(text) <= 9
        if scheduled.due_ms is None or not is_queue or self._store.topics.find(topic) < 0:
            return
        position = self._store.search_offset(topic, int(text), scheduled.due_ms)
        end = position + DELIVERY_UNITS_MAX
        while position < end:
            units = self._store.units(topic, int(text), position, end - position)
            if not units.size:
                return
            rows = frames(self._store, np.ascontiguousarray(units["phys_offset"]))
            is_delivery = rows["prepared_offset"] == origin_of(scheduled.log_offset)
            for offset in rows["phys_offset"][is_delivery].tolist():
                self._read(int(offset))
                return
            position += int(units.size)


def _topics_of(records: Iterable[Record]) -> Iterable[str]:
    for record in records:
        properties = record.properties
        for name in ("REAL_TOPIC", "DUEMQ_TOPIC", "RETRY_TOPIC"):
            if properties.get(name):
                yield properties[name]
        if record.topic not in OWN_TOPICS:
            yield record.topic


def _parse(request: Request) -> HistoryRequest:
    try:
        query = msgspec.json.decode(request.body, type=HistoryRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _illegal(f"the body is not a history request in JSON: {error}") from None
    if not 0 < len(query.name) <= NAME_CHARS_MAX or len(query.topic) > NAME_CHARS_MAX:
        raise _illegal(
            f"name and topic must have at most {NAME_CHARS_MAX} characters, name at least 1"
        )
    return query


def _illegal(reason: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
