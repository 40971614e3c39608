"""Cancel (9011), move (9012), fire (9013): DueMQ's own requests about pending messages.

    body      JSON: the messages (ids, keys, handles, topic), when it is to come, dry_run
    answer    0 + JSON: one result for each name, in the order of the request

The plugins with pending messages are called in turn, timers first. A name is decided on when
it is found, in bounded pieces with other work between; the response is sent when the records of all
decisions are as durable as the store is configured for.

The codes are above all of Apache's; an Apache broker answers "not supported" (3).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from delivery.pending import Decided, Found, Offsets, PendingMessages, Verdict
from delivery.plugin import Request, RequestHandler, Response
from duemq.messages.copies import not_confirmed
from duemq.messages.decision_results import Result, Tally, text_of
from duemq.messages.recall_handle import HandleError, decode_handle
from duemq.net.codes import ResponseCode
from message_store.clock import Clock
from message_store.errors import RecordUnreadable, RequestError, StoreError
from message_store.hooks import PutHook
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.replication.acknowledgement import Missing
from message_store.text import decode_offset_id

CANCEL_WAITING, MOVE_WAITING, FIRE_WAITING = 9_011, 9_012, 9_013
ACTIONS: Final = {CANCEL_WAITING: "cancel", MOVE_WAITING: "move", FIRE_WAITING: "fire"}
NAMES_MAX = 10_000  # of one request
PIECE = 2_000  # messages decided on in one step
OFFSETS_AT_ONCE = 200  # records read for offset ids in one step
TIME_MS_MAX = 10**18


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request.

    Attributes:
        ids: unique keys (message ids of clients) or offset message ids.
        keys: any of a message's KEYS.
        handles: recall handles, as producers get them in the answer to a send.
        topic: With ids or keys: topic of the messages; alone: all its pending messages.
        from_ms, until_ms: only messages that are due in [from_ms, until_ms).
        deliver_ms, delay_ms: the new time, of a move: absolute, or from now.
        dry_run: Report only what would be done.
    """

    ids: list[str] = []
    keys: list[str] = []
    handles: list[str] = []
    topic: str = ""
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX
    deliver_ms: int | None = None
    delay_ms: int | None = None
    dry_run: bool = False


class Answer(msgspec.Struct):
    """The body of an answer."""

    results: list[Result]
    dry_run: bool


class Store(Protocol):
    """What is needed of the message store."""

    async def wait_confirmed(self, end_offset: int) -> Missing | None: ...
    def read_queued(self, phys_offset: int) -> Record: ...


class DecideProcessor:
    """Answers 9011 to 9013.

    Args:
        ports: The owners of pending messages.
        hooks: the put hooks, for messages that go from a level to a time.
    """

    def __init__(
        self,
        store: Store,
        ports: Callable[[], Sequence[PendingMessages]],
        hooks: Sequence[PutHook],
        clock: Clock,
        broker_name: str,
    ) -> None:
        self._store, self._ports, self._hooks = store, ports, hooks
        self._clock, self._broker_name = clock, broker_name

    def handlers(self) -> dict[int, RequestHandler]:
        return dict.fromkeys(ACTIONS, self.decide)

    async def decide(self, request: Request) -> Response:
        """Decide about every message that the request names.

        Raises:
            RequestError: The request is malformed, messages cannot be looked up now, or
                the disk did not follow in time.
        """
        command = _parse(request)
        job = _Job(self, ACTIONS[request.code], command, self._due_ms(request.code, command))
        try:
            results = await job.run()
        except StoreError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if job.log_end and (missing := await self._store.wait_confirmed(job.log_end)):
            count = sum(one.messages for one in results)
            raise not_confirmed(f"{count} messages were decided on", missing)
        return Response(body=msgspec.json.encode(Answer(results, command.dry_run)))

    def _due_ms(self, code: int, command: DecisionRequest) -> int:
        """Return the new time of a move."""
        if code != MOVE_WAITING:
            return 0
        if (command.deliver_ms is None) == (command.delay_ms is None):
            raise _illegal("a move needs deliver_ms or delay_ms, one of them")
        due_ms = command.deliver_ms or 0
        if command.delay_ms is not None:
            due_ms = self._clock.now_ms() + command.delay_ms
        if not 0 <= due_ms < TIME_MS_MAX:
            raise _illegal(f"{due_ms} is not a time in ms since 1970")
        return due_ms

    def run_hooks(self, batch: PutBatch, now_ms: int) -> None:
        """Run the put hooks on a batch."""
        for hook in self._hooks:
            hook(batch, now_ms)

    def ports(self) -> Sequence[PendingMessages]:
        """Return the owners of pending messages."""
        return self._ports()

    @property
    def store(self) -> Store:
        """The message store."""
        return self._store

    @property
    def broker_name(self) -> str:
        """The name that recall handles of this broker have."""
        return self._broker_name


