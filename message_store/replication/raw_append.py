"""Raw append: appends log bytes of another broker at the same log offsets.

    bytes --leading records, checked--> log --> consume queues --> observers

Only complete records are written, so the log ends at a record end after each call, and the log of a
replica equals that of its master byte for byte. A blank record closes the file; its filler is not
stored. Normally a record has the next queue offset of its queue; `plausibility_check` accepts or
refuses other queue offsets and implausible headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from duemq_common.clock import Clock
from duemq_common.errors import ReplicationFault
from message_store import layout
from message_store.hooks import TagsCodeRule
from message_store.kernels import encode, scan
from message_store.kernels.replicate import place
from message_store.layout import BLANK_BYTES, Row, Rows
from message_store.log.appender import Appender
from message_store.log.commit_log import BLANK, CommitLog
from message_store.log.frames import topic_of
from message_store.queues.consume_queues import QueueSet
from message_store.recovery.recover import tags_codes
from message_store.replication.plausibility_check import Bytes, PlausibilityCheck

Observer = Callable[[list[int]], None]
CHUNK_RECORDS = 4_096
RECORD_BYTES_MAX = 64 << 20
MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class RawAppender:
    """The write side of a replica's log.

    Args:
        restart_topic: Removes the queues of a topic that the master has deleted.
    Attributes:
        observers: Called with the slots of the queues that grew, once their units are written.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: Appender,
        queues: QueueSet,
        rules: Sequence[TagsCodeRule],
        clock: Clock,
        notice: Callable[[str], None],
        restart_topic: Callable[[str], None],
    ) -> None:
        self._log, self._appender, self._queues = log, appender, queues
        self._rules, self._restart_topic = rules, restart_topic
        self._plausibility = PlausibilityCheck(log, queues, clock, notice)
        self._rows: Rows = np.zeros(CHUNK_RECORDS, layout.SCANNED)
        self._placed: Rows = np.zeros(CHUNK_RECORDS, layout.QUEUED)
        self._filler_from = -1  # log offset of the blank record that ended the last file
        self.observers: list[Observer] = []

    def append(self, offset: int, data: Bytes) -> int:
        """Append the leading complete records of `data`; return the number of processed bytes.

        Args:
            offset: Log offset of data[0]: the end of the log, or the start of a file if the log is
                empty.
        Raises:
            ReplicationFault: The bytes do not continue this log. Records before them are kept.
            OSError: The bytes cannot be written.
        """
        self._queues.catch_up()
        data = data.view()
        data.flags.writeable = False  # kernels are compiled for logs that are mapped for reading
        done = self._skip_filler(offset, data.size)
        while done < data.size:
            self._check_place(offset + done)
            taken = self._append_in_file(offset + done, data[done:])
            if not taken:
                break
            done += taken
        return done

    def _skip_filler(self, offset: int, size: int) -> int:
        """Return the number of bytes that belong to a blank record already in the log."""
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
        """Append records up to the end of the file; return the number of processed bytes."""
        room = self._log.file_bytes - offset % self._log.file_bytes
        data = data[:room]
        count, size, stop = scan.walk(
            data, 0, data.size, offset, self._queues.topics.arrays, True, self._rows
        )
        size = int(size)
        if count:
            self._append_records(data, offset, self._rows[:count])
        if stop == scan.STOP_BLANK:
            self._close_file(offset + size, data[size:], room - size)
            return min(data.size, room)
        if stop == scan.STOP_INVALID:
            self._check_incomplete(offset + size, data[size:], room - size)
        return size

    @staticmethod
    def _check_incomplete(offset: int, data: Bytes, room: int) -> None:
        """Raise `ReplicationFault` unless the bytes can be the beginning of a record."""
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

    # -- records --------------------------------------------------------------------------------

    def _append_records(self, data: Bytes, base: int, rows: Rows) -> None:
        """Write records and their units, up to the first that is refused."""
        topics, last_ms = self._queues.topics, self._appender.last_store_ms
        good, fault = self._plausibility.check_records(rows, data, base, last_ms)
        rows, done = rows[:good], 0
        while done < good:
            end = int(place(data, base, rows, done, topics.arrays, self._placed))
            if end == done:
                self._prepare_queue(rows[done], data, base)
                continue
            self._write(rows[done:end], data, base, done)
            done = end
        if fault is not None:
            raise fault

    def _prepare_queue(self, row: Row, data: Bytes, base: int) -> None:
        """Add the queue of a record, or set the queue's next offset to that of the record.

        Raises:
            ReplicationFault: The record does not continue its queue.
        """
        topics, queue_id = self._queues.topics, int(row["queue_id"])
        if row["topic_index"] < 0:
            name = topic_of(data, base, row)
            if self._plausibility.check_topic(row, name, data, base):
                topics.add(name)
            else:
                row["topic_index"] = layout.IN_NO_QUEUE
            return
        slot = topics.slot(int(row["topic_index"]), queue_id)
        if slot < 0:
            topics.slot(int(row["topic_index"]), queue_id, create=True)
            return
        if self._plausibility.is_gap(row, slot):
            topics.set_next_offset(slot, int(row["queue_offset"]))
        elif self._plausibility.begins_again(row, slot, data, base):
            self._restart_topic(topics.name(int(row["topic_index"])))
        else:
            row["topic_index"] = layout.IN_NO_QUEUE

    def _write(self, rows: Rows, data: Bytes, base: int, first: int) -> None:
        """Write records that `place` has numbered, and their units."""
        log, last = self._log, rows[-1]
        end = int(last["phys_offset"] + last["record_size"])
        piece = data[int(rows[0]["phys_offset"]) - base : end - base]
        file = log.file_at_end
        try:
            file = file or log.writable_file()
            file.write(log.end - file.base, piece.data)
        except OSError:
            arrays = self._queues.topics.arrays
            encode.revert_queue_offsets(self._placed, first, first + rows.size, arrays)
            if file is not None:
                with suppress(OSError):
                    file.zero_from(log.end - file.base)
            raise
        log.end = end
        self._appender.last_record = int(last["phys_offset"])
        self._appender.last_store_ms = int(last["store_ms"])
        self._queue(rows, first)

    def _queue(self, rows: Rows, first: int) -> None:
        """Write the units of records that the log has."""
        topics, placed = self._queues.topics, self._placed[first : first + rows.size]
        if any(topics.find(rule.topic) >= 0 for rule in self._rules):  # they read the log
            placed["tags_code"] = tags_codes(rows, topics, self._rules, self._log)
        self._queues.append(self._placed, first, first + rows.size)
        if self.observers:
            grown = np.unique(placed["queue_slot"][placed["status"] == 0]).tolist()
            for observer in self.observers:
                observer(grown)
