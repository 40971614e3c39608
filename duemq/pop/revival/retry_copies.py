"""Copies of popped messages for their retry topics; one batch has the copies of many checkpoints.

unacknowledged messages of a checkpoint --> raw records --kernel or Python--> rows --put--> log
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from delayed_delivery.later_copies import SEPARATOR_BYTES, entry_bytes, handle_bytes_max
from duemq.pop.checkpoints import PopCheckpoint
from duemq.pop.kernels.revival import CopyContext, CopyOutput, add_copies
from duemq.pop.queue_reader import RawRecords
from duemq.pop.receipts import RECEIPT_PROPERTY
from duemq.registry.managers import Identity
from duemq.send.put_path import PutPath
from duemq_common.codes import ResponseCode
from message_store import layout
from message_store.log.batch import IPV6_BYTES, PutBatch
from message_store.log.copies import KEPT_FLAGS, STORED, add_copy, next_reconsume_times, refusal
from message_store.log.properties import PROPERTIES_BYTES_MAX, encode_properties
from message_store.log.record import Record

BYTES_MAX: Final = 4 << 20  # per batch; a batch that reaches it gets no further checkpoint
ROWS: Final = 2_048
FIRST_POP_TIME: Final = "1ST_POP_TIME"
DELAYING: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
"""Properties with a relative delay, which would delay the copy again."""
SYS_FLAGS: Final = (KEPT_FLAGS | layout.SYS_BORN_IPV6) & ~layout.SYS_TRANSACTION_MASK


class CopyResult(Struct, frozen=True):
    """Result of the copies of one checkpoint. The messages are named by their queue offsets.

    Attributes:
        stored: Messages with a stored copy.
        illegal: Reason for each message that the store will never accept.
        refusal: Reason for the messages that the store does not accept now; empty: there are none.
    """

    copied: CheckpointCopies
    stored: list[int]
    illegal: dict[int, str]
    refusal: str


class CheckpointCopies(Struct, frozen=True):
    """Copies of one checkpoint in the batch.

    Attributes:
        queue_offset: Queue offset of the checkpoint in the revive queue.
        offsets: Queue offsets of the messages, one per row.
        first: Index of the first row.
    """

    queue_offset: int
    checkpoint: PopCheckpoint
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
        self,
        position: int,
        checkpoint: PopCheckpoint,
        records: RawRecords,
        *,
        topic_index: int,
        now_ms: int,
    ) -> bool:
        """Add the copies of a checkpoint by the kernel.

        Args:
            position: Queue offset of the checkpoint in the revive queue.
            records: Unacknowledged messages of the checkpoint.
            topic_index: Topic index of the retry topic.
            now_ms: Current time, in ms since the epoch.
        Returns:
            Whether the copies were added; if False, none was added and the caller must use `add`.
        """
        if checkpoint.suspended or not self._compiled():
            return False
        batch, (address, port) = self._batch, self._identity.host
        first_pop = encode_properties({FIRST_POP_TIME: str(checkpoint.pop_ms)})
        number, count = int.from_bytes(address, "big"), len(records.offsets)
        batch.reserve(count, records.data.size + count * (len(first_pop) + 1))
        context = CopyContext(
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
        output = CopyOutput(batch.rows, batch.staging, end)
        if add_copies(records.data, records.log_offsets, self._frames, context, output) < count:
            return False
        self._assign_rows(position, checkpoint, records.offsets)
        batch.count, batch.staging_len = end.tolist()
        return True

    def add(
        self,
        position: int,
        checkpoint: PopCheckpoint,
        records: Sequence[Record],
        *,
        topic_index: int,
        now_ms: int,
    ) -> None:
        """Add the copies of a checkpoint in Python; arguments as for `add_raw`.

        Args:
            records: Unacknowledged messages that exist and have no copy yet.
        """
        self._assign_rows(position, checkpoint, tuple(record.queue_offset for record in records))
        for record in records:
            self._add_record(record, checkpoint, topic_index, now_ms)

    def _assign_rows(
        self, position: int, checkpoint: PopCheckpoint, offsets: tuple[int, ...]
    ) -> None:
        """Assign the next rows to a checkpoint."""
        self._copied.append(CheckpointCopies(position, checkpoint, offsets, self._batch.count))

    def _add_record(
        self, record: Record, checkpoint: PopCheckpoint, topic_index: int, now_ms: int
    ) -> None:
        retries = record.reconsume_times if checkpoint.suspended else next_reconsume_times(record)
        add_copy(
            self._batch,
            record,
            topic_index=topic_index,
            queue_id=0,
            properties=retry_properties(record, checkpoint.pop_ms, now_ms),
            store_host=self._identity.host,
            sys_flag=record.sys_flag & KEPT_FLAGS & ~layout.SYS_TRANSACTION_MASK,
            reconsume_times=retries,
            prepared_offset=record.phys_offset,
        )

    @property
    def is_empty(self) -> bool:
        """Whether the batch has no checkpoint."""
        return not self._copied

    def put(self) -> list[CopyResult]:
        """Append the copies and clear the batch; return the result of each checkpoint."""
        batch, copied = self._batch, self._copied
        self._copied = []
        if batch.count:
            batch.trusted = True
            self._refuse_without_room(batch)
            self._put_path.put(batch)
        stored = np.isin(batch.filled["status"], STORED)
        results = [
            CopyResult(each, list(each.offsets), {}, "")
            if stored[each.first : each.first + len(each.offsets)].all()
            else _result(each, batch)
            for each in copied
        ]
        batch.clear()
        if batch.staging.size > 2 * BYTES_MAX:
            self._batch = PutBatch(ROWS, 1)  # free the buffer of a large message
        return results

    def _refuse_without_room(self, batch: PutBatch) -> None:
        """Refuse copies that no pop could return with their receipt handle."""
        name_bytes = len(self._identity.broker_name.encode())
        handle_bytes = entry_bytes(RECEIPT_PROPERTY, handle_bytes_max(name_bytes))
        limit = PROPERTIES_BYTES_MAX - handle_bytes - SEPARATOR_BYTES
        for row in np.flatnonzero(batch.filled["prop_len"] > limit).tolist():
            size = int(batch.rows[row]["prop_len"])
            remark = (
                f"its properties would have {size} bytes, without room for the "
                f"{handle_bytes} bytes of a receipt handle; the limit is {PROPERTIES_BYTES_MAX}"
            )
            batch.refuse(row, ResponseCode.MESSAGE_ILLEGAL, remark)


def _result(copied: CheckpointCopies, batch: PutBatch) -> CopyResult:
    """Return the result of a checkpoint of whose copies the store refused some."""
    result = CopyResult(copied, [], {}, "")
    for row, offset in enumerate(copied.offsets, copied.first):
        reason = refusal(batch, row)
        if reason is None:
            result.stored.append(offset)
        elif batch.rows[row]["status"] == ResponseCode.MESSAGE_ILLEGAL:
            result.illegal[offset] = reason
        else:
            result = replace(result, refusal=reason)
    return result


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
