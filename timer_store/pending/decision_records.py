"""Records that settle timers without a delivery: markers, and copies that replace a timer.

    marker   cancels the timer. There are two of each: one names topic+key, as Apache's broker 5.3
             compares it, the other the key alone, as 5.4 and later compare it. Either settles the
             timer here
    copy     moves it to another due time, or replaces a record in a log file that compaction frees

A copy names the old record as its origin, so one append settles the old timer and adds the new one.
A copy that is not moved keeps all properties of the client, and the exact due time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from delayed_delivery.kernels.texts import UNREADABLE, DecisionOutput
from delayed_delivery.names import CANCELLED_BODY
from duemq_common.codes import ResponseCode
from duemq_common.topics import TIMER_TOPIC
from message_store import layout as store_layout
from message_store.log.batch import PutBatch
from message_store.store import MessageStore
from timer_store import layout
from timer_store.kernels import decide as kernels
from timer_store.layout import Mask, Offsets, Rows
from timer_store.pending.records import RecordReader

BATCH_ROWS = 4_096
BATCH_BYTES_MAX = 8 << 20  # maximum bytes of source records; a single record may exceed it
WHY_DAMAGED = "its record in the commit log is damaged"


class DecidingRecords:
    """Writer of markers and copies of one store.

    Attributes:
        is_refused_now: Whether the store refused a record of the last call only for now.
    """

    def __init__(self, store: MessageStore, precision_ms: int) -> None:
        self._store, self._precision_ms = store, precision_ms
        self._timer = store.topics.add(TIMER_TOPIC)
        self._batch = PutBatch(BATCH_ROWS)
        self._frames = np.zeros(1, store_layout.SCANNED)
        self.is_refused_now = False

    def put_markers(self, timers: Rows, now_ms: int, body: bytes) -> dict[int, str]:
        """Append the markers of each timer; return the refusals, by index.

        The first markers of a cancel have the keys of their targets, so that a lookup finds it.

        Args:
            timers: (n,) `layout.TIMED`.
            body: One of `names.CANCELLED_BODY`, `FIRED_BODY` and `MOVED_BODY`.
        """
        return self._put(timers, None, now_ms, body == CANCELLED_BODY, body)

    def put_copies(self, timers: Rows, due_ms: Offsets, now_ms: int) -> dict[int, str]:
        """Append a copy of each timer, due at due_ms[i]; return the refusals, by index."""
        return self._put(timers, due_ms, now_ms, False)

    def put_again(self, timers: Rows, due_ms: Offsets, now_ms: int) -> dict[int, str]:
        """Append a copy of each pending timer; return the refusals, by index.

        A copy goes through the timer queue again and keeps all properties of its client. It has the
        exact due time as a property; TIMER_DELAY_* count from the first record's store time.

        Args:
            due_ms: (n,) i8: due times of their units.

        Source: TimerMessageStore.convert, with needRoll
        """
        return self._put(timers, due_ms, now_ms, True)

    def _put(
        self, timers: Rows, due_ms: Offsets | None, now_ms: int, keeps: bool, body: bytes = b""
    ) -> dict[int, str]:
        """Append markers (`due_ms` None) or copies; return the refusals, by index.

        Args:
            keeps: Whether markers have the keys of their targets, or copies keep their due time.
            body: Body of the markers.
        """
        refused: dict[int, str] = {}
        self.is_refused_now = False
        first, rows_max = 0, BATCH_ROWS // 2 if due_ms is None else BATCH_ROWS
        while first < timers.size:
            rows = timers[first : first + batch_size(timers["record_size"][first:], rows_max)]
            times = None if due_ms is None else due_ms[first : first + rows.size]
            self._fill(rows, times, now_ms, keeps, body)
            self._store.put(self._batch)
            failed = self._batch.filled["status"].reshape(-1, rows.size) != 0
            for index in np.flatnonzero(failed.all(axis=0)).tolist():
                status = int(self._batch.rows[index]["status"])
                damaged = status == UNREADABLE
                self.is_refused_now |= status == ResponseCode.SERVICE_NOT_AVAILABLE
                reason = self._batch.refusal(index)
                refused[first + index] = WHY_DAMAGED if damaged else reason
            first += int(rows.size)
        return refused

    def _fill(
        self, timers: Rows, due_ms: Offsets | None, now_ms: int, keeps: bool, body: bytes
    ) -> None:
        batch = self._batch
        batch.clear()
        sizes = int(timers["record_size"].clip(0).astype(np.int64).sum())
        count = int(timers.size) * (2 if due_ms is None else 1)
        batch.reserve(count, 3 * sizes + kernels.MARKER_ROOM * (count + 1))
        batch.trusted, batch.count = True, count
        batch.rows[: batch.count]["status"] = UNREADABLE
        body_at = batch.stage(body)
        context = kernels.Context(self._timer, self._precision_ms, now_ms, body_at)
        free_pos = np.array([batch.staging_len], np.int64)
        output = DecisionOutput(batch.rows, batch.staging, free_pos)
        for file, in_file in self._store.indexes_by_file(timers["phys_offset"]):
            source = kernels.Source(file.data, *self._store.written_span(file), self._frames)
            if due_ms is None:
                kernels.make_markers(source, timers, in_file, context, keeps, output)
            else:
                kernels.make_copies(source, timers, in_file, due_ms, context, keeps, output)
        batch.staging_len = int(output.free_pos[0])


class TimerCopies:
    """Copies of pending timers of one store. Belongs to the event loop's thread."""

    def __init__(self, records: RecordReader, deciding: DecidingRecords) -> None:
        self._records, self._deciding = records, deciding

    def put(self, rows: Rows, now_ms: int) -> tuple[Rows, Mask]:
        """Append a copy of each timer; the caller settles the copied ones.

        Args:
            rows: (n,) `layout.STAGED` of different records.

        Returns:
            Records of the timers, (n,) `layout.TIMED`, and which were copied. The others are
            damaged or too long for one more property, or the store refuses writes.
        """
        timed = self._records.read(np.ascontiguousarray(rows["phys_offset"]))
        copied = timed["kind"] == layout.TIMED_PLAIN
        copied &= timed["record_size"] == rows["record_size"]
        intact = np.flatnonzero(copied)
        due_ms = np.ascontiguousarray(rows["due_ms"][intact])
        refused = self._deciding.put_again(timed[intact], due_ms, now_ms)
        copied[intact[list(refused)]] = False
        return timed, copied


def batch_size(sizes: npt.NDArray[np.int32], rows_max: int) -> int:
    """Return the number of leading records for one batch."""
    total = np.cumsum(sizes[:rows_max].clip(0).astype(np.int64))
    return max(int(np.searchsorted(total, BATCH_BYTES_MAX, "right")), 1)
