"""Gaps: damage in the middle of the log, bridged so that later records are kept.

    [record][record][damage]................[record][record]      records follow the damage
    [record][record][record without queue  ][record][record]      after the bridge

Apache's broker truncates the log at the first bytes that are not a record, and loses all
acknowledged messages after them. DueMQ moves the damaged bytes to a file and replaces them by one
record of the transaction type ROLLBACK, which no broker puts into a queue or an index: every reader
of the log, Apache's included, skips it.

The first record after a gap is the first valid one that a queue unit points at after the damage.
Bytes are searched for a record only if no queue has such a unit, and the log is known to continue
or its length is unknown (an Apache store). Otherwise a body that looks like a record could become
a message at the end of a log that a power cut has torn.

Bytes after the true end of the log may be old records that contain their own position, because
Apache truncates without zeroing. They differ from records after damage by their store time (older
than the last record) and their queue offset (used by another message).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from message_store import layout
from message_store.kernels import scan
from message_store.kernels.verify import find_record
from message_store.layout import Row
from message_store.log.commit_log import BLANK, CommitLog, LogFile
from message_store.log.frames import frame_at, topic_of
from message_store.log.record import Record, encode_record
from message_store.queues.consume_queues import QueueSet

TRIES_MAX = 1_000  # maximum units that are tried before one has a valid record
SEARCH_BYTES_MAX = 64 << 20  # maximum bytes that are searched after the last record, in its file
BRIDGE_TOPIC = "DUEMQ_DAMAGED_BYTES"
NO_HOST = (bytes(4), 0)


class Gap(Struct, frozen=True):
    """Log offsets of damaged bytes and of the record after them."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.start


def find_gap(
    log: CommitLog, queues: QueueSet, end: int, floor_ms: int, known_end: int | None = None
) -> Gap | None:
    """Return the gap at `end` if records of this log follow it.

    Args:
        end: Log offset at which the walk stopped.
        floor_ms: Store time of the last record before it.
        known_end: Log offset that the log is known to have reached; None: unknown.
    """
    gap = _gap_to_queued(log, queues, end)
    if gap is not None:
        return gap
    if known_end is not None and end >= known_end:
        return None
    return _gap_to_found(log, queues, end, floor_ms)


def _gap_to_queued(log: CommitLog, queues: QueueSet, end: int) -> Gap | None:
    """Return the gap up to the first valid record after `end` that has a unit in a queue."""
    position = end + layout.RECORD_FIXED_BYTES + 1  # damage has at least the size of a record
    for _ in range(TRIES_MAX):
        units = [unit for queue in queues.all() if (unit := queue.unit_from(position)) is not None]
        if not units:
            return None
        first = min(units, key=lambda unit: int(unit["phys_offset"]))
        position = int(first["phys_offset"])
        row = frame_at(log, position)
        if row is not None and row["record_size"] == first["size"]:
            damaged = log.file_of(end)
            return Gap(end, min(position, damaged.base + damaged.size))
        position += 1
    return None


def _gap_to_found(log: CommitLog, queues: QueueSet, end: int, floor_ms: int) -> Gap | None:
    """Return the gap up to the first bytes after `end` that look like a record of this log."""
    row = np.zeros(1, layout.SCANNED)[0]
    for index, file in enumerate(log.files):
        if not file.base <= end < file.base + file.size:
            continue
        pos = _next_record(file, end - file.base + 1, row)
        if pos < 0 and index + 1 < len(log.files):
            file, pos = log.files[index + 1], 0
            if scan.read_frame(file.data, 0, file.size, file.base, row) <= 0:
                return None
        if pos < 0 or not _belongs(row, file, queues, floor_ms):
            return None
        gap = Gap(end, file.base + pos)
        return gap if pos == 0 or gap.size > layout.RECORD_FIXED_BYTES else None
    return None


def unreadable_end(log: CommitLog, end: int, known_end: int) -> Gap | None:
    """Return the gap at `end` if the disk cannot read the last records of the log.

    Args:
        known_end: Log offset that the log is known to have reached.
    """
    for file in log.files:
        if file.base <= end < file.base + file.size:
            gap = Gap(end, min(known_end, file.base + file.size))
            hit = any(low < gap.end and high > end for low, high in log.unreadable.ranges)
            return gap if hit and gap.size > layout.RECORD_FIXED_BYTES else None
    return None


def _next_record(file: LogFile, pos: int, row: Row) -> int:
    """Return the start of the next valid record of a file, -1 without one within the limit."""
    if not file.has_data(pos, pos + SEARCH_BYTES_MAX):
        return -1
    end = min(file.size, pos + SEARCH_BYTES_MAX)
    return int(find_record(file.data, pos, end, file.base, row))


def _belongs(row: Row, file: LogFile, queues: QueueSet, floor_ms: int) -> bool:
    if int(row["store_ms"]) < floor_ms:
        return False
    queue = queues.find(topic_of(file.data, file.base, row), int(row["queue_id"]))
    if queue is None:
        return True
    units = queue.read(int(row["queue_offset"]), 1)
    return not units.size or int(units[0]["phys_offset"]) == int(row["phys_offset"])


def bridge(log: CommitLog, gap: Gap, store_ms: int) -> None:
    """Copy the gap's bytes to a file and overwrite them with a ROLLBACK or a blank record.

    Raises:
        OSError: The disk refused it.
    """
    file = log.file_of(gap.start)
    log.sums.withdraw(gap.start)
    pos = gap.start - file.base
    directory = log.directory.parent / "truncated"
    directory.mkdir(exist_ok=True)
    inside = min(gap.size, file.size - pos)
    (directory / f"{gap.start:020d}").write_bytes(file.data[pos : pos + inside].tobytes())
    file.write(pos, _filler(gap, inside, store_ms, ends_file=gap.end >= file.base + file.size))


def _filler(gap: Gap, size: int, store_ms: int, *, ends_file: bool) -> bytes:
    if ends_file:
        return BLANK.pack(size, layout.MAGIC_BLANK)[:size]
    topic = BRIDGE_TOPIC[: size - layout.RECORD_FIXED_BYTES]
    filler = Record(
        total_size=size,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        phys_offset=gap.start,
        sys_flag=layout.SYS_ROLLBACK,
        born_ms=store_ms,
        born_host=NO_HOST,
        store_ms=store_ms,
        store_host=NO_HOST,
        reconsume_times=0,
        prepared_offset=0,
        body=bytes(size - layout.RECORD_FIXED_BYTES - len(topic)),
        topic=topic,
        property_text=b"",
    )
    return encode_record(filler)
