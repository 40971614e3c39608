"""Appender: encodes the rows of a batch and writes them to the log, file by file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock
from message_store.config import StoreConfig
from message_store.kernels import encode
from message_store.kernels.kernel import entry
from message_store.layout import BLANK_BYTES, ENTRY_END, PUT
from message_store.log.batch import PutBatch
from message_store.log.commit_log import CommitLog
from message_store.log.properties import encode_properties
from message_store.queues.topic_table import TopicTable

OUT_BYTES_MIN = 1 << 20
OUT_BYTES_MAX = 32 << 20
RECORD_EXTRA_BYTES_MAX = 65_536  # maximum bytes of a record in addition to maxMessageSize
CLOCK_STEP_MS_MAX = 1_000  # after a smaller step back of the clock, store times do not decrease
Encoders = tuple[Callable[..., tuple[int, int, int]], Callable[..., tuple[int, int, int]]]


class Appender:
    """Write side of a log.

    Attributes:
        last_record: Log offset of the last record, -1 if the log is empty.
        last_store_ms: Store time of that record.
    """

    def __init__(
        self,
        log: CommitLog,
        topics: TopicTable,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._log, self._topics, self._config, self._clock = log, topics, config, clock
        self._out: npt.NDArray[np.uint8] = np.empty(OUT_BYTES_MIN, np.uint8)
        self._encoders: dict[bool, Encoders] = {}  # by whether the staging buffer is writable
        self._encode: Callable[..., tuple[int, int, int]]  # for the prepared batch
        self.last_record = -1
        self.last_store_ms = 0

    def prepare(self, batch: PutBatch) -> None:
        """Compute sizes of records and find their queues; refuse rows that cannot be stored."""
        rows, count = batch.rows, batch.count
        record_max = self._config.commitlog_file_bytes - BLANK_BYTES
        body_max = record_max if batch.trusted else self._config.message_bytes_max
        record_max = min(record_max, body_max + RECORD_EXTRA_BYTES_MAX)
        prepare, self._encode = self._encoders_of(batch)
        refused = 0
        while True:
            index, total, refused_now = prepare(
                rows, count, batch.staging, self._topics.arrays, body_max, record_max
            )
            refused += refused_now  # a repeated call skips the rows that it refused before
            if index == count:
                break
            # the kernel stops at a queue without a slot, which only Python can create
            self._topics.slot(
                int(rows[index]["topic_index"]), int(rows[index]["queue_id"]), create=True
            )
        if refused:
            for index in np.flatnonzero(batch.filled["status"] == encode.MESSAGE_ILLEGAL).tolist():
                batch.remarks.setdefault(index, self._illegal_remark(batch, index))
            batch.refuse_together()
        if total > self._out.size and self._out.size < OUT_BYTES_MAX:
            self._out = np.empty(min(int(total) * 2, OUT_BYTES_MAX), np.uint8)

    def _encoders_of(self, batch: PutBatch) -> Encoders:
        """Return the kernels for a batch; its arrays must be as `PutBatch` makes them."""
        rows, staging = batch.rows, batch.staging
        assert rows.flags.c_contiguous
        assert staging.flags.c_contiguous
        encoders = self._encoders.get(staging.flags.writeable)
        if encoders is None:
            assert rows.dtype == PUT
            assert staging.dtype == np.uint8
            arrays = self._topics.arrays
            encoders = self._encoders[staging.flags.writeable] = (
                entry(encode.prepare, rows, 0, staging, arrays, 0, 0),
                entry(encode.encode, rows, (0, 0), staging, arrays, self._out, 0, 0, 0),
            )
        return encoders

    def _illegal_remark(self, batch: PutBatch, position: int) -> str:
        """Return which limit a refused row exceeds."""
        row, body_max = batch.rows[position], self._config.message_bytes_max
        properties_bytes = self._property_bytes(batch, position)
        if row["body_len"] > body_max and not batch.trusted:
            reason = f"its body has {row['body_len']} bytes; maxMessageSize is {body_max}"
        elif row["queue_id"] < 0:
            reason = f"its queue is {row['queue_id']}; queues begin at 0"
        elif properties_bytes > encode.PROPERTY_BYTES_MAX:
            added = properties_bytes - row["prop_len"]
            reason = f"its properties have {properties_bytes} bytes"
            reason += f", {added} of them added by the broker" if added else ""
            reason += f"; the limit is {encode.PROPERTY_BYTES_MAX}"
        else:
            reason = "its record has more bytes than a file of the commit log"
            reason += f"; mappedFileSizeCommitLog is {self._config.commitlog_file_bytes}"
        return f"the message is illegal: {reason}"

    def _property_bytes(self, batch: PutBatch, position: int) -> int:
        """Return the size of a row's properties with those of its real topic."""
        row = batch.rows[position]
        size, index = int(row["prop_len"]), int(row["real_topic_index"])
        if index < 0:
            return size
        real = {"REAL_TOPIC": self._topics.name(index), "REAL_QID": str(row["real_queue_id"])}
        is_open = size > 0 and batch.staging[row["prop_pos"] + size - 1] != ENTRY_END
        return size + is_open + len(encode_properties(real))

    def next_store_ms(self) -> int:
        """Return the store time of records that are appended now."""
        now = self._clock.now_ms()
        if now < self.last_store_ms <= now + CLOCK_STEP_MS_MAX:
            return self.last_store_ms
        return now

    def append(self, batch: PutBatch, first: int, store_ms: int) -> int:
        """Write the rows from `first` on that fit into the current file; return the next row.

        Call `prepare` with the same batch before.

        Raises:
            OSError: The disk refused the write; none of the rows is in the log.
        """
        log = self._log
        file = log.file_at_end or log.writable_file()
        left = file.base + file.size - log.end
        end, size, last = self._encode(
            batch.rows,
            (first, batch.count),
            batch.staging,
            self._topics.arrays,
            self._out,
            log.end,
            left,
            store_ms,
        )
        if size == 0 and end < batch.count:
            needed = int(batch.rows[end]["record_size"])
            if needed + BLANK_BYTES > left:
                log.close_file()
            else:
                self._out = np.empty(needed, np.uint8)
            return end
        if size:
            try:
                file.write(log.end - file.base, self._out.data[:size])
            except OSError:
                encode.revert_queue_offsets(batch.rows, first, end, self._topics.arrays)
                with suppress(OSError):  # completely written records are also refused
                    file.zero_from(log.end - file.base)
                raise
            self.last_record, self.last_store_ms = last, store_ms
            log.end += size
        return end
