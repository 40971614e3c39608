"""Position in the log at which recovery starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from message_store.log.commit_log import CommitLog
from message_store.log.frames import frame_at
from message_store.queues.consume_queue import is_blank
from message_store.queues.consume_queues import QueueSet
from message_store.recovery.checkpoint import Checkpoint, RecoveryMark


def third_last_file(log: CommitLog) -> int:
    """Return the log offset at which Apache starts after a clean stop."""
    return log.files[max(len(log.files) - 3, 0)].base


def file_before(log: CommitLog, time_ms: int) -> int:
    """Return the base of the last file up to which no file begins with a record after `time_ms`.

    Apache uses the newest file that begins at or before `time_ms`. If the clock was set back
    between two files, that file follows younger records; otherwise both rules agree.
    Files that do not begin with a record are skipped, because a walk must not begin with damage.
    """
    base = log.files[0].base
    for file in log.files:
        row = frame_at(log, file.base)
        first_ms = int(row["store_ms"]) if row is not None else 0
        if first_ms > time_ms:
            break
        if first_ms > 0:  # else it does not begin with a record
            base = file.base
    return base


def record_ends_at(log: CommitLog, record: int, end: int) -> bool:
    """Return whether a valid record starts at `record` and ends at `end` (a file end counts)."""
    if not log.min_offset <= end <= log.end:
        return False
    if record < 0:
        return end == log.min_offset
    row = frame_at(log, record)
    if row is None:
        return False
    file = log.file_of(record)
    return end in (record + int(row["record_size"]), file.base + file.size)


def ends_at_mark(log: CommitLog, mark: RecoveryMark, *, crashed: bool) -> bool:
    """Return whether a record ends at the point that the recovery mark names."""
    point = mark.point(clean=not crashed)
    return point is not None and record_ends_at(log, point.record, point.offset)


def start_of(
    log: CommitLog,
    queues: QueueSet,
    mark: RecoveryMark,
    checkpoint: Checkpoint,
    notice: Callable[[str], None],
    *,
    crashed: bool,
) -> tuple[int, int]:
    """Return the log offset at which the walk may start, and the record before it (-1: unknown)."""
    if not log.files:
        return 0, -1
    point = mark.point(clean=not crashed)
    if point is not None and ends_at_mark(log, mark, crashed=crashed):
        if queues.ends_sum >= point.units:
            return point.offset, point.record
        notice(
            f"consume queues are missing below {queues.directory}: all of them are written again "
            f"from the log"
        )
        return log.min_offset, -1
    start = file_before(log, checkpoint.min_timestamp_ms) if crashed else third_last_file(log)
    return min(start, queued_end(log, queues)), -1


def queued_end(log: CommitLog, queues: QueueSet) -> int:
    """Return the log offset after the last record that has a unit in its queue."""
    log_end = log.min_offset
    for start, end in last_units(queues):
        if end > log_end and record_ends_at(log, start, end):
            log_end = end
    return log_end


def last_units(queues: QueueSet) -> Iterator[tuple[int, int]]:
    """Yield start and end of the record that the last unit of each queue points at."""
    for queue in queues.all():
        last = queue.read(queue.max_offset - 1, 1)
        if last.size and not is_blank(last)[0]:
            start = int(last[0]["phys_offset"])
            yield start, start + int(last[0]["size"])