class _Job:
    """One request at work.

    Attributes:
        log_end: the log must be on the disk up to here before the answer leaves.
    """

    def __init__(
        self, owner: DecideProcessor, action: str, command: DecisionRequest, due_ms: int
    ) -> None:
        self._owner, self._action, self._command, self._due_ms = owner, action, command, due_ms
        self.log_end = 0

    async def run(self) -> list[Result]:
        command, results = self._command, []
        for first in range(0, len(command.ids), PIECE):
            results += await self._names(command.ids[first : first + PIECE], command.topic, _by_id)
        for first in range(0, len(command.keys), PIECE):
            results += await self._names(
                command.keys[first : first + PIECE], command.topic, _by_key
            )
        for handle in command.handles:
            results.append(await self._handle(handle))
        if command.topic and not (command.ids or command.keys or command.handles):
            results.append(await self._topic(command.topic))
        return results

    async def _names(self, names: list[str], topic: str, find: Finder) -> list[Result]:
        """Decide about what some names mean; a name may mean messages of several ports."""
        tallies = [Tally(name) for name in names]
        for port in self._owner.ports():
            found = await find(port, self._owner.store, topic, names)
            found = found.within(self._command.from_ms, self._command.until_ms)
            for tally, verdict in zip(tallies, found.gone.tolist(), strict=True):
                tally.gone = min(tally.gone, verdict)
            await self._decide(port, found.offsets, found.due_ms, found.asked, tallies)
        refused = any(Verdict.REFUSED in tally.counts for tally in tallies)
        return [tally.result(self._action, refused_any=refused) for tally in tallies]

    async def _handle(self, text: str) -> Result:
        try:
            handle = decode_handle(text)
        except HandleError as error:
            return Result(text, text_of(Verdict.REFUSED), remark=str(error))
        if handle.broker_name != self._owner.broker_name:
            return Result(text, text_of(Verdict.UNKNOWN), remark="given by another broker")
        [result] = await self._names([handle.unique_id], handle.topic, _by_unique)
        result.name = text
        return result

    async def _topic(self, topic: str) -> Result:
        """Decide about all pending messages of a topic."""
        tally = Tally(topic)
        for port in self._owner.ports():
            for found in port.by_topic(topic, self._command.from_ms, self._command.until_ms):
                tally.gone = Verdict.DONE
                asked = np.zeros(found.offsets.size, np.int64)
                await self._decide(port, found.offsets, found.due_ms, asked, [tally])
        return tally.result(self._action)

    async def _decide(
        self,
        port: PendingMessages,
        offsets: Offsets,
        due_ms: Offsets,
        asked: Offsets,
        tallies: list[Tally],
    ) -> None:
        for first in range(0, offsets.size, PIECE):
            part = slice(first, first + PIECE)
            if self._command.dry_run:
                decided = Decided(np.full(offsets[part].size, Verdict.DONE, np.int8))
            else:
                decided = self._do(port, offsets[part])
                await self._look_again(offsets[part], decided)
                self.log_end = max(self.log_end, decided.log_end)
            rows = zip(
                asked[part].tolist(), due_ms[part].tolist(), decided.verdicts.tolist(),
                strict=True,
            )  # fmt: skip
            for at, (name, due, verdict) in enumerate(rows):
                tallies[name].add(verdict, due, decided.remarks.get(at, ""))
            await asyncio.sleep(0)

    async def _look_again(self, offsets: Offsets, decided: Decided) -> None:
        """Decide about messages that were moved, or changed their owner, since they were found."""
        lost = np.flatnonzero(np.isin(decided.verdicts, (Verdict.DELIVERED, Verdict.UNKNOWN)))
        for port in self._owner.ports() if lost.size else ():
            found = await port.by_offset(offsets[lost])
            if found.offsets.size:
                again, at = self._do(port, found.offsets), lost[found.asked]
                decided.verdicts[at] = again.verdicts
                decided.remarks |= {int(at[n]): text for n, text in again.remarks.items()}
                decided.log_end = max(decided.log_end, again.log_end)
                lost = np.setdiff1d(lost, at)

    def _do(self, port: PendingMessages, offsets: Offsets) -> Decided:
        if self._action == "cancel":
            return port.cancel(offsets)
        if self._action == "fire":
            return port.fire(offsets)
        times = np.full(offsets.size, self._due_ms, np.int64)
        return port.move(offsets, times, self._owner.run_hooks)


