"""Raw append: log bytes of another broker, at the offset where that broker has them.

    bytes --leading records, checked--> log --> consume queues --> observers

Only whole records are written, so the log ends at a record after each call, and the log of a
replica is byte for byte the log of its master. A blank record closes the file; its filler is not
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from message_store import layout
from message_store.descriptors import DescriptorReserve
from message_store.errors import ReplicationFault
from message_store.hooks import TagsCodeRule
from message_store.kernels import scan
from message_store.layout import BLANK_BYTES, Rows
from message_store.log.appender import Appender
from message_store.log.commit_log import BLANK, CommitLog
from message_store.log.frames import topic_of
from message_store.queues.consume_queues import QueueSet, is_topic_name
from message_store.recovery.recover import dispatch, walk_log

Bytes = npt.NDArray[np.uint8]
Observer = Callable[[list[int]], None]
CHUNK_RECORDS = 32_768
RECORD_BYTES_MAX = 64 << 20
MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class RawAppender:
    """The write side of a replica's log.

    Attributes:
        observers: Called with the slots of the queues that grew, once their units are written.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: Appender,
        queues: QueueSet,
        rules: Sequence[TagsCodeRule],
        descriptors: DescriptorReserve,
    ) -> None:
        self._log, self._appender, self._queues = log, appender, queues
        self._rules, self._descriptors = rules, descriptors
        self._rows: Rows = np.zeros(CHUNK_RECORDS, layout.SCANNED)
        self._filler_from = -1  # log offset of the blank record that ended the last file
        self.observers: list[Observer] = []

    def append(self, offset: int, data: Bytes) -> int:
        """Append the leading whole records of `data`; return how many of its bytes are done with.

        Args:
            offset: Log offset of data[0]: the end of the log, or the start of a file if the log is
                empty.
        Raises:
            ReplicationFault: The bytes do not continue this log. What precedes them is kept.
            OSError: The disk refused them.
        """
        self._queue_missing()
        done = self._skip_filler(offset, data.size)
        while done < data.size:
            self._check_place(offset + done)
            taken = self._append_in_file(offset + done, data[done:])
            if not taken:
                break
            done += taken
        return done

    def _skip_filler(self, offset: int, size: int) -> int:
        """Return how many bytes belong to a blank record that is already in the log."""
        if self._filler_from <= offset < self._log.end and self._filler_from >= 0:
            return min(self._log.end - offset, size)
        return 0

    def _check_place(self, offset: int) -> None:
        log = self._log
        if offset == log.end and (log.files or offset == 0):
            return
        if log.files or log.end:
            raise ReplicationFault(
                f"the master sends log offset {offset}, but this log ends at {log.end}: the logs "
                f"have diverged, or another store was put here. Empty this replica's store to copy "
                f"the log again"
            )
        if offset % log.file_bytes:
            raise ReplicationFault(
                f"the master's log begins at offset {offset}, which is not a multiple of "
                f"mappedFileSizeCommitLog={log.file_bytes}: set this key to the master's value"
            )
        log.end = offset

    def _append_in_file(self, offset: int, data: Bytes) -> int:
        """Append records up to the end of the file; return the bytes that are done with."""
        room = self._log.file_bytes - offset % self._log.file_bytes
        data = data[:room]
        count, size, stop = scan.walk(
            data, 0, data.size, offset, self._queues.topics.arrays, True, self._rows
        )
        rows, size = self._rows[:count], int(size)
        self._check_crc(rows)
        if count:
            self._add_unknown_topics(rows, data, offset)
            self._write(data[:size])
            self._appender.last_record = int(rows[-1]["phys_offset"])
            self._appender.last_store_ms = int(rows[-1]["store_ms"])
            self._queue(rows)
        if stop == scan.STOP_BLANK:
            self._close_file(offset + size, data[size:], room - size)
            return min(data.size, room)
        if stop == scan.STOP_INVALID:
            self._check_incomplete(offset + size, data[size:], room - size)
        return size

    @staticmethod
    def _check_crc(rows: Rows) -> None:
        damaged = np.flatnonzero(rows["damage"])
        if damaged.size:
            raise ReplicationFault(
                f"the body of the record at log offset {rows[damaged[0]]['phys_offset']} does not "
                f"match its CRC: it was damaged on its way, or at the master (run duemq verify "
                f"there)"
            )

    @staticmethod
    def _check_incomplete(offset: int, data: Bytes, room: int) -> None:
        """Return if the bytes can be the beginning of a record."""
        if data.size < BLANK_BYTES:
            return
        size, magic = BLANK.unpack_from(data.data)
        fits = size <= min(room, RECORD_BYTES_MAX)
        if magic not in MAGICS or size < layout.RECORD_FIXED_BYTES or not fits:
            raise ReplicationFault(
                f"the bytes at log offset {offset} are not a record (magic {magic:#x}, "
                f"size {size}, {room} bytes left in the file); mappedFileSizeCommitLog must be as "
                f"at the master"
            )
        if size <= data.size:
            raise ReplicationFault(f"the header of the record at log offset {offset} is damaged")

    def _close_file(self, offset: int, data: Bytes, room: int) -> None:
        size, _ = BLANK.unpack_from(data.data)
        if size != room:
            raise ReplicationFault(
                f"the blank record at log offset {offset} has {size} bytes, {room} are left in the "
                f"file: mappedFileSizeCommitLog must be as at the master"
            )
        self._filler_from = offset
        self._log.close_file()

    def _add_unknown_topics(self, rows: Rows, data: Bytes, base: int) -> None:
        for at in np.flatnonzero(rows["topic_index"] < 0):
            name = topic_of(data, base, rows[at])
            if is_topic_name(name):
                rows[at]["topic_index"] = self._queues.topics.add(name)

    def _write(self, data: Bytes) -> None:
        log = self._log
        file = log.file_at_end or self._descriptors.run(log.writable_file)
        try:
            file.write(log.end - file.base, data.data)
        except OSError:
            with suppress(OSError):
                file.zero_from(log.end - file.base)
            raise
        log.end += data.size

    def _queue(self, rows: Rows) -> None:
        """Write the units of records that the log has, and number their queues."""
        self._queues.missing_from = int(rows[0]["phys_offset"])
        dispatch(rows, self._queues, self._rules, self._log)
        self._queues.missing_from = None
        topics = self._queues.topics
        known = rows[(rows["topic_index"] >= 0) & (rows["queue_id"] >= 0)]
        pairs = np.unique(known["topic_index"].astype(np.int64) << 32 | known["queue_id"])
        slots = [topics.slot(pair >> 32, pair & 0xFFFF_FFFF) for pair in pairs.tolist()]
        grown = [slot for slot in slots if slot >= 0]
        for slot in grown:
            topics.set_next_offset(slot, self._queues.at(slot).max_offset)
        for observer in self.observers:
            observer(grown)

    def _queue_missing(self) -> None:
        """Write the units that the disk refused before."""
        start = self._queues.missing_from
        if start is not None:
            for rows in walk_log(self._log, start, self._log.end, self._queues.topics, check=False):
                self._queue(rows)
