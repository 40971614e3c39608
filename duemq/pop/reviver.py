"""Revival: messages whose checkpoint is not acknowledged at its time go to their retry topic.

    revive queue --read--> pairing --due--> popped messages --copy--> retry topic, queue 0
                              |
                              +-- settled --> progress of CID_RMQ_SYS_REVIVE_GROUP

A checkpoint is decided when every acknowledgement that was accepted before its time has been read:
at the end of the queue once the timers have delivered everything due by then, before the end once
a later record was read. One revival is one batch in one turn; `revived_before` finds those of the
time before a start by the source that each copy names, and by its position in the log: a failover
is a start with another clock.
Source: PopReviveService
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Self

from duemq.messages.copies import KEPT_FLAGS, add_copy, refusal
from duemq.net.notices import Notices
from duemq.pop.checkpoints import Checkpoint, RecordError, parse_revive_record
from duemq.pop.figures import PUT, REFUSED, PopFigures
from duemq.pop.names import REVIVE_GROUP, REVIVE_QUEUES, normal_topic, retry_topic, revive_topic
from duemq.pop.pairing import Pairing
from duemq.pop.queue_reader import QueueReader
from duemq.pop.receipts import RECEIPT_PROPERTY
from duemq.ports import PERM_READ, PERM_WRITE, Groups, Identity, Offsets, Topics
from duemq.send.put_path import PutPath
from message_store import layout
from message_store.clock import Clock, Signal
from message_store.errors import RecordUnreadable, RequestError
from message_store.log.batch import PutBatch
from message_store.log.record import Record

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
UNITS_MAX: Final = 512  # records that one turn reads of one queue
OPEN_MAX: Final = 10_000  # undecided checkpoints of one queue with which nothing more is read
CHECKPOINTS_MAX: Final = 64  # checkpoints that one turn decides
SETTLE_MS: Final = 5  # pause while due timers are still being delivered
RETRY_MS: Final = 1_000  # pause after a refusal of the store
FIRST_POP_TIME: Final = "1ST_POP_TIME"
DELAYING: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""Properties that would delay a copy again, by the time from now on."""


