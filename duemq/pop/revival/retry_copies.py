"""Copies of popped messages for their retry topics; one batch has the copies of many checkpoints.

unacknowledged messages of a checkpoint --> raw records --kernel or Python--> rows --put--> log
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from duemq.messages.copies import KEPT_FLAGS, STORED, add_copy
from duemq.pop.checkpoints import Checkpoint
from duemq.pop.kernels.revival import Context, Output, add_copies
from duemq.pop.queue_reader import RawRecords
from duemq.pop.receipts import RECEIPT_PROPERTY
from duemq.ports import Identity
from duemq.send.put_path import PutPath
from message_store import layout
from message_store.log.batch import IPV6_BYTES, PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record

BYTES_MAX: Final = 4 << 20  # per batch; a batch that reaches it gets no further checkpoint
ROWS: Final = 2_048
FIRST_POP_TIME: Final = "1ST_POP_TIME"
DELAYING: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""Properties with a relative delay, which would delay the copy again."""
SYS_FLAGS: Final = (KEPT_FLAGS | layout.SYS_BORN_IPV6) & ~layout.SYS_TRANSACTION_MASK


@dataclass(frozen=True, slots=True)
class CheckpointCopies:
    """Copies of one checkpoint in the batch.

    Attributes:
        at: Queue offset of the checkpoint in the revive queue.
        offsets: Queue offsets of the messages, one per row.
        first: Index of the first row.
    """

    at: int
    checkpoint: Checkpoint
    offsets: tuple[int, ...]
    first: int


class RetryCopies:
    """Batch of copies.

    Args:
        compiled: Returns whether the kernel may be used.
    """

    def __init__(self, put_path: PutPath, identity: Identity, compiled: Callable[[], bool]) -> None:
        self._put_path, self._identity, self._compiled = put_path, identity, compiled
        self._batch = PutBatch(ROWS, 1)
        self._frames = np.zeros(1, layout.SCANNED)
        self._copied: list[CheckpointCopies] = []

    @property
    def is_full(self) -> bool:
        """Whether the batch must be put before another checkpoint is added."""
        return self._batch.staging_len >= BYTES_MAX

    def add_raw(
        self, at: int, checkpoint: Checkpoint, found: RawRecords, *, topic_index: int, now_ms: int
    ) -> bool:
        """Add the copies of a checkpoint by the kernel.

        Args:
            at: Queue offset of the checkpoint in the revive queue.
            found: Unacknowledged messages of the checkpoint.
            topic_index: Topic index of the retry topic.
            now_ms: Current time, in ms since the epoch.
        Returns:
            Whether the copies were added; if False, none was added and the caller must use `add`.
        """
        if not self._compiled():
            return False
        batch, (address, port) = self._batch, self._identity.host
        first_pop = encode_properties({FIRST_POP_TIME: str(checkpoint.pop_ms)})
        number, count = int.from_bytes(address, "big"), len(found.offsets)
        batch.reserve(count, found.data.size + count * (len(first_pop) + 1))
        context = Context(
            topic_index,
            now_ms,
            SYS_FLAGS,
            layout.SYS_STORE_IPV6 if len(address) == IPV6_BYTES else 0,
            np.uint64(number >> 64),
            np.uint64(number & 0xFFFF_FFFF_FFFF_FFFF),
            port,
            np.frombuffer(first_pop, np.uint8),
        )
        end = np.array([batch.count, batch.staging_len], np.int64)
        output = Output(batch.rows, batch.staging, end)
        if add_copies(found.data, found.log_offsets, self._frames, context, output) < count:
            return False
        self._assign_rows(at, checkpoint, found.offsets)
        batch.count, batch.staging_len = end.tolist()
        return True

    def add(
        self,
        at: int,
        checkpoint: Checkpoint,
        records: Sequence[Record],
        *,
        topic_index: int,
        now_ms: int,
    ) -> None:
        """Add the copies of a checkpoint in Python; arguments as for `add_raw`.

        Args:
            records: Unacknowledged messages that exist and have no copy yet.
        """
        self._assign_rows(at, checkpoint, tuple(record.queue_offset for record in records))
        for record in records:
            self._add_record(record, checkpoint.pop_ms, topic_index, now_ms)

    def _assign_rows(self, at: int, checkpoint: Checkpoint, offsets: tuple[int, ...]) -> None:
        """Assign the next rows to a checkpoint; the store accepts all of them or none."""
        first = self._batch.count
        self._copied.append(CheckpointCopies(at, checkpoint, offsets, first))
        if offsets:
            self._batch.together.append((first, len(offsets)))

    def _add_record(self, record: Record, pop_ms: int, topic_index: int, now_ms: int) -> None:
        add_copy(
            self._batch,
            record,
            topic_index=topic_index,
            queue_id=0,
            properties=retry_properties(record, pop_ms, now_ms),
            store_host=self._identity.host,
            sys_flag=record.sys_flag & KEPT_FLAGS & ~layout.SYS_TRANSACTION_MASK,
            reconsume_times=record.reconsume_times + 1,
            prepared_offset=record.phys_offset,
        )

    def put(self) -> list[tuple[CheckpointCopies, Collection[int], str]]:
        """Append the copies and clear the batch.

        Returns:
            For each checkpoint: its copies, the queue offsets of messages with a stored copy, and
            the store's error text; empty: all copies are stored.
        """
        batch, copied = self._batch, self._copied
        self._copied = []
        if batch.count:
            batch.trusted = True
            self._put_path.put(batch)
        stored = np.isin(batch.filled["status"], STORED)
        found: list[tuple[CheckpointCopies, Collection[int], str]] = []
        for each in copied:
            kept = stored[each.first : each.first + len(each.offsets)]
            if kept.all():
                found.append((each, each.offsets, ""))
                continue
            row = each.first + int(np.argmin(kept))
            fault = batch.remarks.get(row) or f"the store returned {batch.rows[row]['status']}"
            offsets = np.array(each.offsets)[kept].tolist()
            found.append((each, offsets, fault))
        batch.clear()
        if batch.staging.size > 2 * BYTES_MAX:
            self._batch = PutBatch(ROWS, 1)  # free the buffer of a large message
        return found


def retry_properties(record: Record, pop_ms: int, now_ms: int) -> dict[str, str]:
    """Return the properties of a popped message's copy in its retry topic.

    Args:
        record: Record of the popped message.
        pop_ms: Time of the pop, in ms since the epoch.
        now_ms: Current time; the copy keeps a delivery time up to it.
    """
    properties = dict(record.properties)
    if record.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(pop_ms)
    for name in (*DELAYING, RECEIPT_PROPERTY):
        properties.pop(name, None)
    due = properties.get("TIMER_DELIVER_MS", "")
    if due and not (due.isascii() and due.isdigit() and int(due) <= now_ms):
        del properties["TIMER_DELIVER_MS"]
    return properties