Finder = Callable[[PendingMessages, Store, str, list[str]], Awaitable[Found]]


async def _by_key(port: PendingMessages, store: Store, topic: str, names: list[str]) -> Found:
    return await port.by_key(topic, names, unique=False)


async def _by_unique(port: PendingMessages, store: Store, topic: str, names: list[str]) -> Found:
    return await port.by_key(topic, names, unique=True)


async def _by_id(port: PendingMessages, store: Store, topic: str, names: list[str]) -> Found:
    """Find by unique key, else by offset message id, which looks alike."""
    try:
        found = await _by_unique(port, store, topic, names)
    except StoreError:
        offsets = await _offsets_of(store, topic, names)
        if (offsets < 0).any():
            raise  # a unique key that cannot be looked up is not "unknown"
        return await port.by_offset(offsets)
    at = np.flatnonzero(found.gone == Verdict.UNKNOWN)
    offsets = await _offsets_of(store, topic, [names[index] for index in at.tolist()])
    at, offsets = at[offsets >= 0], offsets[offsets >= 0]
    if not at.size:
        return found
    more = await port.by_offset(offsets)
    gone = found.gone.copy()
    gone[at] = more.gone
    fresh = ~np.isin(more.offsets, found.offsets)
    _, firsts = np.unique(more.offsets, return_index=True)
    fresh &= np.isin(np.arange(more.offsets.size), firsts)
    return Found(
        np.concatenate([found.offsets, more.offsets[fresh]]),
        np.concatenate([found.due_ms, more.due_ms[fresh]]),
        np.concatenate([found.asked, at[more.asked[fresh]]]),
        gone,
    )


async def _offsets_of(store: Store, topic: str, names: list[str]) -> Offsets:
    """Return the log offsets of offset message ids, -1 for every other name."""
    offsets = np.full(len(names), -1, np.int64)
    for at, name in enumerate(names):
        offsets[at] = _offset_of(store, topic, name)
        if at % OFFSETS_AT_ONCE == OFFSETS_AT_ONCE - 1:
            await asyncio.sleep(0)
    return offsets


def _offset_of(store: Store, topic: str, name: str) -> int:
    """Return the log offset that an id names, -1 if it is not the id of a record there.

    The address and port in an id are those in the record, and a consume queue points at it:
    else any 32 hex digits, such as the unique key of a message that is unknown, would name one.
    """
    try:
        address, port, offset = decode_offset_id(name)
        record = store.read_queued(offset)
    except (ValueError, OverflowError, RecordUnreadable):
        return -1
    host = (ipaddress.ip_address(address).packed, port)
    real_topic = record.properties.get("REAL_TOPIC", record.topic)
    return offset if record.store_host == host and topic in ("", real_topic) else -1


def _parse(request: Request) -> DecisionRequest:
    try:
        command = msgspec.json.decode(request.body, type=DecisionRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _illegal(f"the body is no such JSON: {error}") from error
    names = len(command.ids) + len(command.keys) + len(command.handles)
    if names > NAMES_MAX:
        raise _illegal(f"{names} names in one request; at most {NAMES_MAX} are taken")
    if not names and not command.topic:
        raise _illegal("no messages selected: give ids, keys, handles or topic")
    return command


def _illegal(why: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, why)
