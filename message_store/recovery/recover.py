"""Recovery: find the end of the log and bring every queue up to it.

    start ------------------ walk, record by record ------------------> end
      |                                                                  |
      queues are known to be complete up to here       the first bytes that are not a record

The queues are a projection of the log: the unit of each record found is written again at
queue offset x 20, which has no effect if the unit exists.

The walk starts at the first of these offsets that is known:
    1. DueMQ's recovery mark, if the record that it names still ends at its offset. After a clean
       stop, the mark of all written data is used; after a kill or a power cut, that of the synced
       data, because a sync may have failed before (`write_again`).
    2. Apache's rule: after a clean stop, the third-last file; after a crash, the newest file up to
       which no file begins with a record after the smaller time of the checkpoint. The walk never
       starts after the last record that has a unit, so that removed queues are rebuilt.
Unlike in Apache's broker, a record must contain its own log offset (so a stale record is never
accepted), neither a body with a wrong CRC nor damage before other records (`gaps`) ends the log,
and bytes that are removed from the end are kept in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from message_store import layout
from message_store.hooks import TagsCodeRule
from message_store.kernels import scan
from message_store.kernels.verify import find_record
from message_store.layout import Row, Rows
from message_store.log.commit_log import CommitLog, LogFile
from message_store.log.frames import topic_of
from message_store.log.gaps import bridge, find_gap, unreadable_end
from message_store.queues.consume_queue import is_blank
from message_store.queues.consume_queues import QueueSet, is_topic_name
from message_store.queues.topic_table import QUEUES_MAX, TopicTable
from message_store.ranges import minus
from message_store.recovery.queue_offset_check import QueueOffsetCheck, has_possible_offset
from message_store.recovery.start_position import last_units, record_ends_at
from message_store.recovery.truncated_bytes import save_tail

CHUNK_RECORDS = 32_768
NOTICES_MAX = 20
GAPS_MAX = 1_000
WRITE_BYTES = 8 << 20


class Recovered(Struct):
    """Result of a recovery."""

    start: int
    offset_check: QueueOffsetCheck
    end: int = 0
    torn_from: int | None = None
    last_record: int = -1
    last_store_ms: int = 0
    records: int = 0
    units: int = 0  # units of the records in the walk
    damaged: list[int] = field(default_factory=list)  # the body does not match its CRC
    without_queue: list[int] = field(default_factory=list)  # the header names an impossible queue
    bridged: list[int] = field(default_factory=list)  # damage that records follow
    gaps: int = 0  # queues that ended before the first of their records in the walk

    def advance(self, row: Row) -> None:
        """Make a record the last one."""
        self.last_record = int(row["phys_offset"])
        self.last_store_ms = int(row["store_ms"])
        self.end = self.last_record + int(row["record_size"])


def walk_log(
    log: CommitLog,
    start: int,
    end: int,
    topics: TopicTable,
    *,
    check: bool,
    past_damage: bool = False,
    count: int = CHUNK_RECORDS,
) -> Iterator[Rows]:
    """Yield chunks of (n,) `layout.SCANNED` for the records in start..end, in log order.

    Stop at the first bytes that are not a record. Chunks are reused: copy rows to keep them.

    Args:
        past_damage: Continue at the next record instead: all bytes up to `end` were written.
        count: Maximum records of a chunk.
    """
    chunk = np.zeros(count, layout.SCANNED)
    for file in log.files:
        if file.base + file.size <= start or file.base >= end:
            continue
        pos = max(start - file.base, 0)
        file_end = min(end - file.base, file.size)
        while pos < file_end:
            reading = log.unreadable.reading()
            while True:
                count, after, stop = scan.walk(
                    file.data, pos, file_end, file.base + pos, topics.arrays, check, chunk
                )
                if not reading.again(int(after)):
                    break
            pos = after
            if count:
                _add_unknown_topics(chunk[:count], file, topics)
                yield chunk[:count]
            if stop == scan.STOP_BLANK:
                break
            if stop == scan.STOP_INVALID:
                if not past_damage:
                    return
                row = np.zeros(1, layout.SCANNED)[0]
                pos = int(find_record(file.data, int(pos) + 1, file_end, file.base, row))
                if pos < 0:
                    break


def _add_unknown_topics(rows: Rows, file: LogFile, topics: TopicTable) -> None:
    """Number the topics that are new in the walk; an invalid name keeps -1."""
    for index in np.flatnonzero(rows["topic_index"] < 0):
        name = topic_of(file.data, file.base, rows[index])
        if is_topic_name(name):
            rows[index]["topic_index"] = topics.add(name)


def recover(
    log: CommitLog,
    queues: QueueSet,
    rules: Sequence[TagsCodeRule],
    start: int,
    notice: Callable[[str], None],
    *,
    torn_from: int | None = None,
    known_end: int | None = None,
    units: int = 0,
) -> Recovered:
    """Walk from `start`, write every unit, truncate log and queues after the last valid record.

    If a queue ends before its first record in the walk, it has lost units, and the walk starts
    again at the first record that exists.

    Args:
        torn_from: Log offset after which a record that does not match its CRC ends the log: after
            a power cut it was never written completely.
        known_end: Log offset that the log is known to have reached: unreadable bytes before it
            are bridged, because their queue offsets were assigned. None if unknown.
        units: Sum of the queues' ends at `start`, 0 if unknown. Each record after it adds one; if
            fewer are found, the disk has changed units, and all queues are written again.
    """
    recovered = Recovered(start, QueueOffsetCheck(queues, log), end=start, torn_from=torn_from)
    _replay(log, queues, rules, recovered)
    if recovered.gaps and start > log.min_offset:
        notice(
            f"{recovered.gaps} consume queues lack units of records before {start}: all queues are "
            f"written again from the log"
        )
        return recover(
            log,
            queues,
            rules,
            log.min_offset,
            notice,
            torn_from=torn_from,
            known_end=known_end,
            units=units,
        )
    _bridge_gaps(log, queues, rules, recovered, known_end, notice)
    recovered.end = _skip_blank(log, recovered.end)
    _report_offsets(recovered.damaged, "the body's CRC does not match; the record was kept", notice)
    recovered.without_queue += recovered.offset_check.without_queue
    _report_offsets(
        recovered.offset_check.ahead,
        "its queue offset is not the next one of its queue: it is wrong, or the records before it "
        "are lost",
        notice,
    )
    _report_offsets(
        recovered.without_queue,
        "its topic, queue or queue offset is impossible; it is in no queue",
        notice,
    )
    _save_tail(log, recovered.end, notice)
    log.truncate(recovered.end)
    queues.truncate(recovered.end)
    if recovered.records:
        _remove_stale_units(log, queues, recovered.start)
    queues.number_slots()
    if units and queues.ends_sum < units + recovered.units:
        notice(
            f"consume queues lack units of records before {start}, or ended with units that do not "
            f"match records: all queues are written again from the log"
        )
        return recover(log, queues, rules, log.min_offset, notice, torn_from=torn_from)
    return recovered


def write_again(log: CommitLog, start: int, end: int) -> None:
    """Write the log's bytes from `start` to `end` over themselves for the next sync.

    After a failed sync, Linux marks pages clean that the disk never received: a later sync succeeds
    without them, and a start would accept bytes that exist only in the page cache.

    Raises:
        OSError: The disk refused it.
    """
    log.unreadable.update()
    for file in log.files:
        low, high = max(start, file.base), min(end, file.base + file.size)
        for index in range(low, high, WRITE_BYTES):
            for offset, data in _readable(log, file, index, min(index + WRITE_BYTES, high)):
                file.write(offset - file.base, data)


def _readable(log: CommitLog, file: LogFile, low: int, high: int) -> list[tuple[int, bytes]]:
    """Return the readable pieces of a file as log offset and bytes, without zeroed pages."""
    reading = log.unreadable.reading()
    while True:
        data = file.data[low - file.base : high - file.base].tobytes()
        if not reading.again(high):
            break
    pieces = minus([(low, high)], log.unreadable.ranges)
    return [(first, data[first - low : after - low]) for first, after in pieces]


def _bridge_gaps(
    log: CommitLog,
    queues: QueueSet,
    rules: Sequence[TagsCodeRule],
    recovered: Recovered,
    known_end: int | None,
    notice: Callable[[str], None],
) -> None:
    """Continue after damage in the middle of the log."""
    while len(recovered.bridged) < GAPS_MAX:
        recovered.end = _skip_blank(log, recovered.end)  # the damage may begin with the next file
        gap = find_gap(log, queues, recovered.end, recovered.last_store_ms, known_end)
        log.unreadable.update()  # the bridge is written over unreadable bytes
        if gap is None and log.unreadable.ranges:
            units_end = max((end for _, end in last_units(queues)), default=0)
            gap = unreadable_end(log, recovered.end, max(known_end or 0, units_end))
        if gap is None:
            return
        bridge(log, gap, recovered.last_store_ms)
        for queue in queues.all():
            queue.blank(gap.start, gap.end)
        recovered.bridged.append(gap.start)
        notice(
            f"commit log offset {gap.start}: {gap.size} bytes are not a record and were moved to "
            f"{log.directory.parent / 'truncated'}; the records after them were kept"
        )
        _replay(log, queues, rules, recovered)


def _replay(
    log: CommitLog, queues: QueueSet, rules: Sequence[TagsCodeRule], recovered: Recovered
) -> None:
    """Write the units of all records from `recovered.end` to the first bytes that are not one."""
    limit = log.files[-1].base + log.file_bytes if log.files else 0
    for rows in walk_log(log, recovered.end, limit, queues.topics, check=True):
        whole = _whole(rows, recovered.torn_from)
        torn = whole < rows.size
        rows = rows[:whole]
        if not whole:
            return
        units, gaps = dispatch(rows, queues, rules, log, recovered.offset_check)
        recovered.units, recovered.gaps = recovered.units + units, recovered.gaps + gaps
        recovered.damaged += rows["phys_offset"][rows["damage"] != 0].tolist()
        recovered.without_queue += rows["phys_offset"][~has_queue(rows)].tolist()
        if rows.size > 1:
            recovered.advance(rows[-2])
        before = recovered.last_record, recovered.last_store_ms
        recovered.advance(rows[-1])
        recovered.records += rows.size
        if _ends_torn(log, rows[-1]):
            recovered.end = recovered.last_record
            recovered.last_record, recovered.last_store_ms = before
            recovered.units -= 1  # at most: its unit is removed with it
        if torn:
            return


def _whole(rows: Rows, torn_from: int | None) -> int:
    """Return the number of complete leading records."""
    if torn_from is None:
        return int(rows.size)
    torn = np.flatnonzero((rows["damage"] != 0) & (rows["phys_offset"] >= torn_from))
    return int(torn[0]) if torn.size else int(rows.size)


def _remove_stale_units(log: CommitLog, queues: QueueSet, start: int) -> None:
    """Remove units at the end of each queue that point into the walked log, but not at a record."""
    for queue in queues.all():
        while queue.max_offset > queue.min_offset:
            if _has_record(queue.read(queue.max_offset - 1, 1), log, start):
                break
            queue.cut(queue.max_offset - 1)


def _has_record(units: Rows, log: CommitLog, start: int) -> bool:
    """Return whether a unit has its record; offsets before `start` are not checked."""
    if not units.size:
        return False
    record, size = int(units[0]["phys_offset"]), int(units[0]["size"])
    if record < start or is_blank(units)[0]:
        return True
    return record_ends_at(log, record, record + size)


def _ends_torn(log: CommitLog, row: Row) -> bool:
    """Return whether a record's properties end in zeros, because the page was not written."""
    end = int(row["phys_offset"]) + int(row["record_size"])
    file = next(f for f in log.files if f.base < end <= f.base + f.size)
    return bool(row["prop_len"] > 0 and file.data[end - 1 - file.base] == 0)


