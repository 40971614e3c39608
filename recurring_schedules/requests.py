"""Request 9016: changes of schedules. Every change is one record in the journal.

    fields  action, name, topic, note, from_ms, until_ms     body  definition (create)

The field `topic` is the topic of the schedule, for which the account needs the right to send.
Between the check of a change and its record there is no await, so two requests cannot contradict
each other. The response waits until disk and replicas have the record.

A pause or deletion also cancels the pending occurrence. Its record comes first and names the
occurrence, so a start after a crash in between repeats the cancellation (`finish_withdrawals`). If
the store refuses a cancellation, it is repeated until it is done (`run`), and before other changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from delayed_delivery.names import MANUAL, SCHEDULE_NAME
from delayed_delivery.pending import HitQuery, Offsets, PendingMessages, Verdict
from delayed_delivery.schedule_rows import DERIVED_PREFIX
from delayed_delivery.steps import Steps, in_turns
from duemq_common.clock import Clock, Signal
from duemq_common.codes import ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError, StoreError
from duemq_common.log_lines import FailureLog
from duemq_common.request import Request, Response
from duemq_common.topics import TIMER_TOPIC
from message_store.log.batch import PutBatch
from recurring_schedules import journal
from recurring_schedules.backfill import times_between
from recurring_schedules.definition import (
    Definition,
    InvalidDefinition,
    check,
    decode_definition,
)
from recurring_schedules.journal import ACTIVE, DELETED, PAUSED, ScheduleRecord
from recurring_schedules.messages import add_occurrence
from recurring_schedules.names import occurrence_key
from recurring_schedules.occurrences import StepWork, first_time, search_after
from recurring_schedules.planner import Planner
from recurring_schedules.table import ScheduleTable

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
NOTE_CHARACTERS_MAX: Final = 1_000
RETRY_MS: Final = 1_000  # between two attempts to cancel an occurrence
SEARCHES_MAX: Final = 3  # for an occurrence without key index, if messages were appended meanwhile


class ScheduleRequests:
    """Handlers of changes.

    Args:
        pending: Pending timers, for cancellations.
    """

    def __init__(
        self,
        store: MessageStore,
        table: ScheduleTable,
        planner: Planner,
        pending: PendingMessages,
        clock: Clock,
    ) -> None:
        self._store, self._table, self._planner = store, table, planner
        self._pending, self._clock = pending, clock
        self._failures, self._wake, self._stops = FailureLog(log), Signal(), False
        self._searched = set[str]()  # schedules for whose backfill times are searched
        self._actions = {
            "create": self._create,
            "pause": self._pause,
            "resume": self._resume,
            "trigger": self._trigger,
            "backfill": self._backfill,
            "delete": self._delete,
        }

    async def handle(self, request: Request) -> Response:
        """Handle request 9016."""
        action = self._actions.get(request.fields.get("action", ""))
        if action is None:
            names = ", ".join(self._actions)
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"the field action is one of: {names}"
            )
        if self._store.refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self._store.refusal)
        if (name := request.fields.get("name", "")) in self._table.withdrawn:
            await self.finish_withdrawals()
            if name in self._table.withdrawn:
                raise _not_cancelled(name, "it is cancelled as soon as the store allows it")
        try:
            result = await action(request)
        except StoreError as error:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        except InvalidDefinition as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        missing = await self._store.wait_confirmed(self._store.max_offset)
        if missing:
            raise RequestError(missing.code, f"the change is in the log, but {missing.text}")
        return Response(body=msgspec.json.encode(result))

    # -- create -------------------------------------------------------------------------------

    async def _create(self, request: Request) -> dict[str, object]:
        definition = decode_definition(request.body)
        if request.fields.get("topic") != definition.topic:
            raise InvalidDefinition("the field topic is not the definition's topic")
        steps = self.record_of(definition, self._clock.now_ms(), StepWork())
        record = await in_turns(steps)
        existing = self._find(definition.name)
        if existing is not None:
            if existing.definition != definition:  # of a request at the same time
                raise InvalidDefinition(already_exists(definition.name))
            return {"created": False, **self._progress(existing)}
        journal.append(self._store, record, record.changed_ms)
        return {"created": True, **await self._planned(record)}

    async def _planned(self, record: ScheduleRecord) -> dict[str, object]:
        """Plan an active schedule, whose record was appended; return its progress."""
        slot = self._table.find(record.definition.name)
        if record.next_ms:
            await self._planner.plan(slot)
        self._planner.wake()
        return self._progress(self._find(record.definition.name) or record)

    def record_of(
        self, definition: Definition, now_ms: int, step: StepWork
    ) -> Steps[ScheduleRecord]:
        """Return the record of a new schedule, or the newest one of the same schedule.

        Args:
            step: Work of the current step; see `occurrences.search_after`.
        Raises:
            InvalidDefinition: It cannot be created, or the name has another definition.
        """
        existing = self._find(definition.name)
        if existing is None:
            return (yield from self._new_record(definition, now_ms, step))
        if existing.definition != definition:
            raise InvalidDefinition(already_exists(definition.name))
        return existing

    def _new_record(
        self, definition: Definition, now_ms: int, step: StepWork
    ) -> Steps[ScheduleRecord]:
        check(definition)
        topics = self._store.topics
        if fault := journal.topic_fault(topics, definition.topic):
            raise InvalidDefinition(f"{fault}: create it first")
        if (
            topics.arrays.topics[topics.find(definition.topic)]["closed"]
            or definition.topic == TIMER_TOPIC
            or definition.topic.startswith(DERIVED_PREFIX)
        ):
            raise InvalidDefinition(f"topic {definition.topic} belongs to the broker")
        first_ms = yield from first_time(definition, now_ms, step)
        return ScheduleRecord(
            definition=definition,
            planned_ms=now_ms,
            next_ms=first_ms,
            created_ms=now_ms,
            changed_ms=now_ms,
        )

    def _find(self, name: str) -> ScheduleRecord | None:
        slot = self._table.find(name)
        if slot < 0:
            return None
        record = self._table.record(self._store, slot)
        if record.definition.name != name:
            reason = f"the name has the same hash as {record.definition.name}: choose another one"
            raise RequestError(ResponseCode.INVALID_PARAMETER, reason)
        return record

    def _existing(self, request: Request) -> ScheduleRecord:
        name = request.fields.get("name", "")
        record = self._find(name)
        if record is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"there is no schedule {name[:200]!r}")
        if request.fields.get("topic") != record.definition.topic:
            topic = record.definition.topic
            raise RequestError(ResponseCode.NO_PERMISSION, f"the field topic is not {topic}")
        return record

    # -- pause, resume, delete ----------------------------------------------------------------

    async def _pause(self, request: Request) -> dict[str, object]:
        return await self._withdraw(request, PAUSED)

    async def _delete(self, request: Request) -> dict[str, object]:
        return await self._withdraw(request, DELETED)

    async def _withdraw(self, request: Request, state: str) -> dict[str, object]:
        """Append the record of a pause or deletion, then cancel the pending occurrence.

        If the occurrence before it is delayed by its jitter, it is cancelled, too.
        """
        record = self._existing(request)
        while record.state != state:
            delayed = await self._delayed_offsets(record)
            offsets = await self._pending_offsets(record)
            if self._existing(request) != record:  # it has changed meanwhile
                record = self._existing(request)
                continue
            withdrawn_ms = record.planned_ms if offsets.size else record.withdrawn_ms
            changed = self._changed(record, request, state, withdrawn_ms=withdrawn_ms)
            journal.append(self._store, changed, changed.changed_ms)
            self._cancel(changed, offsets, delayed)
            return self._progress(changed)
        return self._progress(record)

    async def _pending_offsets(self, record: ScheduleRecord) -> Offsets:
        """Return the log offset of the pending occurrence, also if it has a newer record.

        Retention may have removed the record that the schedule knows: a compaction has copied it.

        Raises:
            StoreError: The key index, which finds newer records, is too far behind the log.
        """
        offset = record.pending_offset
        if offset < 0:
            return np.empty(0, np.int64)
        try:
            return await self._newest_pending(record)
        except StoreError:
            if self._store.index.enabled:
                raise
            return await self._pending_without_index(record)

    async def _pending_without_index(self, record: ScheduleRecord) -> Offsets:
        """Return what `_pending_offsets` returns, from all pending messages of the topic.

        An occurrence that was moved during a search can be missed: the next search finds it.
        """
        definition, name = record.definition, record.definition.name
        key = occurrence_key(name, record.planned_ms).encode()
        for _ in range(SEARCHES_MAX):
            log_end = self._store.max_offset
            offsets = await self._search(name, HitQuery(topic=definition.topic), key.__eq__)
            if offsets.size or self._store.max_offset == log_end:
                break
        return offsets

    async def _delayed_offsets(self, record: ScheduleRecord) -> Offsets:
        """Return the log offset of the occurrence before the pending one, if its jitter delays it.

        The pending one is planned as soon as the time before its jitter is over.
        """
        definition, name = record.definition, record.definition.name
        if not definition.jitter_ms:
            return np.empty(0, np.int64)
        until_ms = self._clock.now_ms() + definition.jitter_ms + 1
        query = HitQuery(topic=definition.topic, until_ms=until_ms)
        prefix, pending = f"{name}@".encode(), occurrence_key(name, record.planned_ms).encode()
        return await self._search(
            name, query, lambda key: key.startswith(prefix) and key != pending
        )

    async def _search(
        self, name: str, query: HitQuery, is_searched: Callable[[bytes], bool]
    ) -> Offsets:
        """Search once through pending messages for an occurrence with a unique key."""
        cursor = ""
        while True:
            hits = self._pending.search(query, cursor)
            for offset, unique_key in zip(hits.offsets.tolist(), hits.keys, strict=True):
                if is_searched(unique_key) and self._schedule_of(offset) == name:
                    return np.array([offset], np.int64)
            if hits.cursor is None:
                return np.empty(0, np.int64)
            cursor = hits.cursor
            await asyncio.sleep(0)

    async def _newest_pending(self, record: ScheduleRecord) -> Offsets:
        offset = record.pending_offset
        if offset >= self._store.min_offset:
            return (await self._pending.by_offset(np.array([offset], np.int64))).offsets
        name = record.definition.name
        key = occurrence_key(name, record.planned_ms)
        pending = await self._pending.by_key(record.definition.topic, [key], unique=True)
        is_own = [self._schedule_of(each) == name for each in pending.offsets.tolist()]
        return pending.offsets[np.array(is_own, np.bool_)]

    def _schedule_of(self, offset: int) -> str:
        """Return the schedule of an occurrence, empty for another message with its key."""
        try:
            properties = self._store.read_record(offset).properties
        except RecordUnreadable:
            return ""
        return "" if MANUAL in properties else str(properties.get(SCHEDULE_NAME, ""))

    def _cancel(self, record: ScheduleRecord, offsets: Offsets, delayed: Offsets) -> None:
        """Cancel the occurrence that a record withdraws; correct the record if it was delivered.

        Args:
            offsets, delayed: See `_pending_offsets` and `_delayed_offsets`.
        """
        decided = self._pending.cancel(np.concatenate([offsets, delayed]))
        for remark in decided.remarks.values():
            self._table.withdrawn[record.definition.name] = record
            self._wake.set()
            raise _not_cancelled(record.definition.name, remark)
        is_done = (decided.verdicts[: offsets.size] == Verdict.DONE).any()
        if record.state == PAUSED and offsets.size and not is_done:
            corrected = replace(record, withdrawn_ms=0, revision=record.revision + 1)
            journal.append(self._store, corrected, record.changed_ms)

    def _changed(
        self, record: ScheduleRecord, request: Request, state: str, **more: int
    ) -> ScheduleRecord:
        note = request.fields.get("note", "")[:NOTE_CHARACTERS_MAX]
        now_ms = self._clock.now_ms()
        changed: ScheduleRecord = replace(
            record,
            state=state,
            note=note,
            revision=record.revision + 1,
            changed_ms=now_ms,
            **more,
        )
        return changed

    async def _resume(self, request: Request) -> dict[str, object]:
        """Plan again from now on; the occurrence that the pause has cancelled may come first."""
        record = self._existing(request)
        while True:
            if record.state == ACTIVE:
                return self._progress(record)
            self._check_topic(record)
            now_ms = self._clock.now_ms()
            planned_ms = max(record.planned_ms, now_ms)
            if record.withdrawn_ms > now_ms:
                planned_ms = record.withdrawn_ms - 1
            next_ms = await _next_after(record.definition, planned_ms) or 0
            if (newest := self._existing(request)) == record:
                break
            record = newest  # it has changed meanwhile
        changed = self._changed(
            record,
            request,
            ACTIVE,
            planned_ms=min(planned_ms, now_ms),
            next_ms=next_ms,
            withdrawn_ms=0,
        )
        journal.append(self._store, changed, changed.changed_ms)
        return await self._planned(changed)

    def _progress(self, record: ScheduleRecord) -> dict[str, object]:
        return {
            "name": record.definition.name,
            "state": record.state,
            "revision": record.revision,
            "planned_ms": record.pending_ms(self._clock.now_ms()),
            "next_ms": record.next_ms,
        }

    def _check_topic(self, record: ScheduleRecord) -> None:
        if fault := journal.topic_fault(self._store.topics, record.definition.topic):
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"{fault}: create it first")

    async def finish_withdrawals(self) -> None:
        """Cancel the occurrences of pauses and deletions that were interrupted.

        Those that cannot be cancelled now stay in `ScheduleTable.withdrawn`.
        """
        for name, record in list(self._table.withdrawn.items()):
            try:
                delayed = await self._delayed_offsets(record)
                offsets = await self._pending_offsets(record)
                if self._table.withdrawn.get(name) is not record:  # it was done meanwhile
                    continue
                self._cancel(record, offsets, delayed)
            except (RequestError, StoreError) as error:
                self._failures.failed(
                    name, error, "the occurrence of schedule %s is not cancelled", name
                )
            else:
                self._failures.succeeded(name)
                self._table.withdrawn.pop(name, None)

    async def run(self) -> None:
        """Repeat the cancellations that failed until `stop`."""
        while not self._stops:
            self._wake.clear()
            until_ms = self._clock.now_ms() + RETRY_MS if self._table.withdrawn else None
            await self._clock.wait(self._wake, until_ms=until_ms)
            if not self._stops:
                await self.finish_withdrawals()

    def stop(self) -> None:
        """Make `run` return."""
        self._stops = True
        self._wake.set()

    # -- occurrences on request ---------------------------------------------------------------

    async def _trigger(self, request: Request) -> dict[str, object]:
        record, now_ms = self._existing(request), self._clock.now_ms()
        appended = self._append_manual(record, [now_ms], "trigger", now_ms)
        return {**self._progress(record), "appended": appended}

    async def _backfill(self, request: Request) -> dict[str, object]:
        record, now_ms = self._existing(request), self._clock.now_ms()
        from_ms, until_ms = _number(request, "from_ms"), _number(request, "until_ms")
        if until_ms > now_ms:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "the end of a backfill is in the future"
            )
        name, peer = record.definition.name, request.peer
        if name in self._searched:
            reason = f"a backfill of schedule {name} runs: wait for its end"
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        self._searched.add(name)
        try:
            times = await in_turns(times_between(record.definition, from_ms, until_ms))
        finally:
            self._searched.discard(name)
        if peer is not None and peer.closed:  # its user saw a failure, and may repeat the request
            raise RequestError(ResponseCode.SYSTEM_ERROR, "nothing is sent: the connection closed")
        current = self._existing(request)
        if current.definition != record.definition:
            reason = f"schedule {name} was created again meanwhile: try again"
            raise RequestError(ResponseCode.INVALID_PARAMETER, reason)
        appended = self._append_manual(record, times, "backfill", now_ms)
        return {**self._progress(current), "appended": appended}

    def _append_manual(
        self, record: ScheduleRecord, times: list[int], manual: str, now_ms: int
    ) -> int:
        self._check_topic(record)
        batch = PutBatch(max(len(times), 1))
        for planned_ms in times:
            add_occurrence(
                batch,
                self._store.topics,
                record.definition,
                planned_ms,
                next_ms=0,
                due_ms=now_ms,
                now_ms=now_ms,
                manual=manual,
                key_suffix=f"#{manual}-{self._store.max_offset}",
            )
        self._planner.put(batch, now_ms)
        refused = np.flatnonzero(batch.filled["status"])
        if refused.size:
            first = int(refused[0])
            text = batch.refusal(first)
            raise RequestError(
                int(batch.rows[first]["status"]),
                f"{refused.size} of {len(times)} occurrences were refused: {text}",
            )
        return len(times)


async def _next_after(definition: Definition, after_ms: int) -> int | None:
    """Return the first planned time after a time, None if there is none; other work runs."""
    return await in_turns(search_after(definition, after_ms, StepWork()))


def _not_cancelled(name: str, remark: str) -> RequestError:
    return RequestError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"an occurrence of schedule {name} stays pending: {remark}",
    )


def already_exists(name: str) -> str:
    """Return why another definition of a name is refused."""
    return (
        f"schedule {name} exists with another definition: delete it first, or choose another name"
    )


def _number(request: Request, name: str) -> int:
    text = request.fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"the field {name} is not a time in ms")
    return int(text)
