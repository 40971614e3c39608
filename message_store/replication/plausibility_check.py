"""Implausible records of a master: refused once, accepted if the master sends them again.

The protocol has no checksum of headers. A header that was damaged on the network must not be
stored, but damage in the master's log must not stop the replication for ever. Therefore an
implausible record ends the connection. If the master sends the same bytes again over another
connection, they are its log.

    body CRC                       the record is kept, as recovery keeps it
    store time                     more than an hour before its predecessor, or more than an hour
                                   after both its predecessor and the clock
    topic, queue or queue offset   impossible: the record is kept and is in no queue
    queue offset                   a gap too long for the log between both records, or an offset
                                   that the queue already has: in no queue; 0: see below

If a master has bridged damage in its log, the queue offsets of lost messages are missing: a gap. If
it has deleted a topic, the topic's queues begin at 0 again, and they are removed here, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock
from duemq_common.errors import ReplicationFault
from message_store import layout
from message_store.kernels.replicate import are_plausible
from message_store.layout import Row, Rows
from message_store.log.commit_log import CommitLog
from message_store.queues.consume_queue import is_blank
from message_store.queues.consume_queues import QueueSet, is_topic_name
from message_store.queues.topic_table import QUEUES_MAX
from message_store.recovery.queue_offset_check import has_possible_offset

Bytes = npt.NDArray[np.uint8]
STORE_MS_SLACK: Final = 3_600_000  # maximum difference between clocks, and maximum step back
REFUSED_MAX: Final = 1_024


class PlausibilityCheck:
    """Check of the records that one store receives from its master."""

    def __init__(
        self, log: CommitLog, queues: QueueSet, clock: Clock, notice: Callable[[str], None]
    ) -> None:
        self._log, self._queues, self._clock, self._notice = log, queues, clock, notice
        self._refused: set[tuple[int, int]] = set()  # log offset and CRC of records refused before

    # -- single records -------------------------------------------------------------------------

    def check_records(
        self, rows: Rows, data: Bytes, base: int, last_ms: int
    ) -> tuple[int, ReplicationFault | None]:
        """Return the number of leading records to append, and the fault of the next one.

        Records that can be in no queue get the topic index IN_NO_QUEUE.

        Args:
            rows: (n,) `layout.SCANNED`.
            data: Log bytes from log offset `base` on.
            last_ms: Store time of the previous record.
        """
        now_ms = self._clock.now_ms()
        if are_plausible(rows, last_ms, now_ms, STORE_MS_SLACK, QUEUES_MAX):
            return int(rows.size), None
        store_ms = rows["store_ms"]
        before_ms = np.concatenate([[last_ms], store_ms[:-1]])
        latest_ms = np.maximum(before_ms, now_ms) + STORE_MS_SLACK
        far = (store_ms < before_ms - STORE_MS_SLACK) | (store_ms > latest_ms)
        without_queue = _without_queue(rows)
        at = np.flatnonzero((rows["damage"] != 0) | far | without_queue)
        refused = [i for i in at.tolist() if not self._was_refused(rows[i], data, base)]
        good = refused[0] if refused else int(rows.size)
        rows["topic_index"][:good][without_queue[:good]] = layout.IN_NO_QUEUE
        if not refused:
            return good, None
        row, offset = rows[good], int(rows[good]["phys_offset"])
        if row["damage"]:
            why = f"the body of the record at log offset {offset} does not match its CRC"
        elif far[good]:
            why = f"the record at log offset {offset} has the store time {int(row['store_ms'])}"
        else:
            why = f"the record at log offset {offset} names an impossible queue"
        return good, _refusal(why)

    def _was_refused(self, row: Row, data: Bytes, base: int) -> bool:
        """Return whether the same bytes were refused before; remember them."""
        offset, pos = int(row["phys_offset"]), int(row["phys_offset"]) - base
        key = offset, zlib.crc32(data[pos : pos + int(row["record_size"])].data)
        if key in self._refused:
            self._notice(f"commit log offset {offset}: implausible record, as in the master's log")
            return True
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused.add(key)
        return False

    def check_topic(self, row: Row, name: str, data: Bytes, base: int) -> bool:
        """Return whether a name is a valid topic; otherwise the record is in no queue.

        Raises:
            ReplicationFault: The name is invalid, and the record was received for the first time.
        """
        if is_topic_name(name):
            return True
        if not self._was_refused(row, data, base):
            raise _refusal(f"the record at log offset {int(row['phys_offset'])} has no valid topic")
        return False

    # -- queue offsets --------------------------------------------------------------------------

    def is_gap(self, row: Row, slot: int) -> bool:
        """Return whether the queue offsets before a record may be those of lost messages."""
        queue = self._queues.at(slot)
        missing = int(row["queue_offset"]) - self._queues.topics.next_offset(slot)
        if missing < 0:
            return False
        last = queue.read(queue.max_offset - 1, 1)
        known = last.size and not is_blank(last)[0]
        start = int(last[0]["phys_offset"]) if known else 0
        return missing <= (int(row["phys_offset"]) - start) // layout.RECORD_FIXED_BYTES

    def begins_again(self, row: Row, slot: int, data: Bytes, base: int) -> bool:
        """Return whether a record that does not continue its queue is the first of a new topic.

        Otherwise the record is in no queue.

        Raises:
            ReplicationFault: The record was received for the first time.
        """
        topics, offset = self._queues.topics, int(row["queue_offset"])
        name, queue_id = topics.name(int(row["topic_index"])), int(row["queue_id"])
        if not self._was_refused(row, data, base):
            raise _refusal(
                f"the record at log offset {int(row['phys_offset'])} has queue offset {offset}, "
                f"but queue {queue_id} of {name} ends at {topics.next_offset(slot)}"
            )
        if offset == 0:
            self._notice(f"the master has deleted the topic {name}: its queues begin at 0 again")
        return offset == 0


def _without_queue(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which records have an impossible queue or queue offset."""
    queue_id = rows["queue_id"]
    return np.asarray((queue_id < 0) | (queue_id >= QUEUES_MAX) | ~has_possible_offset(rows))


def _refusal(why: str) -> ReplicationFault:
    return ReplicationFault(
        f"{why}: it was damaged on the network or at the master (run duemq store verify there). It "
        f"is accepted if the master sends it again"
    )
