"""History request (9002): finds a message and returns its history.

    body      JSON: name (unique key, one of the KEYS, or offset message id), topic
    answer    0 + JSON: the messages of that name, each with its state and its records

Records are looked up in the key index, topic by topic: first the topics of pending messages, then
topics that those records name; if nothing was found there, every topic. An offset message id
counts only if it is the id of the record at its offset: other bytes cannot be read by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from delivery.pending import PendingMessages, Verdict
from delivery.plugin import Request, RequestHandler, Response
from delivery.quarantine import origin_of
from duemq.messages.message_history import (
    HELD_TOPICS,
    OWN_TOPICS,
    History,
    Seen,
    chains,
    history_of,
)
from duemq.net.codes import ResponseCode
from duemq.transactions.half_messages import HALF_TOPIC
from message_store.errors import RecordUnreadable, RequestError, StoreError
from message_store.index.key_search import frames, search
from message_store.log.record import Record
from message_store.text import decode_offset_id, encode_offset_id

if TYPE_CHECKING:
    from message_store.store import MessageStore

FIND_MESSAGE: Final = 9_002
NAME_CHARS_MAX: Final = 1_024
MESSAGES_MAX: Final = 32
RECORDS_MAX: Final = 256
TOPICS_MAX: Final = 64  # that records of one request name
STEPS_A_TURN: Final = 16  # topics searched and records read before other work runs
BODY_BYTES_MAX: Final = 65_536
NEAR_UNITS: Final = (
    4_096  # records after the due time, read to find the delivery of a message without a unique key
)


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request; an empty topic means any."""

    name: str
    topic: str = ""


class Answer(msgspec.Struct):
    """The body of an answer; `more`: there are elder messages of that name."""

    messages: list[History]
    more: bool


class HistoryProcessor:
    """Answers 9002.

    Args:
        ports: Plugins with pending messages.
        half_finished: returns whether the half message at a queue offset is finished.
    """

    def __init__(
        self,
        store: MessageStore,
        ports: Callable[[], Sequence[PendingMessages]],
        half_finished: Callable[[int], bool],
    ) -> None:
        self._store, self._ports, self._half_finished = store, ports, half_finished

    def handlers(self) -> dict[int, RequestHandler]:
        """Return the codes that are answered."""
        return {FIND_MESSAGE: self.find}

    async def find(self, request: Request) -> Response:
        """Answer the newest messages of a name.

        Raises:
            RequestError: The request is malformed, or keys cannot be looked up now.
        """
        query = _parse(request)
        found = _Records(self._store)
        by_offset = self._named_by_offset(query.name)
        if by_offset is not None:
            found.add(by_offset)
        try:
            if by_offset is None:
                await self._search(found, [query.name], query.topic)
            uniques = found.unique_keys(MESSAGES_MAX)
            if uniques and uniques != [query.name]:
                await self._search(found, uniques, query.topic, everywhere=False)
        except StoreError as error:
            if by_offset is None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        found.add_origins()
        await self._add_facts(found.seen)
        found.chase_deliveries()
        messages = chains(found.seen)
        if by_offset is not None:
            mine = by_offset.phys_offset
            messages = [chain for chain in messages if any(one.at == mine for one in chain)]
        histories = [history_of(chain) for chain in messages]
        if query.topic:
            histories = [one for one in histories if one.topic == query.topic]
        more = found.cut or len(histories) > MESSAGES_MAX
        return Response(body=msgspec.json.encode(Answer(histories[-MESSAGES_MAX:], more)))

    def _named_by_offset(self, name: str) -> Record | None:
        """Return the record that a name is the offset message id of."""
        try:
            _, _, offset = decode_offset_id(name)
            record = self._store.read_queued(offset)
        except (ValueError, OverflowError, RecordUnreadable):
            return None
        own = encode_offset_id(*record.store_host, record.phys_offset)
        return record if own == name.upper() else None

    async def _search(
        self, found: _Records, keys: Sequence[str], topic: str, *, everywhere: bool = True
    ) -> None:
        """Add the records with any of the keys.

        Raises:
            StoreError: The key index is switched off, or lags far behind the log.
        """
        done: set[str] = set()
        ahead = [*OWN_TOPICS, *([topic] if topic else []), *found.named_topics()]
        while ahead:
            for name in ahead:
                await found.search(name, keys)
            done.update(ahead)
            ahead = [name for name in found.named_topics() if name not in done]
            ahead = ahead[: max(TOPICS_MAX - len(done), 0)]
        if found.seen or topic or not everywhere:
            return
        topics = self._store.topics
        for index in range(len(topics)):
            if topics.name(index) not in done:
                await found.search(topics.name(index), keys)

    async def _add_facts(self, seen: Sequence[Seen]) -> None:
        """Set the facts of pending records and half messages that their bytes do not have."""
        held = [one for one in seen if one.record.topic in HELD_TOPICS]
        offsets = np.array([one.at for one in held], np.int64)
        for port in self._ports():
            due_ms = port.promised(offsets)
            try:
                verdicts = (await port.by_offset(offsets)).gone
            except StoreError:  # without an index the end of a message is not found
                verdicts = np.full(offsets.size, Verdict.UNKNOWN, np.int8)
            for at, one in enumerate(held):
                if one.due_ms is None and due_ms[at] >= 0:
                    one.due_ms = int(due_ms[at])
                one.verdict = min(one.verdict, Verdict(int(verdicts[at])))
        _keep_newest_pending(held)
        for one in seen:
            if one.record.topic == HALF_TOPIC:
                one.half_finished = self._half_finished(one.record.queue_offset)