def _skip_blank(log: CommitLog, end: int) -> int:
    """Return the end of the file if there is a blank record at `end`."""
    for file in log.files:
        if file.base <= end < file.base + file.size:
            row = np.zeros(1, layout.SCANNED)
            stop = scan.read_frame(file.data, end - file.base, file.size, end, row[0])
            if stop == -1 - scan.STOP_BLANK:
                return file.base + file.size
    return end


def _save_tail(log: CommitLog, end: int, notice: Callable[[str], None]) -> None:
    """Keep the bytes after `end` that are not zero in files."""
    for path, size in save_tail(log, end):
        notice(
            f"the log ends at {end}; {size} bytes after it are not a valid record and were moved "
            f"to {path}"
        )


def dispatch(
    rows: Rows,
    queues: QueueSet,
    rules: Sequence[TagsCodeRule],
    log: CommitLog,
    offset_check: QueueOffsetCheck | None = None,
) -> tuple[int, int]:
    """Write the units of scanned records; return their number, and that of gaps in queues.

    Args:
        offset_check: Leaves out records with a wrong queue offset.
    """
    kind = rows["sys_flag"] & layout.SYS_TRANSACTION_MASK
    plain = (kind == 0) | (kind == layout.SYS_COMMIT)
    has_unit = has_queue_and_offset(rows) if offset_check is None else has_queue(rows)
    rows = rows[plain & has_unit & queues.deletions.kept(rows, queues.topics)]
    group = rows["topic_index"].astype(np.int64) << 32 | rows["queue_id"]
    order = np.argsort(group, kind="stable")
    rows, group = rows[order], group[order]
    if offset_check is not None:
        in_queue = offset_check.check(rows, group)
        rows, group = rows[in_queue], group[in_queue]
    codes = tags_codes(rows, queues.topics, rules, log)
    new_run = (np.diff(group) != 0) | (np.diff(rows["queue_offset"]) != 1)
    starts = np.concatenate([[0], np.flatnonzero(new_run) + 1, [rows.size]])
    units = np.empty(rows.size, layout.CQ_UNIT)
    units["phys_offset"], units["size"] = rows["phys_offset"], rows["record_size"]
    units["tags_code"] = codes
    gaps = 0
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if first == end:
            continue
        row = rows[first]
        slot = queues.topics.slot(int(row["topic_index"]), int(row["queue_id"]), create=True)
        queue = queues.of_slot(slot)
        gaps += int(row["queue_offset"]) > queue.max_offset
        queue.write(int(row["queue_offset"]), memoryview(units[first:end].tobytes()))
    return int(rows.size), gaps


def has_queue(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which scanned records have a possible queue. Headers have no checksum."""
    queue_id = rows["queue_id"]
    return np.asarray((queue_id >= 0) & (queue_id < QUEUES_MAX) & (rows["topic_index"] >= 0))


def has_queue_and_offset(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which scanned records have a possible queue and queue offset."""
    return np.asarray(has_queue(rows) & has_possible_offset(rows))


def _report_offsets(offsets: list[int], text: str, notice: Callable[[str], None]) -> None:
    for offset in offsets[:NOTICES_MAX]:
        notice(f"commit log offset {offset}: {text}")
    if len(offsets) > NOTICES_MAX:
        notice(f"{len(offsets) - NOTICES_MAX} more records: {text}")


def tags_codes(
    rows: Rows, topics: TopicTable, rules: Sequence[TagsCodeRule], log: CommitLog
) -> npt.NDArray[np.int64]:
    """Return the tags code of each record: the hash of its tag, or by the rule of its topic."""
    codes: npt.NDArray[np.int64] = rows["tags_hash"].copy()
    for rule in rules:
        mask = rows["topic_index"] == topics.find(rule.topic)
        if mask.any():
            codes[mask] = rule.tags_codes(rows[mask], log)
    return codes
