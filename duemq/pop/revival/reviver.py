"""Revival: messages whose checkpoint is not acknowledged at its time go to their retry topic.

    revive queue --read--> pairing --due--> popped messages --copy--> retry topic, queue 0
                              |
                              +-- settled --> progress of CID_RMQ_SYS_REVIVE_GROUP

A checkpoint is decided when every acknowledgement that was accepted before its revive time has been
read. At the end of the queue, the timers must have delivered everything due by then; before the
end, the reader must have read a later record. After a stall of the loop, acknowledgements that were
sent during it are read from their connections first.

The copies of a checkpoint are appended in one batch, in one turn. A message whose copy the store
will never accept, or that cannot be read, goes to quarantine. A checkpoint that the store refuses
now is tried again later; other checkpoints continue. After a start, `EarlierCopies`
finds the copies that were appended before it.
Source: PopReviveService
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from delayed_delivery.quarantine import Reason
from delayed_delivery.stored_quarantine import StoredQuarantine
from duemq.net.notices import Notices
from duemq.net.retry_topics import normal_topic, retry_topic
from duemq.pop.checkpoints import PopCheckpoint, RecordError, is_ahead, parse_revive_record
from duemq.pop.figures import PUT, REFUSED, PopFigures
from duemq.pop.names import REVIVE_GROUP, REVIVE_QUEUES, revive_topic
from duemq.pop.queue_reader import QueueReader, RawRecords
from duemq.pop.revival.ahead_pops import AheadPops
from duemq.pop.revival.earlier_copies import EarlierCopies
from duemq.pop.revival.pairing import Pairing
from duemq.pop.revival.retry_copies import RetryCopies
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.managers import Identity
from duemq.registry.topics import TopicManager
from duemq.send.put_path import PutPath
from duemq_common.clock import Clock, Signal
from duemq_common.codes import ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.topics import PERM_READ, PERM_WRITE, QUARANTINE_TOPIC
from message_store.log.batch import PutBatch
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
UNITS_MAX: Final = 512  # records that one turn reads of one queue
OPEN_MAX: Final = 10_000  # undecided checkpoints of one queue; with more, reading pauses
CHECKPOINTS_MAX: Final = 64  # checkpoints that one turn decides
SETTLE_MS: Final = 5  # pause while due timers are still being delivered
STORE_TURNS: Final = 8  # turns of the loop in which an acknowledgement that has arrived is stored
RECREATED: Final = "the topic was deleted and created again"
RETRY_MS: Final = 1_000  # pause after a refusal of the store
WATCH_MS: Final = 60_000  # `Clock.wait` ends within a second of a step back


class Reviver:
    """Reader of the revive queues that copies unacknowledged messages to their retry topics.

    A context manager: its task runs while the block is open.

    Args:
        delivered_ms: Returns a time by which every due timer has been delivered.
        put_path: Put path that appends the copies.
        compiled: Returns whether kernels may be used.
        ahead: Search for pops of a clock that was ahead.
    Attributes:
        quarantine: Quarantine of messages without a possible copy.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        put_path: PutPath,
        identity: Identity,
        clock: Clock,
        delivered_ms: Callable[[int], int],
        figures: PopFigures,
        compiled: Callable[[], bool],
        ahead: AheadPops,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._identity = offsets, identity
        self._clock, self._delivered_ms, self._figures = clock, delivered_ms, figures
        self._ahead = ahead
        self._reader, self._copies = QueueReader(store), RetryCopies(put_path, identity, compiled)
        self._topic = revive_topic(identity.cluster_name)
        store.topics.add(self._topic)
        self._queues: list[Pairing] = []
        self._restart_ends: list[int] = []  # queue ends at the start
        self._earlier = EarlierCopies(store)
        self._wake = Signal()
        self._stopping = self._sleeping = False
        self._retry_ms = self._turn_ms = 0
        self._log_failed, self._log_removed = Notices(log), Notices(log)
        self.quarantine = StoredQuarantine(store, clock)

    # -- loop -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Revive while the block is open; leaving it finishes the current turn."""
        self.begin()
        self._store.add_dispatcher(self.on_append, topic=self._topic)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="pop revival")
            try:
                yield self
            finally:
                self._stopping = True
                self._wake.set()

    def begin(self) -> None:
        """Continue at the stored progress."""
        self._earlier.begin()
        for queue_id in range(REVIVE_QUEUES):
            low, high = self._store.queue_bounds(self._topic, queue_id)
            stored = self._offsets.query(REVIVE_GROUP, self._topic, queue_id)
            following = 0 if stored is None else stored + 1
            self._queues.append(Pairing(min(max(following, low), high)))
            self._queues[-1].set_time(self._clock.now_ms())
            self._restart_ends.append(high)

    def on_append(self, batch: PutBatch) -> None:
        """Resume the loop. The dispatcher of the revive topic."""
        self._wake.set()

    async def run(self) -> None:
        """Run turns until stopped."""
        while not self._stopping:
            now_ms = self._clock.now_ms()
            for _ in range(STORE_TURNS):  # those that arrived until now are not late
                await asyncio.sleep(0)
            self._wake.clear()
            now_ms = min(now_ms, self._clock.now_ms())  # it may have been set back
            if not await self.turn(now_ms) and not self._stopping:
                until_ms = self.next_work_ms(self._clock.now_ms())
                self._sleeping = True
                await self._clock.wait(self._wake, until_ms=until_ms)
                self._sleeping = False

    @property
    def is_idle(self) -> bool:
        """Whether no work is left now."""
        return self._sleeping and not self._wake.is_set()

    def lag(self, queue_id: int, now_ms: int) -> tuple[int, int]:
        """Return the lag of a revive queue: records, and ms since the next revive time.

        Source: PopReviveService.getReviveBehindMessages, getReviveBehindMillis
        """
        if not self._queues:
            return 0, 0
        pairing = self._queues[queue_id]
        _, high = self._store.queue_bounds(self._topic, queue_id)
        next_ms = pairing.first_ms
        late_ms = 0 if next_ms is None else max(now_ms - next_ms, 0)
        return max(high - pairing.settled_before, 0), late_ms

    async def turn(self, now_ms: int) -> bool:
        """Run one bounded step; return whether it read or revived anything."""
        worked = False
        if now_ms < self._turn_ms:
            self._retry_ms = 0
            for pairing in self._queues:
                pairing.end_pauses()
        self._turn_ms = now_ms
        if self._ahead.is_needed(now_ms) and now_ms >= self._retry_ms:
            if not self._ahead.step(now_ms):
                self._retry_ms = now_ms + RETRY_MS
                return False
            worked = True
        for queue_id, pairing in enumerate(self._queues):
            for checkpoint in pairing.set_time(now_ms):
                self._ahead.end(checkpoint)
            read = 0 if self._is_full(pairing) else self._read(queue_id, pairing)
            if now_ms < self._retry_ms:
                continue
            through_ms = self._decided_ms(queue_id, pairing, now_ms)
            due = pairing.due(through_ms, CHECKPOINTS_MAX)
            if due and not await self._revive(queue_id, pairing, due):
                self._retry_ms = now_ms + RETRY_MS
                return False
            worked |= read > 0 or bool(due)
            if read or due:
                self._commit(queue_id, pairing)
            if due:
                await asyncio.sleep(0)  # pops read the messages that are visible now
        return worked

    def next_work_ms(self, now_ms: int) -> int:
        """Return the time of the next turn, unless a record is appended before.

        A record of a pop is not in the revive topic for long, and the clock may be set back.
        """
        if self._ahead.is_needed(now_ms):
            return max(self._retry_ms, now_ms + SETTLE_MS)
        times = [pairing.next_ms for pairing in self._queues]
        first = min([now_ms + WATCH_MS, *(time_ms for time_ms in times if time_ms is not None)])
        return max(first, self._retry_ms, now_ms + SETTLE_MS)

    # -- reading --------------------------------------------------------------------------------

    @staticmethod
    def _is_full(pairing: Pairing) -> bool:
        """Return whether to decide checkpoints before more are read."""
        next_ms = pairing.next_ms
        return len(pairing) >= OPEN_MAX and next_ms is not None and next_ms <= pairing.decidable_ms

    def _read(self, queue_id: int, pairing: Pairing) -> int:
        """Read the next records of a queue; return their number."""
        low, _ = self._store.queue_bounds(self._topic, queue_id)
        if pairing.next_offset < low:
            self._log_removed(
                "records %d to %d of %s/%d were removed before they were decided",
                pairing.next_offset,
                low,
                self._topic,
                queue_id,
            )
            pairing.next_offset = low
        records = self._reader.following(self._topic, queue_id, pairing.next_offset, UNITS_MAX)
        for record in records:
            try:
                if isinstance(record, RecordUnreadable):
                    raise record
                item = parse_revive_record(record, self._identity.broker_name)
                pairing.add(item)
                self._figures.on_read(item, queue_id)
            except (RecordUnreadable, RecordError) as error:
                self._log_failed("a record of %s/%d is skipped: %s", self._topic, queue_id, error)
                pairing.add(None)
        return len(records)

    def _decided_ms(self, queue_id: int, pairing: Pairing, now_ms: int) -> int:
        """Return the revive time up to which no later record can change a decision."""
        if self._ahead.is_needed(now_ms):
            return 0
        if self._is_behind(queue_id, pairing):
            return pairing.decidable_ms
        return self._delivered_ms(now_ms)

    def _is_behind(self, queue_id: int, pairing: Pairing) -> bool:
        """Return whether a queue has records to read."""
        return pairing.next_offset < self._store.queue_bounds(self._topic, queue_id)[1]

    def open_until_ms(self, checkpoint: PopCheckpoint, offset: int) -> int | None:
        """Return the time from which a popped message is visible; None: its pop is decided.

        Args:
            checkpoint: Checkpoint of the message; it need not be in the revive topic.
            offset: Queue offset of the message.
        """
        now_ms = self._clock.now_ms()
        if not is_ahead(checkpoint.pop_ms, now_ms):
            return checkpoint.revive_ms if checkpoint.revive_ms > self.settled_ms() else None
        for queue_id, pairing in enumerate(self._queues):
            for each in pairing.checkpoints(checkpoint.key):
                return each.visible_ms(now_ms) if offset in each.unacknowledged else None
            if self._is_behind(queue_id, pairing):
                return now_ms + checkpoint.invisible_ms
        return now_ms + checkpoint.invisible_ms if self._ahead.is_needed(now_ms) else None

    def settled_ms(self) -> int:
        """Return the revive time up to which every checkpoint is settled; 0 before the start."""
        now_ms, times = self._clock.now_ms(), list[int]()
        for queue_id, pairing in enumerate(self._queues):
            times.append(self._decided_ms(queue_id, pairing, now_ms))
            times += [pairing.first_ms - 1] if pairing.first_ms is not None else []
        return min(times, default=0)

    def _commit(self, queue_id: int, pairing: Pairing) -> None:
        done = pairing.settled_before - 1
        if done >= 0 and done != self._offsets.query(REVIVE_GROUP, self._topic, queue_id):
            self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, done)
            if self._earlier.is_used and self._has_restarted():
                self._earlier.clear()

    def _has_restarted(self) -> bool:
        """Return whether all checkpoints from before the start are decided."""
        pairs = zip(self._queues, self._restart_ends, strict=True)
        return all(pairing.settled_before >= end for pairing, end in pairs)

    # -- reviving -------------------------------------------------------------------------------

    async def _revive(
        self, queue_id: int, pairing: Pairing, due: Sequence[tuple[int, PopCheckpoint]]
    ) -> bool:
        """Settle or postpone checkpoints; return False if the store accepts no message now."""
        targets: dict[int, str] = {}
        for position, checkpoint in due:
            name, group = normal_topic(checkpoint.topic, checkpoint.group), checkpoint.group
            if self._topics.find(name) is None or self._groups.find_or_create(group) is None:
                self._log_removed(
                    "topic %s or group %s does not exist: its pops are not revived", name, group
                )
                self._settle(pairing, position, checkpoint)
                continue
            try:
                target = retry_topic(checkpoint.topic, group)
                await self._create_retry_topic(target, group)
                targets[position] = target
            except (RequestError, OSError) as error:
                self._without_topic(pairing, position, checkpoint, error)
        for position, checkpoint in due:
            if self._store.refusal:
                return False
            if position in targets:
                self._copy(queue_id, position, checkpoint, targets[position])
        self._put(pairing)
        return not self._store.refusal

    def _without_topic(
        self,
        pairing: Pairing,
        position: int,
        checkpoint: PopCheckpoint,
        error: RequestError | OSError,
    ) -> None:
        """Postpone a checkpoint without retry topic; if there can be none, quarantine it."""
        refusal = str(error)
        if isinstance(error, RequestError) and error.code == ResponseCode.INVALID_PARAMETER:
            faults = [
                self._quarantine(checkpoint, offset, Reason.ILLEGAL, str(error))
                for offset in checkpoint.unacknowledged
            ]
            refusal = next(filter(None, faults), "")
        if refusal:
            self._postpone(pairing, position, checkpoint, refusal)
        else:
            self._settle(pairing, position, checkpoint)

    def _copy(self, queue_id: int, position: int, checkpoint: PopCheckpoint, target: str) -> None:
        """Add the copies of one checkpoint; append them if the batch is full."""
        pairing = self._queues[queue_id]
        # After a failure, a checkpoint has a batch of its own and affects no other one.
        is_alone = pairing.has_failed(position)
        if is_alone:
            self._put(pairing)
        try:
            self._add(queue_id, position, checkpoint, target)
        except RequestError as refusal:  # of a quarantine record
            self._postpone(pairing, position, checkpoint, str(refusal))
        if is_alone or self._copies.is_full:
            self._put(pairing)

    def _postpone(
        self, pairing: Pairing, position: int, checkpoint: PopCheckpoint, reason: str
    ) -> None:
        """Try a checkpoint again later; the other checkpoints continue."""
        key = checkpoint.group, checkpoint.topic
        self._log_failed("messages of %s/%s are not revived yet: %s", *key, reason)
        pairing.postpone(position, self._clock.now_ms())

    def _settle(self, pairing: Pairing, position: int, checkpoint: PopCheckpoint) -> None:
        """Settle a checkpoint: its messages are no longer in flight."""
        pairing.settle(position)
        self._figures.on_settled(checkpoint, len(checkpoint.unacknowledged))

    async def _create_retry_topic(self, target: str, group: str) -> None:
        """Create a retry topic, whose group begins at its first message."""
        if self._topics.find(target) is None:
            await self._topics.ensure(target, queues=1, perm=PERM_READ | PERM_WRITE)
            if self._offsets.query(group, target, 0) is None:
                self._offsets.commit(group, target, 0, 0)

    def _add(self, queue_id: int, position: int, checkpoint: PopCheckpoint, target: str) -> None:
        """Add the copies of one checkpoint to the next batch."""
        if position < self._restart_ends[queue_id]:
            self._settle_earlier(queue_id, position, checkpoint, target)
        places = {"topic_index": self._store.topics.add(target), "now_ms": self._clock.now_ms()}
        raw = self._raw_records(checkpoint)
        if raw is None or not self._copies.add_raw(position, checkpoint, raw, **places):
            self._copies.add(position, checkpoint, self._popped(checkpoint, raw), **places)

    def _settle_earlier(
        self, queue_id: int, position: int, checkpoint: PopCheckpoint, target: str
    ) -> None:
        """Settle the messages that an earlier run has copied or moved to quarantine."""
        units = self._store.units(self._topic, queue_id, position, 1)
        since = int(units[0]["phys_offset"]) if units.size else 0
        copied = self._earlier.of(target, since)
        quarantined = self._earlier.of(QUARANTINE_TOPIC, since)
        for offset in checkpoint.unacknowledged:
            units = self._store.units(checkpoint.topic, checkpoint.queue_id, offset, 1)
            source = int(units[0]["phys_offset"]) if units.size else -1
            ends = copied.get((source, "")), quarantined.get((source, checkpoint.group))
            if max(end if end is not None else -1 for end in ends) >= since:
                checkpoint.acked.add(offset)

    def _raw_records(self, checkpoint: PopCheckpoint) -> RawRecords | None:
        offsets = checkpoint.unacknowledged
        if not offsets:
            return None
        raw = self._reader.raw_records(checkpoint.topic, checkpoint.queue_id, offsets)
        if raw is not None and is_newer(checkpoint, int(raw.log_offsets.max())):
            return None
        return raw

    def _popped(self, checkpoint: PopCheckpoint, raw: RawRecords | None) -> list[Record]:
        """Return the unacknowledged messages of a checkpoint that still exist."""
        topic, queue_id, records = checkpoint.topic, checkpoint.queue_id, list[Record]()
        if raw is not None:
            with suppress(RecordUnreadable):
                return raw.records()
        for offset in checkpoint.unacknowledged:
            try:
                record = self._reader.message(topic, queue_id, offset)
            except RecordUnreadable as error:
                self._settle_unreadable(checkpoint, offset, error)
                continue
            if is_newer(checkpoint, record.phys_offset):
                self._log_removed(
                    "message %d of %s/%d is not revived: %s", offset, topic, queue_id, RECREATED
                )
                continue
            records.append(record)
        return records

    def _settle_unreadable(
        self, checkpoint: PopCheckpoint, offset: int, error: RecordUnreadable
    ) -> None:
        """Move a damaged message to quarantine; log one that retention has removed.

        Raises:
            RequestError: The store refuses the quarantine record.
        """
        if error.phys_offset < self._store.min_offset:
            self._log_removed(
                "message %d of %s/%d is not revived: %s",
                offset,
                checkpoint.topic,
                checkpoint.queue_id,
                error,
            )
            return
        refusal = self._quarantine(checkpoint, offset, Reason.UNREADABLE, str(error))
        if refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)

    def _put(self, pairing: Pairing) -> None:
        """Append the copies; settle their checkpoints, or postpone those that were refused."""
        if self._copies.is_empty:
            return
        for result in self._copies.put():
            position, checkpoint = result.copied.queue_offset, result.copied.checkpoint
            retries, key = self._figures.retries, (checkpoint.group, checkpoint.topic)
            if result.stored:
                retries.add(*key, PUT, count=len(result.stored))
            refusal = result.refusal
            for offset, reason in result.illegal.items():
                refusal = self._quarantine(checkpoint, offset, Reason.ILLEGAL, reason) or refusal
            if not refusal:
                self._settle(pairing, position, checkpoint)
                continue
            retries.add(*key, REFUSED)
            self._figures.on_settled(checkpoint, len(result.stored))
            checkpoint.acked.update(result.stored)  # a retry must not repeat these copies
            if not self._store.refusal:
                self._postpone(pairing, position, checkpoint, refusal)

    def _quarantine(
        self, checkpoint: PopCheckpoint, offset: int, reason: Reason, explanation: str
    ) -> str:
        """Move a message to quarantine; return why the store refuses it, or ""."""
        position = checkpoint.topic, checkpoint.queue_id, offset
        refusal = self.quarantine.put(position, checkpoint.group, reason, explanation)
        if not refusal:
            self._figures.on_settled(checkpoint, 1)
            checkpoint.acked.add(offset)
        return refusal


def is_newer(checkpoint: PopCheckpoint, log_offset: int) -> bool:
    """Return whether a message was stored after the pop: its topic was deleted and created again.

    Log offsets are compared, not times, because the clock may have been set.
    """
    return checkpoint.put_offset is not None and log_offset > checkpoint.put_offset