def _keep_newest_pending(held: Sequence[Seen]) -> None:
    """Take "pending" from elder records: a port reports it for all records of a pending message."""
    superseded = {one.origin for one in held if one.settles}
    for one in held:
        if one.verdict == Verdict.DONE and one.at in superseded:
            one.verdict = Verdict.UNKNOWN


class _Records:
    """Records found for one request, each once, the newest RECORDS_MAX.

    Attributes:
        cut: there were more.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._found: dict[int, Seen] = {}
        self.cut = False
        self._steps = 0

    @property
    def seen(self) -> list[Seen]:
        """All of them, in log order."""
        return [self._found[at] for at in sorted(self._found)]

    def add(self, record: Record) -> None:
        """Add a record with the shown part of its body."""
        cut = replace(record, body=record.body[:BODY_BYTES_MAX])
        self._found[record.phys_offset] = Seen(cut, len(record.body))

    async def search(self, topic: str, keys: Sequence[str]) -> None:
        """Add the newest records of a topic with any of the keys, in bounded pieces."""
        offsets = (await search(self._store, [topic], keys)).offsets
        self.cut |= offsets.size > RECORDS_MAX
        for offset in np.sort(offsets)[-RECORDS_MAX:].tolist():
            self._read(offset)
            await self._rest()
        await self._rest()
        while len(self._found) > RECORDS_MAX:
            del self._found[min(self._found)]
            self.cut = True

    async def _rest(self) -> None:
        self._steps += 1
        if self._steps % STEPS_A_TURN == 0:
            await asyncio.sleep(0)

    def _read(self, offset: int) -> None:
        if offset in self._found:
            return
        try:
            self.add(self._store.read_queued(offset))
        except RecordUnreadable:
            return

    def unique_keys(self, count_max: int) -> list[str]:
        """Return the unique keys of the newest records."""
        keys = [one.record.properties.get("UNIQ_KEY", "") for one in reversed(self.seen)]
        return list(dict.fromkeys(key for key in keys if key))[:count_max]

    def named_topics(self) -> list[str]:
        """Return the topics that the records are in or name."""
        return list(dict.fromkeys(_topics_of(one.record for one in self.seen)))

    def add_origins(self) -> None:
        """Add the pending or settled records that others name as origin, if the log has them."""
        for _ in range(RECORDS_MAX):
            missing = {one.origin for one in self.seen if one.origin is not None}
            missing -= self._found.keys()
            before = len(self._found)
            for offset in missing:
                self._read(offset)
            if len(self._found) == before:
                return

    def chase_deliveries(self) -> None:
        """Add deliveries that the key index did not find."""
        settled = {one.origin for one in self.seen}
        for one in self.seen:
            is_held = one.record.topic in HELD_TOPICS and one.verdict != Verdict.DONE
            if is_held and one.at not in settled:
                self._chase_delivery(one)

    def _chase_delivery(self, held: Seen) -> None:
        """Add the delivery of a record, found after its due time."""
        had = held.record.properties
        topic, text = had.get("REAL_TOPIC", ""), had.get("REAL_QID", "")
        is_queue = text.isascii() and text.isdigit() and len(text) <= 9
        if held.due_ms is None or not is_queue or self._store.topics.find(topic) < 0:
            return
        at = self._store.search_offset(topic, int(text), held.due_ms)
        end = at + NEAR_UNITS
        while at < end:
            units = self._store.units(topic, int(text), at, end - at)
            if not units.size:
                return
            rows = frames(self._store, np.ascontiguousarray(units["phys_offset"]))
            mine = rows["prepared_offset"] == origin_of(held.at)
            for offset in rows["phys_offset"][mine].tolist():
                self._read(int(offset))
                return
            at += int(units.size)


def _topics_of(records: Iterable[Record]) -> Iterable[str]:
    for record in records:
        had = record.properties
        for name in ("REAL_TOPIC", "DUEMQ_TOPIC", "RETRY_TOPIC"):
            if had.get(name):
                yield had[name]
        if record.topic not in OWN_TOPICS:
            yield record.topic


def _parse(request: Request) -> Query:
    try:
        query = msgspec.json.decode(request.body, type=Query)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _illegal(f"the body is not the JSON of a message to find: {error}") from None
    if not 0 < len(query.name) <= NAME_CHARS_MAX or len(query.topic) > NAME_CHARS_MAX:
        raise _illegal(f"name and topic have at most {NAME_CHARS_MAX} characters, name at least 1")
    return query


def _illegal(why: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, why)
