"""Half topic and op topic: which half messages are unfinished, and the records that finish them.

A commit, copy or given-up message is in one batch with the op record of its half message. A crash
or a full disk can lose the op record: `recover` searches the log for commits without one, and
missing op records are written when the store accepts them.

Source: TransactionalMessageBridge
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.managers import Identity, Putter
from duemq.transactions import half_messages
from duemq.transactions.half_messages import HalfMessages
from duemq.transactions.half_reader import HalfReader
from duemq.transactions.rocksdb_halves import take_over
from duemq.transactions.torn_commits import torn_commits
from duemq_common.clock import Clock
from duemq_common.topics import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from message_store.log.batch import PutBatch
from message_store.log.copies import add_copy, refusal
from message_store.log.record import Record
from message_store.replication.acknowledgement import Missing

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)


class HalfQueue:
    """Half messages of a store, and appends to the two topics.

    Attributes:
        halves: Which half messages are finished.
        reader: Reader of the two topics.
        locked: Half messages whose end or check-back is in progress, by queue offset; each event is
            set when it is unlocked.
        missing_ops: Queue offsets of finished half messages without an op record in the log.
        is_recovered: Whether `recover` was called.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: OffsetManager,
        put: Putter,
        identity: Identity,
        clock: Clock,
    ) -> None:
        self._store, self._offsets, self._put = store, offsets, put
        self._host, self._clock = identity.host, clock
        self.halves, self.reader = HalfMessages(), HalfReader(store)
        self.locked: dict[int, asyncio.Event] = {}
        self.missing_ops: list[int] = []
        self.is_recovered = False

    @property
    def open_count(self) -> int:
        """Number of unfinished half messages."""
        end = self._store.queue_bounds(HALF_TOPIC, 0)[1]
        return max(end - self.halves.half_next - len(self.halves.finished), 0)

    @contextmanager
    def lock(self, offset: int) -> Iterator[None]:
        """Lock a half message for the duration of the block."""
        unlocked = self.locked[offset] = asyncio.Event()
        try:
            yield
        finally:
            del self.locked[offset]
            unlocked.set()

    # --- Appends.

    def add_half(self, batch: PutBatch, half: Record, properties: dict[str, str]) -> int:
        """Add a copy of a half message with other properties; return its row."""
        row = add_copy(
            batch,
            half,
            topic_index=self._store.topics.add(HALF_TOPIC),
            queue_id=0,
            properties=properties,
            store_host=self._host,
        )
        half_messages.to_half(batch, row, self._store.topics)
        return row

    def add_op(self, batch: PutBatch, half_offset: int) -> None:
        """Add the op record that finishes a half message."""
        now_ms = self._clock.now_ms()
        half_messages.add_op(batch, [half_offset], self._store.topics, self._host, now_ms)

    async def put_bound(
        self, batch: PutBatch, half_offset: int
    ) -> tuple[str | None, Missing | None]:
        """Put a message and its op record.

        The message was accepted before: a lower maxMessageSize does not apply to it.

        Returns:
            Reason if the message was not stored, else None; missing confirmation, or None.
        """
        batch.together, batch.trusted = [(0, batch.count)], True
        missing = await self._put(batch)
        fault, op_fault = refusal(batch), refusal(batch, batch.count - 1)
        if op_fault is None:
            if batch.rows[batch.count - 1]["queue_offset"] == self.halves.op_read:
                self.halves.apply_op(self.halves.op_read, [half_offset])
        elif fault is None:
            self.missing_ops.append(half_offset)
        return fault, missing

    def write_missing_ops(self) -> None:
        """Append the missing op records; those that the store refuses stay missing."""
        if not self.missing_ops:
            return
        batch = PutBatch(len(self.missing_ops))
        for half_offset in self.missing_ops:
            self.add_op(batch, half_offset)
        self._store.put(batch)
        faults = [refusal(batch, row) for row in range(batch.count)]
        self.missing_ops = [
            position for position, fault in zip(self.missing_ops, faults, strict=True) if fault
        ]
        if self.missing_ops:
            log.warning(
                "op records of %d finished half messages cannot be written yet: %s",
                len(self.missing_ops),
                next(filter(None, faults)),
            )
        self.apply_ops()

    # --- Op queue.

    def recover(self) -> None:
        """Restore the state from the two topics and the stored cursors; write lost op records.

        Call it once, before other components append to the log.
        """
        self.is_recovered = True
        halves = self.halves
        low, high = self._store.queue_bounds(HALF_TOPIC, 0)
        op_low, op_high = self._store.queue_bounds(OP_HALF_TOPIC, 0)
        stored = self._offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0)
        halves.half_next = min(max(stored or 0, low), high)
        halves.op_next = min(
            max(self._offsets.query(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) or 0, op_low), op_high
        )
        halves.op_read = halves.op_next
        self.apply_ops()
        take_over(self._store, self._host, self._clock.now_ms())
        high = self._store.queue_bounds(HALF_TOPIC, 0)[1]
        self._find_copies()
        for half in torn_commits(self._store, self._unfinished_halves(high)):
            halves.finish(half.queue_offset, half_messages.half_identity(half))
            self.missing_ops.append(half.queue_offset)
        self.write_missing_ops()
        halves.advance(high)
        log.info("transactions recovered; half messages: %d to %d", halves.half_next, high)

    def apply_ops(self) -> None:
        """Apply the op records appended since the last call."""
        for offset, half_offsets in self.reader.ops(self.halves.op_read):
            self.halves.apply_op(offset, half_offsets)

    def _find_copies(self) -> None:
        """Find copies of half messages; mark all but the newest copy as finished."""
        newest: dict[half_messages.HalfIdentity, Record] = {}
        _, high = self._store.queue_bounds(HALF_TOPIC, 0)
        for offset in range(self.halves.half_next, high):
            half = None if self.halves.is_finished(offset) else self.reader.half_or_none(offset)
            identity = half_messages.half_identity(half) if half else None
            if half is None or identity is None:
                continue
            if identity in newest:
                self.halves.finish(newest[identity].queue_offset)
            newest[identity] = half
            if half_messages.check_count(half):
                self.halves.copies[identity] = offset

    def _unfinished_halves(self, high: int) -> dict[int, int]:
        """Return the queue offsets of unfinished half messages by log offset."""
        halves = self.reader.halves(self.halves.half_next, high)
        return {start: offset for offset, start in halves if not self.halves.is_finished(offset)}

    def store_cursors(self) -> None:
        """Store how far both topics are finished, for the next start."""
        self._offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, self.halves.half_next)
        self._offsets.commit(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, self.halves.op_next)
