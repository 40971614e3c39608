"""Decision requests about pending messages: cancel (9011), move (9012), fire (9013).

    body      JSON: messages (ids, keys, handles), new due time, dry_run
        response  0 + JSON: one result for each name, in the order of the request

The plugins with pending messages are called one after the other, timers first. The processor
decides on messages as it finds them, in slices. One batch of all requests runs at a time, in the
order of arrival; other requests and due deliveries run before the next batch or slice. Names of
different requests that are alone in theirs, and handles, share batches: cancelling many messages
one by one takes one lookup and one append for all that wait. The processor responds when disk and
replicas, as configured, have confirmed the records of all decisions.

Apache does not use these codes; an Apache broker responds "not supported" (3).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from delayed_delivery import ownership
from delayed_delivery.kinds import TIMER_KIND
from delayed_delivery.newest_copies import newest_copies
from delayed_delivery.pending import Decided, Found, Offsets, PendingMessages, Verdict
from delayed_delivery.quarantine import NO_HOST
from delayed_delivery.shared_batches import SharedBatches
from duemq.messages.decision_results import OTHER_NAME, DecisionTally, text_of
from duemq.messages.decision_turns import DecisionTurns, SliceSize
from duemq.net.decisions import (
    ACTIONS,
    NAMES_MAX,
    TIME_MS_MAX,
    DecisionRequest,
    DecisionResponse,
    DecisionResult,
)
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, StoreError
from duemq_common.recall_handle import HandleError, decode_handle
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import TEMPLATE_TOPIC
from message_store.hooks import PutHook
from message_store.log.batch import ALL_KINDS, PutBatch
from message_store.log.offset_id import decode_offset_id
from message_store.log.properties import encode_properties
from message_store.replication.acknowledgement import not_confirmed

if TYPE_CHECKING:  # the commands start without the store
    from message_store.store import MessageStore

BATCH_MESSAGES = 2_000  # names that are looked up together
FLOW_CONTROL = ResponseCode.SYSTEM_ERROR
"""Code of refusals by limits of slots and topics, which do not concern all messages alike."""
OFFSETS_PER_TURN = 200  # records read for offset ids between two yields


class DecideProcessor:
    """Handler of decision requests (9011 to 9013).

    Args:
        ports: Returns the components that own pending messages.
        hooks: Put hooks, for messages that are moved from a delay level to a time.
    Attributes:
        turns: Held by the batch that runs.
    """

    def __init__(
        self,
        store: MessageStore,
        ports: Callable[[], Sequence[PendingMessages]],
        hooks: Sequence[PutHook],
        clock: Clock,
        broker_name: str,
    ) -> None:
        self.store, self.ports, self._hooks = store, ports, hooks
        self.clock, self.broker_name = clock, broker_name
        self.turns = DecisionTurns(ports, clock)
        self._batches = SharedBatches(self._decide_together, self.turns, BATCH_MESSAGES)

    def handlers(self) -> dict[int, RequestHandler]:
        return dict.fromkeys(ACTIONS, self.decide)

    async def decide(self, request: Request) -> Response:
        """Apply the decision to every message that the request names.

        Raises:
            RequestError: The request is malformed, messages cannot be looked up now, or the
                decisions were not confirmed in time.
        """
        command = _parse(request)
        rule = DecisionRule(
            ACTIONS[request.code],
            self._due_ms(request.code, command),
            command.from_ms,
            command.until_ms,
            command.dry_run,
        )
        job = DecisionJob(self, rule)
        try:
            results = await self._decide_in_order(job, command)
        except StoreError as error:
            text = str(error)
            if job.log_end:
                missing = await self.store.wait_confirmed(job.log_end)
                text += f"; {job.decided_count} messages were decided on before"
                text += ", but this is not confirmed" if missing else ""
            raise RequestError(ResponseCode.SYSTEM_ERROR, text) from error
        if job.log_end and (missing := await self.store.wait_confirmed(job.log_end)):
            count = sum(one.messages for one in results)
            raise not_confirmed(f"{count} messages were decided on", missing)
        return Response(body=msgspec.json.encode(DecisionResponse(results, command.dry_run)))

    async def _decide_in_order(
        self, job: DecisionJob, command: DecisionRequest
    ) -> list[DecisionResult]:
        """Return the results of ids, keys and handles."""
        results: list[DecisionResult] = []
        for find, texts in ((by_id, command.ids), (_by_key, command.keys)):
            names = [Name(command.topic, text) for text in texts]
            # Keys can share a part of their messages, and a batch decides once on each message.
            is_final = job.rule.action != "move" and not command.dry_run
            if len(names) == 1 and (find is by_id or is_final):
                results += await self._decide_with_others(job, find, names)
            else:
                results += await job.run(find, names)
        handles = [self._decoded(text) for text in command.handles]
        names = [each for each in handles if isinstance(each, Name)]
        decided = iter(await self._decide_with_others(job, _by_unique, names))
        for text, each in zip(command.handles, handles, strict=True):
            result = next(decided) if isinstance(each, Name) else each
            result.name = text
            results.append(result)
        return results

    def _decoded(self, handle: str) -> Name | DecisionResult:
        """Return what a handle names, or the result of a handle that names nothing here."""
        try:
            decoded = decode_handle(handle)
        except HandleError as error:
            return DecisionResult(handle, text_of(Verdict.REFUSED), remark=str(error))
        if decoded.broker_name != self.broker_name:
            return DecisionResult(
                handle, text_of(Verdict.UNKNOWN), remark="issued by another broker"
            )
        return Name(decoded.topic, decoded.unique_id)

    async def _decide_with_others(
        self, job: DecisionJob, find: Finder, names: Sequence[Name]
    ) -> list[DecisionResult]:
        """Return the results of names that share batches with those of other requests."""
        kind = find, job.rule
        waiting = [self._batches.add(kind, name, name) for name in names]
        shared = [await waiting[0]] if len(waiting) == 1 else await asyncio.gather(*waiting)
        for result, log_end in shared:
            if result.messages:
                job.log_end = max(job.log_end, log_end)
                job.decided_count += result.messages
        return [result for result, _ in shared]

    async def _decide_together(
        self, kind: tuple[Finder, DecisionRule], names: list[Name]
    ) -> list[tuple[DecisionResult, int] | None]:
        """Return the results of a shared batch, and the log offset to confirm."""
        find, rule = kind
        job = DecisionJob(self, rule)
        results = await job.batch(find, names)
        return [
            None if result.remark == OTHER_NAME and len(names) > 1 else (result, job.log_end)
            for result in results
        ]

    def _due_ms(self, code: int, command: DecisionRequest) -> int:
        """Return the new due time of a move in ms; 0 for other actions."""
        if code != RequestCode.MOVE_PENDING:
            return 0
        if (command.deliver_ms is None) == (command.delay_ms is None):
            raise _illegal("a move needs either deliver_ms or delay_ms")
        due_ms = command.deliver_ms or 0
        if command.delay_ms is not None:
            due_ms = self.clock.now_ms() + command.delay_ms
        if not 0 <= due_ms < TIME_MS_MAX:
            raise _illegal(f"{due_ms} is not a time in ms since 1970")
        return due_ms

    def apply(self, port: PendingMessages, action: str, offsets: Offsets, due_ms: int) -> Decided:
        """Cancel, move or fire the messages of a component.

        Args:
            due_ms: New due time of a move in ms since the epoch.
        """
        if action == "cancel":
            return port.cancel(offsets)
        if action == "fire":
            return port.fire(offsets)
        times = np.full(offsets.size, due_ms, np.int64)
        return port.move(offsets, times, self.run_hooks)

    def run_hooks(self, batch: PutBatch, now_ms: int) -> None:
        """Run the put hooks that concern a batch."""
        for hook in self._hooks:
            if batch.kinds & getattr(hook, "kinds", ALL_KINDS):
                hook(batch, now_ms)

    def move_fault(self, due_ms: int) -> str:
        """Return why no message can be moved to a due time; empty: the put hooks accept it."""
        now_ms = self.clock.now_ms()
        if due_ms <= now_ms:
            return ""
        probe = PutBatch(1)
        probe.add(
            topic_index=self.store.topics.add(TEMPLATE_TOPIC),
            queue_id=0,
            body=b"",
            properties=encode_properties({"TIMER_DELIVER_MS": str(due_ms)}),
            born_ms=now_ms,
            born_host=NO_HOST,
            store_host=NO_HOST,
        )
        probe.kinds = TIMER_KIND  # the hook of the levels may append their table
        self.run_hooks(probe, now_ms)
        is_possible = probe.rows[0]["status"] in (ResponseCode.SUCCESS, FLOW_CONTROL)
        return "" if is_possible else probe.remarks.get(0, "the due time is refused")


class Name(NamedTuple):
    """Name of messages: id, key, or the unique key in a handle.

    Attributes:
        topic: Real topic of the messages; empty: any.
    """

    topic: str
    text: str


class DecisionRule(msgspec.Struct, frozen=True):
    """Decision about all messages of a batch.

    Attributes:
        due_ms: New due time of a move in ms since the epoch.
        from_ms, until_ms, dry_run: As in `DecisionRequest`.
    """

    action: str
    due_ms: int = 0
    from_ms: int = 0
    until_ms: int = TIME_MS_MAX
    dry_run: bool = False


class DecisionJob:
    """Execution of one request, or of a batch that requests share.

    Attributes:
        log_end: Log offset up to which the log must be confirmed before the response.
        decided_count: Number of messages that were cancelled, moved or fired.
    """

    def __init__(self, owner: DecideProcessor, rule: DecisionRule) -> None:
        self._owner, self.rule = owner, rule
        self.log_end = self.decided_count = 0

    async def run(self, find: Finder, names: Sequence[Name]) -> list[DecisionResult]:
        """Return a result for each name."""
        results: list[DecisionResult] = []
        for first in range(0, len(names), BATCH_MESSAGES):
            async with self._owner.turns:
                results += await self.batch(find, names[first : first + BATCH_MESSAGES])
        return results

    async def batch(self, find: Finder, names: Sequence[Name]) -> list[DecisionResult]:
        """Decide on the messages with one of the names, in all ports, after all lookups."""
        rule = self.rule
        tallies = [DecisionTally(name.text) for name in names]
        for port, pending in await self._lookups(find, names):
            matches = pending.within(rule.from_ms, rule.until_ms)
            for tally, verdict in zip(tallies, matches.verdicts.tolist(), strict=True):
                tally.not_pending = min(tally.not_pending, verdict)
            outside = (pending.verdicts == Verdict.DONE) & (matches.verdicts != Verdict.DONE)
            for index in np.flatnonzero(outside).tolist():
                tallies[index].is_out_of_range = True
            await self._decide(port, matches.offsets, matches.due_ms, matches.name_index, tallies)
        refused = any(Verdict.REFUSED in tally.counts for tally in tallies)
        return [self._result(tally, refused_any=refused) for tally in tallies]

    async def _lookups(
        self, find: Finder, names: Sequence[Name]
    ) -> list[tuple[PendingMessages, Found]]:
        """Return what each port finds; a message that a migration moves meanwhile is found once.

        A port that was searched may have become the owner of messages of a later one, and the later
        one no longer has them. Then the former are searched again.
        """
        ports, store = self._owner.ports(), self._owner.store
        journal_end = ownership.bounds(store)[1]
        lookups = [(port, await find(port, store, names)) for port in ports]
        if ownership.bounds(store)[1] > journal_end:
            offsets = np.concatenate([pending.offsets for _, pending in lookups])
            for port in ports[:-1]:
                lookups.append((port, (await find(port, store, names)).without(offsets)))
        return lookups

    def _result(self, tally: DecisionTally, *, refused_any: bool = False) -> DecisionResult:
        result = tally.result(
            self.rule.action, moved_to_ms=self.rule.due_ms, refused_any=refused_any
        )
        if result.verdict == text_of(Verdict.UNKNOWN) and self._owner.store.min_offset > 0:
            result.remark = result.remark or NO_RECORD
        return result

    async def _decide(
        self,
        port: PendingMessages,
        offsets: Offsets,
        due_ms: Offsets,
        name_indexes: Offsets,
        tallies: list[DecisionTally],
    ) -> None:
        """Decide on found messages; add the verdicts to the tallies of their names.

        Args:
            offsets, due_ms, name_indexes: (n,) i8, as in `Found`.
        """
        first, size = 0, SliceSize(self._owner.turns.sizes, self.rule.action)
        while first < offsets.size:
            part = slice(first, first + size.count)
            first = part.stop
            if self.rule.dry_run:
                decided = self._expected(offsets[part].size)
            else:
                with size.measured():
                    decided = self._apply(port, offsets[part])
                await self._retry_transferred(offsets[part], decided)
                self.log_end = max(self.log_end, decided.log_end)
                self.decided_count += int(np.count_nonzero(decided.verdicts == Verdict.DONE))
            rows = zip(
                name_indexes[part].tolist(),
                due_ms[part].tolist(),
                decided.verdicts.tolist(),
                strict=True,
            )
            for index, (name_index, due, verdict) in enumerate(rows):
                tallies[name_index].add(verdict, due, decided.remarks.get(index, ""))
            await self._owner.turns.others_first()

    def _expected(self, count: int) -> Decided:
        """Return the result that a decision about pending messages would have."""
        refusal = self._owner.store.refusal
        remark = f"the store is not writable: {refusal}" if refusal else ""
        if not remark and self.rule.action == "move":
            remark = self._owner.move_fault(self.rule.due_ms)
        verdict = Verdict.REFUSED if remark else Verdict.DONE
        remarks = dict.fromkeys(range(count), remark) if remark else {}
        return Decided(np.full(count, verdict, np.int8), remarks)

    async def _retry_transferred(self, offsets: Offsets, decided: Decided) -> None:
        """Repeat the decision on messages that another port has owned since the lookup."""
        unresolved = np.flatnonzero(np.isin(decided.verdicts, (Verdict.DELIVERED, Verdict.UNKNOWN)))
        offsets = offsets.copy()
        with suppress(StoreError):  # without the key index, only transfers without a copy
            offsets[unresolved] = await newest_copies(self._owner.store, offsets[unresolved])
        for port in self._owner.ports() if unresolved.size else ():
            transferred = await port.by_offset(offsets[unresolved])
            if transferred.offsets.size:
                again, position = (
                    self._apply(port, transferred.offsets),
                    unresolved[transferred.name_index],
                )
                decided.verdicts[position] = again.verdicts
                decided.remarks |= {int(position[n]): text for n, text in again.remarks.items()}
                decided.log_end = max(decided.log_end, again.log_end)
                unresolved = np.setdiff1d(unresolved, position)

    def _apply(self, port: PendingMessages, offsets: Offsets) -> Decided:
        return self._owner.apply(port, self.rule.action, offsets, self.rule.due_ms)


NO_RECORD = "it was never pending here, or retention has removed the record of its delivery"
Finder: TypeAlias = "Callable[[PendingMessages, MessageStore, Sequence[Name]], Awaitable[Found]]"


async def _by_key(port: PendingMessages, _: MessageStore, names: Sequence[Name]) -> Found:
    topics, keys = zip(*names, strict=True)
    return await port.by_key(topics, keys, unique=False)


async def _by_unique(port: PendingMessages, _: MessageStore, names: Sequence[Name]) -> Found:
    topics, keys = zip(*names, strict=True)
    return await port.by_key(topics, keys, unique=True)


async def by_id(port: PendingMessages, store: MessageStore, names: Sequence[Name]) -> Found:
    """Find messages by unique key or offset message id; an id of 32 hex digits can be either.

    The id of an older record names the newest copy, which another component may own.
    """
    try:
        matches = await _by_unique(port, store, names)
    except StoreError:
        offsets = await _offsets_of(store, names)
        if (offsets < 0).any():
            raise  # without the key index, a name cannot be reported as unknown
        return await port.by_offset(offsets)
    positions = np.flatnonzero(
        matches.verdicts == Verdict.UNKNOWN
    )  # names that are not unique keys
    offsets = await _offsets_of(store, [names[index] for index in positions.tolist()])
    positions, offsets = positions[offsets >= 0], offsets[offsets >= 0]
    if not positions.size:
        return matches
    more = await port.by_offset(await newest_copies(store, offsets))
    verdicts = matches.verdicts.copy()
    verdicts[positions] = more.verdicts
    new = ~np.isin(more.offsets, matches.offsets)  # each message once, by the first of its names
    _, firsts = np.unique(more.offsets, return_index=True)
    new &= np.isin(np.arange(more.offsets.size), firsts)
    return Found(
        np.concatenate([matches.offsets, more.offsets[new]]),
        np.concatenate([matches.due_ms, more.due_ms[new]]),
        np.concatenate([matches.name_index, positions[more.name_index[new]]]),
        verdicts,
    )


async def _offsets_of(store: MessageStore, names: Sequence[Name]) -> Offsets:
    """Return the log offsets of offset message ids; -1 for other names."""
    offsets = np.full(len(names), -1, np.int64)
    for index, name in enumerate(names):
        offsets[index] = _offset_of(store, name)
        if index % OFFSETS_PER_TURN == OFFSETS_PER_TURN - 1:
            await asyncio.sleep(0)
    return offsets


def _offset_of(store: MessageStore, name: Name) -> int:
    """Return the log offset in an offset message id; -1 if no queued record has this id.

    The store host of the record must match the id: any 32 hex digits, such as an unknown unique
    key, can be decoded as an id.
    """
    try:
        address, port, offset = decode_offset_id(name.text)
        if not 0 <= offset < store.max_offset:
            return -1  # nearly every unique key that is no offset id
        record = store.read_queued(offset)
    except (ValueError, OverflowError, RecordUnreadable):
        return -1
    host = (ipaddress.ip_address(address).packed, port)
    real_topic = record.properties.get("REAL_TOPIC", record.topic)
    return offset if record.store_host == host and name.topic in ("", real_topic) else -1


def _parse(request: Request) -> DecisionRequest:
    try:
        command = msgspec.json.decode(request.body, type=DecisionRequest)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _illegal(f"the body is not a decision request in JSON: {error}") from error
    names = len(command.ids) + len(command.keys) + len(command.handles)
    if names > NAMES_MAX:
        raise _illegal(f"{names} names in one request; the maximum is {NAMES_MAX}")
    if not names:
        raise _illegal("no messages selected: give ids, keys or handles")
    return command


def _illegal(reason: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, reason)
