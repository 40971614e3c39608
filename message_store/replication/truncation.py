"""Truncation of the log of a closed store, together with the data derived from it.

A broker that was master and is now a replica may have records that the new master does not have.
Its log is truncated to the last record that both have, and continues with the new master's records.

    1  config/duemq.truncations.json   the truncation is pending, and has a generation
    2  truncated/                      a copy of the removed bytes
    3  commit log                      later files are removed, the rest of the last one is zeroed
    4  consume queues, deleted topics  units of removed records are removed
    5  index, checkpoint, duemq.mark   lowered to the new end
    6  config/duemq.truncations.json   the truncation is complete

Each step can be repeated. After a crash between two steps, the next start, or another call,
continues at step 2. A mark ahead of the log is not used (`start_position.start_of`), so steps 3 to
5 may be done in any order; they are synced before step 6.

Components that derive other data from the log update them at their next start, because each
checkpoint contains log offsets and a generation (`recovery.truncations`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from duemq_common.clock import Clock
from duemq_common.directories import sync_directory
from duemq_common.errors import NotARecordEnd, StoreFull
from message_store import layout
from message_store.config import StoreConfig
from message_store.index.index_service import IndexService
from message_store.kernels import scan
from message_store.kernels.verify import find_record
from message_store.log.commit_log import CommitLog
from message_store.log.flusher import sync_files
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.topic_table import TopicTable
from message_store.recovery.checkpoint import Checkpoint, RecoveryMark
from message_store.recovery.recover import walk_log
from message_store.recovery.store_lock import StoreLock
from message_store.recovery.truncated_bytes import save_tail
from message_store.recovery.truncations import Truncations
from message_store.write_gate import DISK_FULL

Notice = Callable[[str], None]


def truncate_store(
    config: StoreConfig, clock: Clock, offset: int, *, notice: Notice = lambda text: None
) -> None:
    """Truncate the log of a closed store to a log offset, and the derived data with it.

    An interrupted truncation is completed first. If the log ends at `offset`, nothing changes.
    Whether the last stop of the store was clean does not change.

    Args:
        offset: End of a record, of a log file, or the log's first offset.
        notice: Called with a line about the removed bytes.
    Raises:
        StoreLocked: A broker runs on the store.
        NotARecordEnd: The log cannot end there; nothing has changed.
        CorruptStore: Files that cannot be part of this store.
        StoreFull: The disk has no room for step 1; no bytes were removed.
        OSError: A step failed; the next call or start completes the truncation.
    """
    lock = StoreLock(config.root)
    try:
        truncations = complete(config, clock, notice)
        log = _opened(config)
        try:
            _check_end(log, offset)
            is_changed = _has_more(log, offset)
        finally:
            log.close()
        if is_changed:
            truncations.begin(offset)
            complete(config, clock, notice)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise StoreFull(
            f"{config.root}: the disk is full, so the log cannot be truncated to {offset}. Free "
            f"disk space and try again."
        ) from error
    finally:
        lock.release()


def complete(config: StoreConfig, clock: Clock, notice: Notice) -> Truncations:
    """Complete a pending truncation, if there is one; return the truncations of the store.

    The caller has the store's lock, and has not opened its files.

    Raises:
        CorruptStore: Files that cannot be part of this store.
        OSError: A step failed; the call can be repeated.
    """
    truncations = Truncations.load(config.root)
    offset = truncations.pending
    if offset is None:
        return truncations
    log = _opened(config)
    try:
        _cut_log(log, offset, truncations.generation, notice)
        record, store_ms = _last_record(log, offset)
        units = _cut_queues(config, log)
        index = IndexService(config.root / "index", config, log, clock)
        index.truncate(offset)
    finally:
        log.close()
    Checkpoint.load(config.root / "checkpoint").truncate(offset, store_ms)
    _lower_mark(config.root / "config" / "duemq.mark", offset, record, units)
    truncations.finish()
    return truncations


# -- where a log may end ------------------------------------------------------------------------


def _opened(config: StoreConfig) -> CommitLog:
    log = CommitLog(config.commitlog_dir, config.commitlog_file_bytes)
    log.load()
    return log


def _check_end(log: CommitLog, offset: int) -> None:
    """Check that the log can end at an offset.

    Raises:
        NotARecordEnd: It cannot.
    """
    first, end = log.min_offset, log.end
    if not first <= offset <= end:
        where = f"the log has the offsets {first} to {end}"
        raise NotARecordEnd(offset, (max(first, min(offset, end)),), where)
    if offset == first:
        return
    pos, stop = _walk_up_to(log, offset)
    if stop == offset:
        return
    if pos == stop:
        raise NotARecordEnd(offset, (stop,), "the records of the log end before it")
    raise NotARecordEnd(offset, (pos, stop), f"it is inside the record at {pos}")


def _walk_up_to(log: CommitLog, offset: int) -> tuple[int, int]:
    """Return start and end of the record that contains the byte before `offset`.

    Both are the end of the records if these end before.
    """
    file = log.file_of(offset - 1)
    row = np.zeros(1, layout.SCANNED)[0]
    start = end = file.base
    while end < offset:
        for rows in walk_log(log, end, offset, TopicTable(), check=False):
            start = int(rows[-1]["phys_offset"])
            end = start + int(rows[-1]["record_size"])
        if end == offset:
            break
        size = int(scan.read_frame(file.data, end - file.base, file.size, end, row))
        if size > 0:
            return end, end + size
        if size == -1 - scan.STOP_BLANK:
            return end, file.base + file.size
        limit = offset - file.base  # records may follow damage that is not bridged yet
        following = int(find_record(file.data, end - file.base + 1, limit, file.base, row))
        if following < 0:
            return end, end
        start = end = file.base + following
    return start, end


def _has_more(log: CommitLog, offset: int) -> bool:
    """Return whether the log has bytes after an offset."""
    return any(
        file.has_data(max(offset - file.base, 0), file.size)
        for file in log.files
        if file.base + file.size > offset
    )


# -- steps --------------------------------------------------------------------------------------


def _cut_log(log: CommitLog, offset: int, generation: int, notice: Notice) -> None:
    try:
        for path, size in save_tail(log, offset, f".{generation}"):
            notice(f"the log is truncated to {offset}; {size} bytes of it are kept in {path}")
    except OSError as error:
        notice(f"the bytes removed from the log at {offset} cannot be kept in a file: {error}")
    log.truncate(offset)
    for file in log.files[-1:]:
        file.sync()
    sync_directory(log.directory)


def _last_record(log: CommitLog, offset: int) -> tuple[int, int]:
    """Return the last record before the log's end and its store time; -1 and 0 without one."""
    if offset <= log.min_offset:
        return -1, 0
    file = log.file_of(offset - 1)
    last = (-1, 0)
    for rows in walk_log(log, file.base, offset, TopicTable(), check=False, past_damage=True):
        last = int(rows[-1]["phys_offset"]), max(int(rows[-1]["store_ms"]), 0)
    return last


def _cut_queues(config: StoreConfig, log: CommitLog) -> int:
    """Remove the units of removed records; return the sum of the queues' ends."""
    deletions = Deletions(config.root / "config" / "deletedTopics.json")
    queues = QueueSet(
        config.root / "consumequeue", config.queue_file_bytes, TopicTable(), deletions
    )
    try:
        queues.load()
        queues.until_readable(lambda: queues.truncate(log.end))
        queues.number_slots()
        deletions.fit(log.min_offset, log.end)
        deletions.write()
        sync_files(queues.files)
        return queues.ends_sum
    finally:
        queues.close()


def _lower_mark(path: Path, offset: int, record: int, units: int) -> None:
    mark = RecoveryMark.open(path)
    try:
        mark.truncate(offset, record, units)
        mark.sync()
    finally:
        mark.close()