class Reviver:
    """Reads the revive queues and revives. A context manager: its task runs while it is open.

    Args:
        delivered_ms: Returns a time by which every due timer has been delivered.
        put_path: Where copies are put.
    Attributes:
        revived: Messages that were copied to a retry topic since the start.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        put_path: PutPath,
        identity: Identity,
        clock: Clock,
        delivered_ms: Callable[[int], int],
        figures: PopFigures,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._put_path, self._identity = offsets, put_path, identity
        self._clock, self._delivered_ms, self._figures = clock, delivered_ms, figures
        self._reader = QueueReader(store)
        self._topic = revive_topic(identity.cluster_name)
        self._topic_index = store.topics.add(self._topic)
        self._queues: list[Pairing] = []
        self._restart_ends: list[int] = []  # queue ends at the start
        self._revived_before: dict[str, tuple[int, dict[int, int]]] = {}  # see `_copied_before`
        self._log_end = 0  # at the start
        self._wake = Signal()
        self._stopping = self._sleeping = False
        self._retry_ms = 0
        self._strange, self._gone = Notices(log), Notices(log)
        self.revived = 0

    # -- loop -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Revive while the block is open; leaving it finishes the current turn."""
        self.begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="pop revival")
            try:
                yield self
            finally:
                self._stopping = True
                self._wake.set()

    def begin(self) -> None:
        """Continue at the stored progress."""
        self._log_end = self._store.max_offset
        for queue_id in range(REVIVE_QUEUES):
            low, high = self._store.queue_bounds(self._topic, queue_id)
            stored = self._offsets.query(REVIVE_GROUP, self._topic, queue_id)
            following = 0 if stored is None else stored + 1
            self._queues.append(Pairing(min(max(following, low), high)))
            self._restart_ends.append(high)

    def on_append(self, batch: PutBatch) -> None:
        """Wake the loop when records of the revive topic were appended. A store dispatcher."""
        if (batch.filled["topic_index"] == self._topic_index).any():
            self._wake.set()

    async def run(self) -> None:
        """Run turns until stopped."""
        while not self._stopping:
            self._wake.clear()
            if await self.turn(self._clock.now_ms()):
                await asyncio.sleep(0)
            elif not self._stopping:
                until_ms = self.next_work_ms(self._clock.now_ms())
                self._sleeping = True
                await self._clock.wait(self._wake, until_ms=until_ms)
                self._sleeping = False

    @property
    def resting(self) -> bool:
        """Whether no work is left now."""
        return self._sleeping and not self._wake.is_set()

    def behind(self, queue_id: int, now_ms: int) -> tuple[int, int]:
        """Return how far a revive queue is behind: (records, ms since the next revive time).

        Source: PopReviveService.getReviveBehindMessages, getReviveBehindMillis
        """
        if not self._queues:
            return 0, 0
        pairing = self._queues[queue_id]
        _, high = self._store.queue_bounds(self._topic, queue_id)
        next_ms = pairing.next_ms
        late_ms = 0 if next_ms is None else max(now_ms - next_ms, 0)
        return max(high - pairing.settled_before, 0), late_ms

    async def turn(self, now_ms: int) -> bool:
        """Do one bounded piece of work; return whether there was any."""
        worked = False
        for queue_id, pairing in enumerate(self._queues):
            read = 0 if self._is_full(pairing, now_ms) else self._read(queue_id, pairing)
            if now_ms < self._retry_ms:
                continue
            through_ms = self._decided_ms(queue_id, pairing, now_ms)
            due = pairing.due(through_ms, CHECKPOINTS_MAX)
            for at, checkpoint in due:
                visible = len(checkpoint.unacknowledged)
                if not await self._revive(queue_id, at, checkpoint):
                    self._retry_ms = now_ms + RETRY_MS
                    return False
                pairing.settle(at)
                self._figures.note_settled(checkpoint, visible)
            worked |= read > 0 or bool(due)
            if read or due:
                self._commit(queue_id, pairing)
        return worked

    def next_work_ms(self, now_ms: int) -> int | None:
        """Return the time at which a turn has work, unless a record is appended before."""
        times = [pairing.next_ms for pairing in self._queues]
        first = min((time_ms for time_ms in times if time_ms is not None), default=None)
        return None if first is None else max(first, self._retry_ms, now_ms + SETTLE_MS)

    # -- reading --------------------------------------------------------------------------------

    @staticmethod
    def _is_full(pairing: Pairing, now_ms: int) -> bool:
        """Return whether to decide checkpoints before more are read."""
        next_ms = pairing.next_ms
        decidable_ms = min(pairing.read_due_ms - 1, now_ms)
        return len(pairing) >= OPEN_MAX and next_ms is not None and next_ms <= decidable_ms

    def _read(self, queue_id: int, pairing: Pairing) -> int:
        """Read the next records of a queue; return their number."""
        low, _ = self._store.queue_bounds(self._topic, queue_id)
        if pairing.next_offset < low:
            self._gone("records %d to %d of %s/%d were removed before they were decided",
                       pairing.next_offset, low, self._topic, queue_id)  # fmt: skip
            pairing.next_offset = low
        units = self._store.units(self._topic, queue_id, pairing.next_offset, UNITS_MAX)
        for phys_offset in units["phys_offset"].tolist():
            try:
                record = self._store.read_record(phys_offset)
                found = parse_revive_record(record, self._identity.broker_name)
                pairing.add(found)
                self._figures.note_read(found, queue_id)
            except (RecordUnreadable, RecordError) as error:
                self._strange("a record of %s/%d is skipped: %s", self._topic, queue_id, error)
                pairing.add(None)
        return int(units.size)

    def _decided_ms(self, queue_id: int, pairing: Pairing, now_ms: int) -> int:
        """Return the time by which checkpoints can be decided: later records change nothing."""
        _, high = self._store.queue_bounds(self._topic, queue_id)
        if pairing.next_offset < high:
            return min(pairing.read_due_ms - 1, now_ms)
        return self._delivered_ms(now_ms)

    def settled_ms(self) -> int:
        """Return the revive time up to which every checkpoint is settled; 0 before the start."""
        now_ms, times = self._clock.now_ms(), list[int]()
        for queue_id, pairing in enumerate(self._queues):
            times.append(self._decided_ms(queue_id, pairing, now_ms))
            times += [pairing.next_ms - 1] if pairing.next_ms is not None else []
        return min(times, default=0)

    def _commit(self, queue_id: int, pairing: Pairing) -> None:
        done = pairing.settled_before - 1
        if done >= 0 and done != self._offsets.query(REVIVE_GROUP, self._topic, queue_id):
            self._offsets.commit(REVIVE_GROUP, self._topic, queue_id, done)
            if self._revived_before and self._has_restarted():
                self._revived_before.clear()

    def _has_restarted(self) -> bool:
        """Return whether everything from before the start is decided."""
        pairs = zip(self._queues, self._restart_ends, strict=True)
        return all(pairing.settled_before >= end for pairing, end in pairs)

    # -- reviving -------------------------------------------------------------------------------

    async def _revive(self, queue_id: int, at: int, checkpoint: Checkpoint) -> bool:
        """Copy the unacknowledged messages of a checkpoint; return whether it is settled."""
        name = normal_topic(checkpoint.topic, checkpoint.group)
        if self._topics.find(name) is None or self._groups.find(checkpoint.group) is None:
            self._gone("topic %s or group %s is gone: its popped messages are not revived",
                       name, checkpoint.group)  # fmt: skip
            return True
        target = retry_topic(checkpoint.topic, checkpoint.group)
        try:
            await self._ensure(target, checkpoint.group)
        except (RequestError, OSError) as error:
            self._strange("retry topic %s cannot be created: %s", target, error)
            return False
        records = self._popped(checkpoint)
        if at < self._restart_ends[queue_id]:
            units = self._store.units(self._topic, queue_id, at, 1)
            since = int(units[0]["phys_offset"]) if units.size else 0
            before = self._copied_before(target, since)
            records = [each for each in records if before.get(each.phys_offset, -1) < since]
        return self._copy(target, records, checkpoint)

    async def _ensure(self, target: str, group: str) -> None:
        """Create a retry topic, whose group begins at its first message."""
        if self._topics.find(target) is None:
            await self._topics.ensure(target, queues=1, perm=PERM_READ | PERM_WRITE)
            if self._offsets.query(group, target, 0) is None:
                self._offsets.commit(group, target, 0, 0)

    def _popped(self, checkpoint: Checkpoint) -> list[Record]:
        """Return the unacknowledged messages of a checkpoint that still exist."""
        topic, queue_id, offsets = checkpoint.topic, checkpoint.queue_id, checkpoint.unacknowledged
        found = self._reader.messages(topic, queue_id, offsets) if offsets else []
        if found is not None:
            return found
        found = []
        for offset in offsets:
            try:
                found.append(self._reader.message(topic, queue_id, offset))
            except RecordUnreadable as error:
                self._gone("message %d of %s/%d is not revived: %s",
                           offset, topic, queue_id, error)  # fmt: skip
        return found

    def _copy(self, target: str, records: list[Record], checkpoint: Checkpoint) -> bool:
        """Append copies to a retry topic; return whether the store took them."""
        if not records:
            return True
        size = sum(record.total_size for record in records)
        batch = PutBatch(len(records), size + 64 * len(records))
        index, now_ms = self._store.topics.add(target), self._clock.now_ms()
        for record in records:
            add_copy(
                batch,
                record,
                topic_index=index,
                queue_id=0,
                properties=retry_properties(record, checkpoint.pop_ms, now_ms),
                store_host=self._identity.host,
                sys_flag=record.sys_flag & KEPT_FLAGS & ~layout.SYS_TRANSACTION_MASK,
                reconsume_times=record.reconsume_times + 1,
                prepared_offset=record.phys_offset,
            )
        batch.trusted = True
        batch.together.append((0, batch.count))
        self._put_path.put(batch)
        for row, record in enumerate(records):
            if fault := refusal(batch, row):
                self._strange("messages of %s are not revived yet: %s", target, fault)
                self._figures.retries.add(checkpoint.group, checkpoint.topic, REFUSED)
                return False
            checkpoint.acked.add(record.queue_offset)  # its consumer is the next one to pop it
            self.revived += 1
            self._figures.retries.add(checkpoint.group, checkpoint.topic, PUT)
        return True

    def _copied_before(self, target: str, since: int) -> dict[int, int]:
        """Return the copies that were put into a retry topic before the start.

        Args:
            since: Log offset; copies before it are of other checkpoints.
        Returns:
            Log offset of the last copy, by the log offset of its source.
        """
        read_from, known = self._revived_before.get(target, (self._log_end, {}))
        if since < read_from:
            offset = self._store.queue_end_before(target, 0, since)
            end = self._store.queue_end_before(target, 0, read_from)
            while offset < end:
                units = self._store.units(target, 0, offset, min(UNITS_MAX, end - offset))
                if not units.size:
                    break
                for phys_offset in units["phys_offset"].tolist():
                    with suppress(RecordUnreadable):
                        source = self._store.read_record(phys_offset).prepared_offset
                        known[source] = max(known.get(source, 0), phys_offset)
                offset += int(units.size)
            self._revived_before[target] = since, known
        return known


def retry_properties(record: Record, pop_ms: int, now_ms: int) -> dict[str, str]:
    """Return the properties of a popped message's copy in its retry topic."""
    properties = dict(record.properties)
    if record.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(pop_ms)
    for name in (*DELAYING, RECEIPT_PROPERTY):
        properties.pop(name, None)
    due = properties.get("TIMER_DELIVER_MS", "")
    if due and not (due.isascii() and due.isdigit() and int(due) <= now_ms):
        del properties["TIMER_DELIVER_MS"]
    return properties
