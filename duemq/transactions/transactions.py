"""Transaction service: commit and rollback (code 37), check-backs to producers (39).

    send (TRAN_MSG) --> half topic        37 commit   --> [real message, op] in one batch
                                          37 rollback --> [op]
    every transactionCheckInterval, for each unfinished half message that is old enough:
        [copy with the check count + 1, op of the half message] in one batch, then 39 to the
        producer; after transactionCheckMax check-backs: [TRANS_CHECK_MAX_TIME_TOPIC, op]

`duemq.transactions.half_queue` has the state of both topics and the appends to them.

Source: EndTransactionProcessor, TransactionalMessageServiceImpl, TransactionalMessageCheckService
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from delayed_delivery.quarantine import Reason
from delayed_delivery.stored_quarantine import StoredQuarantine
from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess, check_marker
from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.net.notices import Notices
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.managers import Identity, Putter
from duemq.registry.topics import TopicManager
from duemq.transactions import half_messages
from duemq.transactions.check_back import check_request, producer_of
from duemq.transactions.half_messages import CHECK_TIMES, PRODUCER_GROUP, CheckStep
from duemq.transactions.half_queue import HalfQueue
from duemq.transactions.meters import Meters
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.request import Request, RequestHandler, Response
from duemq_common.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, PERM_READ, PERM_WRITE
from message_store import layout
from message_store.log.batch import PutBatch
from message_store.log.copies import add_copy, batch_for, refusal
from message_store.log.record import Record
from message_store.replication.acknowledgement import Missing, not_confirmed

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
STEPS_PER_ROUND_MAX = 2_000  # half messages of one check round that are checked back or given up
READS_PER_ROUND_MAX = 20_000  # half messages that it reads
OFFSETS_PER_TURN = 4_096  # finished half messages that a round passes without a pause
COMMIT, ROLLBACK = layout.SYS_COMMIT, layout.SYS_ROLLBACK


class Transactions:
    """Handler of codes 37 and 323; a context manager whose task sends check-backs.

    Attributes:
        queue: The half messages and their op records.
        quarantine: Half messages that could not be read.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        offsets: OffsetManager,
        clients: ClientTable,
        put: Putter,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        meters: Meters | None = None,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._store, self._topics = store, topics
        self._clients, self._put, self._identity = clients, put, identity
        self._clock, self._config = clock, config
        self._meters = meters or Meters()
        self.queue = HalfQueue(store, offsets, put, identity, clock)
        self._halves = self.queue.halves
        self._stopped = asyncio.Event()
        self._continues_at = 0  # offset of the next round, if the last one reached a limit
        self._unreachable = Notices(log)
        self.quarantine = StoredQuarantine(store, clock)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.END_TRANSACTION: self.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
        }

    # --- End of a transaction.

    async def end(self, request: Request) -> Response | None:
        """Commit or roll back a half message; do nothing if it is finished.

        Raises:
            RequestError: There is no such half message, the end is not permitted, or its records
                were not stored and confirmed.
        """
        verdict = fields.integer(request, "commitOrRollback")
        if self._store.read_only:  # a replica may lack the newest copies
            raise RequestError(ResponseCode.SLAVE_NOT_AVAILABLE, self._store.read_only)
        if verdict not in (COMMIT, ROLLBACK):
            return None
        half = self._half_of(request)
        topic = half.properties.get("REAL_TOPIC", "")
        self._records.check_record(request, topic, Action.PUB)
        if verdict == COMMIT:
            check_marker(self._records, request, topic, half.properties)
        self._check_immunity(request, half)
        while (unlocked := self.queue.locked.get(half.queue_offset)) is not None:
            await unlocked.wait()
            half = self._half_of(request)  # a copy may have replaced the half message
        self.queue.apply_ops()
        offset = half.queue_offset
        if half.topic != HALF_TOPIC or self._halves.is_finished(offset):
            if missing := await self._store.wait_confirmed(self._store.max_offset):
                raise not_confirmed("the transaction was already ended", missing)
            return Response(remark=f"half message {offset} is finished already", fields={})
        if verdict == COMMIT:
            self._check_topic(topic)
        with self.queue.lock(offset):
            missing = await self._finish(half, commit=verdict == COMMIT)
        if missing:
            raise not_confirmed("the transaction was ended", missing)
        return Response(fields={})

    def _check_topic(self, name: str) -> None:
        """Check that consumers can read a topic; the half message of a deleted one stays.

        Raises:
            RequestError: TOPIC_NOT_EXIST.
        """
        topics = self._store.topics
        row = topics.arrays.topics[index := topics.find(name)]
        if topics.has_routes and (index < 0 or not (row["write_queues"] or row["read_queues"])):
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist: the half message can be committed once it is created",
            )

    async def _finish(self, half: Record, *, commit: bool) -> Missing | None:
        """Append the records that end a transaction; return the missing confirmation, if any."""
        batch = batch_for(half)
        if commit:
            self._add_commit(batch, half)
        self.queue.add_op(batch, half.queue_offset)
        fault, missing = await self.queue.put_bound(batch, half.queue_offset)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the message was not stored: {fault}")
        self._halves.finish(half.queue_offset, half_messages.half_identity(half))
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
        """Return the newest copy of the half message of a request.

        A half message of RocksDB's topic has a copy unless it is finished.
        """
        phys_offset = fields.long(request, "commitLogOffset")
        queue_offset = fields.long(request, "tranStateTableOffset")
        half = self._read(phys_offset)
        fault = half_messages.mismatch(half, fields.text(request, "producerGroup"), queue_offset)
        if fault:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{fault}, commitLogOffset {phys_offset}")
        identity = half_messages.half_identity(half)
        newest = self._halves.copies.get(identity) if identity else None
        if newest is None:
            return half
        return self.queue.reader.half_or_none(newest) or half

    def _read(self, phys_offset: int) -> Record:
        """Return the message at a physical offset from a request."""
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
                "the immunity time of the transaction has passed: wait for the check-back",
            )

    # --- Check-backs.

    async def resume(self, request: Request) -> Response:
        """Put a given-up message into the half topic again (code 323)."""
        phys_offset = half_messages.offset_of_id(fields.text(request, "msgId"))
        record = self._read(phys_offset)
        if record.topic != CHECK_MAX_TIME_TOPIC:
            text = f"only messages in {CHECK_MAX_TIME_TOPIC} can be resumed, not in {record.topic}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        properties = dict(record.properties)
        self._records.check_record(request, properties.get("REAL_TOPIC", ""), Action.UPDATE)
        properties[CHECK_TIMES] = "0"
        batch = batch_for(record)
        self.queue.add_half(batch, record, properties)
        batch.trusted = True  # it was accepted before, as in `HalfQueue.put_bound`
        missing = await self._put(batch)
        fault = refusal(batch)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"Put message back error: {fault}")
        if missing:
            raise not_confirmed("the half message was restored", missing)
        return Response()

    async def run(self) -> None:
        """Run a check round every transactionCheckInterval until stopped."""
        while not self._stopped.is_set():
            interval_ms = self._config().transaction_check_interval_ms
            await self._clock.wait(self._stopped, until_ms=self._clock.now_ms() + interval_ms)
            if not self._stopped.is_set():
                await self.check()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Recover if necessary; run check rounds while the block is active."""
        if not self.queue.is_recovered:
            self.queue.recover()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="transaction check")
            try:
                yield self
            finally:
                self._stopped.set()
                self.queue.store_cursors()

    async def check(self) -> None:
        """Run one check round over the unfinished half messages.

        After a round that reached a limit, the next one continues after its last message: clients
        may request long immunity times for any number of messages.
        """
        low, high = self._store.queue_bounds(HALF_TOPIC, 0)
        self.queue.apply_ops()
        self.queue.write_missing_ops()
        self._halves.skip_to(low)
        offset, steps, reads = max(self._halves.half_next, self._continues_at), 0, 0
        self._continues_at = 0
        while offset < high:
            if steps >= STEPS_PER_ROUND_MAX or reads >= READS_PER_ROUND_MAX:
                self._continues_at = offset
                break
            if not self._halves.is_finished(offset) and offset not in self.queue.locked:
                step = await self._step(offset)
                if step is CheckStep.WAIT:
                    break
                reads, steps = reads + 1, steps + (step is not CheckStep.SKIP)
                await asyncio.sleep(0)  # a round may have thousands of messages
            offset += 1
            if offset % OFFSETS_PER_TURN == 0:  # millions may follow one with an immunity time
                await asyncio.sleep(0)
        await self._advance(high)
        self.queue.store_cursors()

    async def _advance(self, high: int) -> None:
        """Advance past finished half messages, in turns."""
        halves = self._halves
        while True:
            limit = min(halves.half_next + OFFSETS_PER_TURN, high)
            halves.advance(limit)
            if halves.half_next < limit or limit >= high:
                return
            await asyncio.sleep(0)

    async def _step(self, offset: int) -> CheckStep:
        try:
            half = self.queue.reader.half(offset)
        except RecordUnreadable as fault:
            self._settle_unreadable(offset, fault)
            return CheckStep.SKIP
        config = self._config()
        step = half_messages.plan_step(
            half,
            now_ms=self._clock.now_ms(),
            timeout_ms=config.transaction_timeout_ms,
            checks_max=config.transaction_checks_max,
        )
        if step in (CheckStep.CHECK_BACK, CheckStep.GIVE_UP):
            try:
                with self.queue.lock(offset):
                    await (
                        self._check_back(half)
                        if step is CheckStep.CHECK_BACK
                        else self._give_up(half)
                    )
            except (RequestError, OSError) as fault:
                log.warning("half message %d is tried again: %s", offset, fault)
        return step

    def _settle_unreadable(self, offset: int, fault: RecordUnreadable) -> None:
        """Finish a half message that cannot be read; a damaged one goes to quarantine."""
        if fault.phys_offset >= self._store.min_offset:
            position = HALF_TOPIC, 0, offset
            if self.quarantine.put(position, "", Reason.UNREADABLE, str(fault)):
                return
            self.queue.missing_ops.append(offset)
        self._halves.finish(offset)

    async def _check_back(self, half: Record) -> None:
        """Replace a half message by a copy with a higher check count; send the check-back."""
        properties = dict(half.properties)
        properties[CHECK_TIMES] = str(half_messages.check_count(half) + 1)
        batch = batch_for(half)
        row = self.queue.add_half(batch, half, properties)
        self.queue.add_op(batch, half.queue_offset)
        fault, _ = await self.queue.put_bound(batch, half.queue_offset)
        if fault is None:
            copy = batch.rows[row]
            identity = half_messages.half_identity(half)
            self._halves.replace(half.queue_offset, int(copy["queue_offset"]), identity)
            self._ask(half, properties, int(copy["queue_offset"]), int(copy["phys_offset"]))
        elif batch.rows[row]["status"] != ResponseCode.MESSAGE_ILLEGAL:
            log.warning("half message %d: its copy was not stored: %s", half.queue_offset, fault)
        elif self._is_expired(half):
            await self._give_up(half)
        else:  # without room for a count, the half message itself is checked back
            self._ask(half, half.properties, half.queue_offset, half.phys_offset)

    def _is_expired(self, half: Record) -> bool:
        config = self._config()
        return half_messages.is_expired(
            half,
            self._clock.now_ms(),
            interval_ms=config.transaction_check_interval_ms,
            checks_max=config.transaction_checks_max,
        )

    def _ask(
        self, half: Record, properties: Mapping[str, str], queue_offset: int, phys_offset: int
    ) -> None:
        """Send a check-back to a producer of the group, if one is connected."""
        producer = producer_of(properties, self._clients, self._records)
        if producer is None:
            text = "half message %d: no check-back sent, as no producer of group %s is connected"
            self._unreachable(text, half.queue_offset, properties.get(PRODUCER_GROUP))
            return
        producer.peer.send_oneway(
            check_request(
                half,
                properties,
                queue_offset=queue_offset,
                phys_offset=phys_offset,
                identity=self._identity,
            )
        )

    async def _give_up(self, half: Record) -> None:
        """Put a half message into TRANS_CHECK_MAX_TIME_TOPIC, and finish it."""
        await self._topics.ensure(CHECK_MAX_TIME_TOPIC, queues=1, perm=PERM_READ | PERM_WRITE)
        batch = batch_for(half)
        row = add_copy(
            batch,
            half,
            topic_index=self._store.topics.add(CHECK_MAX_TIME_TOPIC),
            queue_id=0,
            properties=half.property_text,
            store_host=self._identity.host,
        )
        batch.rows[row]["delay_level"], batch.rows[row]["timer_kind"] = 0, layout.TIMER_NONE
        self.queue.add_op(batch, half.queue_offset)
        fault, _ = await self.queue.put_bound(batch, half.queue_offset)
        if fault is not None:
            log.warning("half message %d cannot be given up: %s", half.queue_offset, fault)
            return
        self._halves.finish(half.queue_offset, half_messages.half_identity(half))
        log.warning(
            "half message %d was given up after the maximum number of check-backs",
            half.queue_offset,
        )
