"""Transactions: end (37), and checks at producers that do not answer (39).

    send (TRAN_MSG) --> half topic        37 commit   --> [real message, op] in one batch
                                          37 rollback --> [op]
    every transactionCheckInterval, for each unfinished half message that is old enough:
        [newer copy with its count + 1, op for the elder] in one batch, then 39 to the producer
        or, asked transactionCheckMax times: [TRANS_CHECK_MAX_TIME_TOPIC, op]

Everything that finishes a half message is in one batch with its op record. A crash, or a disk
that fills up in between, may leave the first alone: `recover` searches the log for such commits,
and an op record that is owed is written as soon as the store takes it.
EndTransactionProcessor, TransactionalMessageServiceImpl, TransactionalMessageCheckService.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Self

from delivery.plugin import Request, RequestHandler, Response
from duemq.auth.model import Action
from duemq.auth.record_access import EveryRecord, RecordAccess
from duemq.configuration.config import BrokerConfig
from duemq.messages.copies import add_copy, batch_for, not_confirmed, refusal
from duemq.metrics.meters import Meters
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.notices import Notices
from duemq.ports import PERM_READ, PERM_WRITE, Identity, Offsets, Putter, Topics
from duemq.registry.clients import ClientTable
from duemq.transactions import half_messages
from duemq.transactions.check_back import check_request, producer_of
from duemq.transactions.half_messages import (
    CHECK_TIMES,
    GIVEN_UP_TOPIC,
    GROUP,
    HALF_TOPIC,
    OP_TAG,
    OP_TOPIC,
    PRODUCER_GROUP,
    HalfMessages,
    Step,
)
from duemq.transactions.torn_commits import torn_commits
from message_store import layout
from message_store.clock import Clock
from message_store.errors import RecordUnreadable, RequestError
from message_store.log.batch import PutBatch
from message_store.log.record import Record
from message_store.replication.acknowledgement import Missing
from message_store.text import decode_offset_id

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
READ_UNITS_MAX = 1_024
STEPS_OF_ROUND_MAX = 2_000
COMMIT, ROLLBACK = layout.SYS_COMMIT, layout.SYS_ROLLBACK


class Transactions:
    """Handler of 37, and check-backs. A context manager: its task checks back."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        clients: ClientTable,
        put: Putter,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        meters: Meters | None = None,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or EveryRecord()
        self._store, self._topics = store, topics
        self._offsets, self._clients = offsets, clients
        self._put, self._identity = put, identity
        self._clock, self._config = clock, config
        self._meters = meters or Meters()
        self.halves = HalfMessages()
        self._at_work: dict[int, asyncio.Event] = {}  # half offsets that are being ended or asked
        self._bound: set[int] = set()  # id() of batches whose last row must not go alone
        self._owed: list[int] = []  # finished half offsets whose op record is not in the log
        self._recovered = False
        self._stopped = asyncio.Event()
        self._unasked = Notices(log)

    @property
    def open_count(self) -> int:
        """Half messages that are neither committed nor rolled back nor given up."""
        end = self._store.queue_bounds(HALF_TOPIC, 0)[1]
        return max(end - self.halves.half_next - len(self.halves.finished), 0)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    def put_hook(self, batch: PutBatch, now_ms: int) -> None:
        """Refuse an op record if a hook refused the message it finishes. The last of all hooks."""
        if id(batch) in self._bound:
            last = batch.count - 1
            if batch.filled["status"][:last].any():
                batch.refuse(last, ResponseCode.MESSAGE_ILLEGAL, "the message before was refused")

    async def _put_bound(
        self, batch: PutBatch, half_offset: int
    ) -> tuple[str | None, Missing | None]:
        """Put a message and its op record.

        Returns:
            Why the message was not stored, None if it was; what both lack to be confirmed.
        """
        self._bound.add(id(batch))
        try:
            missing = await self._put(batch)
        finally:
            self._bound.discard(id(batch))
        fault, op_fault = refusal(batch), refusal(batch, batch.count - 1)
        if op_fault is None:
            if batch.rows[batch.count - 1]["queue_offset"] == self.halves.op_read:
                self.halves.take_op(self.halves.op_read, [half_offset])
        elif fault is None:
            self._owed.append(half_offset)
        return fault, missing

    def _write_owed(self) -> None:
        """Write the op records that are owed, if the store takes them now."""
        if not self._owed:
            return
        batch = PutBatch(len(self._owed))
        for half_offset in self._owed:
            self._add_op(batch, half_offset)
        self._store.put(batch)
        faults = [refusal(batch, row) for row in range(batch.count)]
        self._owed = [at for at, fault in zip(self._owed, faults, strict=True) if fault]
        if self._owed:
            log.warning(
                "op records of %d finished half messages cannot be written yet: %s",
                len(self._owed),
                next(filter(None, faults)),
            )
        self._fold_ops()

    # --- 37

    async def end(self, request: Request) -> Response | None:
        """Commit or roll back a half message; one that is finished already stays as it is."""
        verdict = fields.integer(request, "commitOrRollback")
        if verdict not in (COMMIT, ROLLBACK):
            return None
        if self._store.read_only:  # its ops are newer than its copies
            raise RequestError(ResponseCode.SLAVE_NOT_AVAILABLE, self._store.read_only)
        half = self._half_of(request)
        self._records.check_record(request, half.properties.get("REAL_TOPIC", ""), Action.PUB)
        self._check_immunity(request, half)
        while (done := self._at_work.get(half.queue_offset)) is not None:
            await done.wait()  # it may have been put again: then its copy is the one to end
            half = self._half_of(request)
        self._fold_ops()
        offset = half.queue_offset
        if self.halves.is_finished(offset):
            if missing := await self._store.wait_confirmed(self._store.max_offset):
                raise not_confirmed("the transaction was ended before", missing)
            return Response(remark=f"half message {offset} is finished already", fields={})
        with self._work_on(offset):
            missing = await self._finish(half, commit=verdict == COMMIT)
        if missing:
            raise not_confirmed("the transaction was ended", missing)
        return Response(fields={})

    @contextmanager
    def _work_on(self, offset: int) -> Iterator[None]:
        """Keep others from a half message while the block is open."""
        done = self._at_work[offset] = asyncio.Event()
        try:
            yield
        finally:
            del self._at_work[offset]
            done.set()

    async def _finish(self, half: Record, *, commit: bool) -> Missing | None:
        """Append the end of a transaction; return what it lacks to be confirmed."""
        batch = batch_for(half)
        if commit:
            self._add_commit(batch, half)
        self._add_op(batch, half.queue_offset)
        fault, missing = await self._put_bound(batch, half.queue_offset)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the message was not stored: {fault}")
        self.halves.finish(half.queue_offset, half_messages.same_half(half))
        topic = half.properties.get("REAL_TOPIC", "")
        if commit:
            self._meters.commits.add(topic)
            age_ms = max(self._clock.now_ms() - half.born_ms, 0)
            self._meters.commit_s.add(age_ms // 1_000, topic)
        else:
            self._meters.rollbacks.add(topic)
        return missing

    def _add_commit(self, batch: PutBatch, half: Record) -> None:
        topic, queue_id = half_messages.target_of(half)
        add_copy(
            batch,
            half,
            topic_index=self._store.topics.add(topic),
            queue_id=queue_id,
            properties=half.property_text,
            store_host=self._identity.host,
            sys_flag=half.sys_flag & ~layout.SYS_TRANSACTION_MASK | COMMIT,
            prepared_offset=half.phys_offset,
        )

    def _half_of(self, request: Request) -> Record:
        """Return the half message that is meant: the newest copy of the one named."""
        phys_offset = fields.long(request, "commitLogOffset")
        queue_offset = fields.long(request, "tranStateTableOffset")
        half = self._read(phys_offset)
        fault = half_messages.mismatch(half, fields.text(request, "producerGroup"), queue_offset)
        if fault:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{fault}, commitLogOffset {phys_offset}")
        same = half_messages.same_half(half)
        newest = self.halves.copies.get(same, queue_offset) if same else queue_offset
        if newest == queue_offset:
            return half
        return self._half_at(newest) or half

    def _read(self, phys_offset: int) -> Record:
        """Return the message at an offset that a client names."""
        try:
            return self._store.read_queued(phys_offset)
        except RecordUnreadable as fault:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"Find prepared transaction message failed: {fault}"
            ) from fault

    def _check_immunity(self, request: Request, half: Record) -> None:
        if fields.boolean(request, "fromTransactionCheck"):
            return
        limit_ms = half_messages.immunity(half, self._config().transaction_timeout_ms)
        if limit_ms is not None and self._clock.now_ms() - half.born_ms > limit_ms:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "the end of the transaction comes after its immunity: wait for the check",
            )

    # --- the op queue

    def recover(self) -> None:
        """Rebuild the state from the two topics and the stored progress.

        Call it once, before anything is appended to the log: it writes the op records that a
        crash tore off.
        """
        self._recovered = True
        halves = self.halves
        low, high = self._store.queue_bounds(HALF_TOPIC, 0)
        op_low, op_high = self._store.queue_bounds(OP_TOPIC, 0)
        stored = self._offsets.query(GROUP, HALF_TOPIC, 0)
        halves.half_next = min(max(stored or 0, low), high)
        halves.op_next = min(max(self._offsets.query(GROUP, OP_TOPIC, 0) or 0, op_low), op_high)
        halves.op_read = halves.op_next
        self._fold_ops()
        self._fold_copies()
        for half in torn_commits(self._store, self._open_halves(high)):
            halves.finish(half.queue_offset, half_messages.same_half(half))
            self._owed.append(half.queue_offset)
        self._write_owed()
        halves.advance(high)
        log.info("transactions: half messages from %d to %d are open", halves.half_next, high)

    def _fold_ops(self) -> None:
        """Read the op records that were not read yet."""
        while True:
            offset = self.halves.op_read
            units = self._store.units(OP_TOPIC, 0, offset, READ_UNITS_MAX)
            if units.size == 0:
                return
            for at, phys_offset in enumerate(units["phys_offset"].tolist()):
                self.halves.take_op(offset + at, self._op_body(phys_offset))

    def _op_body(self, phys_offset: int) -> list[int]:
        try:
            record = self._store.read_record(phys_offset)
        except RecordUnreadable as fault:
            log.warning("an op record cannot be read: %s", fault)
            return []
        tag = record.properties.get("TAGS")
        return half_messages.parse_op(record.body) if tag == OP_TAG else []

    def _fold_copies(self) -> None:
        """Find copies of one half message: only the newest is open, op record or not."""
        known: dict[half_messages.Same, Record] = {}
        _, high = self._store.queue_bounds(HALF_TOPIC, 0)
        for offset in range(self.halves.half_next, high):
            half = None if self.halves.is_finished(offset) else self._half_at(offset)
            same = half_messages.same_half(half) if half else None
            if half is None or same is None:
                continue
            if same in known:
                self.halves.finish(known[same].queue_offset)
            known[same] = half
            if half_messages.times_asked(half):
                self.halves.copies[same] = offset

    def _open_halves(self, high: int) -> dict[int, int]:
        """Return the unfinished half messages: queue offsets by log offset."""
        found: dict[int, int] = {}
        offset = self.halves.half_next
        while offset < high:
            units = self._store.units(HALF_TOPIC, 0, offset, READ_UNITS_MAX)
            for at, phys_offset in enumerate(units["phys_offset"].tolist(), offset):
                if not self.halves.is_finished(at):
                    found[phys_offset] = at
            offset += max(int(units.size), 1)
        return found

    def _half_at(self, offset: int) -> Record | None:
        units = self._store.units(HALF_TOPIC, 0, offset, 1)
        try:
            return self._store.read_record(int(units[0]["phys_offset"])) if units.size else None
        except RecordUnreadable as fault:
            log.warning("a half message cannot be read: %s", fault)
            return None

    # --- asking back

    async def resume(self, request: Request) -> Response:
        """Answer 323: put a message that was given up back, and check back again."""
        phys_offset = _offset_of_id(request)
        record = self._read(phys_offset)
        if record.topic != GIVEN_UP_TOPIC:  # others are asked about without it, or are finished
            text = f"only messages in {GIVEN_UP_TOPIC} can be resumed, not in {record.topic}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        properties = dict(record.properties)
        self._records.check_record(request, properties.get("REAL_TOPIC", ""), Action.UPDATE)
        properties[CHECK_TIMES] = "0"
        batch = batch_for(record)
        self._add_half(batch, record, properties)
        missing = await self._put(batch)
        fault = refusal(batch)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"Put message back error: {fault}")
        if missing:
            raise not_confirmed("the half message was put back", missing)
        return Response()

    async def run(self) -> None:
        """Ask about unfinished half messages every transactionCheckInterval until stopped."""
        while not self._stopped.is_set():
            interval_ms = self._config().transaction_check_interval_ms
            await self._clock.wait(self._stopped, until_ms=self._clock.now_ms() + interval_ms)
            if not self._stopped.is_set():
                await self.check()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Ask back while the block lasts."""
        if not self._recovered:
            self.recover()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="transaction check")
            try:
                yield self
            finally:
                self._stopped.set()
                self._keep_progress()

    async def check(self) -> None:
        """Make one round over the half messages that are unfinished now."""
        low, high = self._store.queue_bounds(HALF_TOPIC, 0)
        self._fold_ops()
        self._write_owed()
        self.halves.skip_to(low)
        offset, steps = self.halves.half_next, 0
        while offset < high and steps < STEPS_OF_ROUND_MAX:
            if not self.halves.is_finished(offset) and offset not in self._at_work:
                steps += 1
                if await self._step(offset) is Step.WAIT:
                    break
                await asyncio.sleep(0)  # a round may have thousands
            offset += 1
        self.halves.advance(high)
        self._keep_progress()

    async def _step(self, offset: int) -> Step:
        half = self._half_at(offset)
        if half is None:
            self.halves.finish(offset)
            return Step.LEAVE
        config = self._config()
        step = half_messages.plan_step(
            half,
            now_ms=self._clock.now_ms(),
            timeout_ms=config.transaction_timeout_ms,
            checks_max=config.transaction_checks_max,
        )
        if step in (Step.ASK, Step.GIVE_UP):
            with self._work_on(offset):
                await (self._ask(half) if step is Step.ASK else self._give_up(half))
        return step

    async def _ask(self, half: Record) -> None:
        properties = dict(half.properties)
        properties[CHECK_TIMES] = str(half_messages.times_asked(half) + 1)
        batch = batch_for(half)
        row = self._add_half(batch, half, properties)
        self._add_op(batch, half.queue_offset)
        fault, _ = await self._put_bound(batch, half.queue_offset)
        if fault is not None:
            log.warning("half message %d cannot be put again: %s", half.queue_offset, fault)
            return
        copy = batch.rows[row]
        same = half_messages.same_half(half)
        self.halves.replace(half.queue_offset, int(copy["queue_offset"]), same)
        producer = producer_of(properties, self._clients, self._records)
        if producer is None:
            text = "half message %d is pending: no producer of group %s is connected"
            self._unasked(text, half.queue_offset, properties.get(PRODUCER_GROUP))
            return
        producer.peer.send_oneway(
            check_request(
                half,
                properties,
                queue_offset=int(copy["queue_offset"]),
                phys_offset=int(copy["phys_offset"]),
                identity=self._identity,
            )
        )

    async def _give_up(self, half: Record) -> None:
        await self._topics.ensure(GIVEN_UP_TOPIC, queues=1, perm=PERM_READ | PERM_WRITE)
        batch = batch_for(half)
        row = add_copy(
            batch,
            half,
            topic_index=self._store.topics.add(GIVEN_UP_TOPIC),
            queue_id=0,
            properties=half.property_text,
            store_host=self._identity.host,
        )
        batch.rows[row]["delay_level"], batch.rows[row]["timer_kind"] = 0, layout.TIMER_NONE
        self._add_op(batch, half.queue_offset)
        fault, _ = await self._put_bound(batch, half.queue_offset)
        if fault is not None:
            log.warning("half message %d cannot be set aside: %s", half.queue_offset, fault)
            return
        self.halves.finish(half.queue_offset, half_messages.same_half(half))
        log.warning("half message %d: too many check-backs, given up", half.queue_offset)

    def _add_half(self, batch: PutBatch, half: Record, properties: dict[str, str]) -> int:
        row = add_copy(
            batch,
            half,
            topic_index=self._store.topics.add(HALF_TOPIC),
            queue_id=0,
            properties=properties,
            store_host=self._identity.host,
        )
        half_messages.to_half(batch, row, self._store.topics)
        return row

    def _add_op(self, batch: PutBatch, half_offset: int) -> None:
        half_messages.add_op(
            batch, [half_offset], self._store.topics, self._identity.host, self._clock.now_ms()
        )

    def _keep_progress(self) -> None:
        self._offsets.commit(GROUP, HALF_TOPIC, 0, self.halves.half_next)
        self._offsets.commit(GROUP, OP_TOPIC, 0, self.halves.op_next)


def _offset_of_id(request: Request) -> int:
    try:
        return decode_offset_id(fields.text(request, "msgId"))[2]
    except ValueError as fault:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId: {fault}") from fault
