"""Raw append: appends log bytes of another broker at the same log offsets.

    bytes --leading records, checked--> log --> consume queues --> observers

Only complete records are written, so the log ends at a record end after each call, and the log of a
replica equals that of its master byte for byte. A blank record closes the file; its filler is not
stored.

The protocol has no checksum of headers. A record that does not continue its queue, or whose body
does not match its CRC, was damaged on the network, or is so in the master's log. It ends the
connection once; if the master sends it again, it is appended:

    body CRC                 the record is kept, as recovery keeps it
    topic, queue             impossible: the record is kept, and is in no queue
    queue offset             a gap too long for the log between both records, or an offset that the
                             queue already has: in no queue. 0: the master has deleted the topic,
                             and its queues are removed here, too: those that are known to be older

If a master has bridged damage in its log, the queue offsets of lost messages are missing: a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from duemq_common.errors import ReplicationFault
from message_store import layout
from message_store.hooks import TagsCodeRule
from message_store.kernels import encode, scan
from message_store.kernels.replicate import place
from message_store.layout import BLANK_BYTES, Row, Rows
from message_store.log.commit_log import BLANK, Appender, CommitLog
from message_store.log.frames import topic_of
from message_store.queues.consume_queue import is_blank
from message_store.queues.consume_queues import QueueSet, is_topic_name
from message_store.queues.topic_table import QUEUES_MAX
from message_store.recovery.queue_offset_check import has_possible_offset
from message_store.recovery.recover import tags_codes

Bytes = npt.NDArray[np.uint8]
Observer = Callable[[list[int]], None]
CHUNK_RECORDS = 4_096
RECORD_BYTES_MAX = 64 << 20
MAGICS = (layout.MAGIC_V1, layout.MAGIC_V2)


class RawAppender:
    """The write side of a replica's log.

    Args:
        restart_topic: Removes the queues of a topic that the master has deleted; it is called with
            a log offset after the last known record of the deleted topic.
    Attributes:
        observers: Called with the slots of the queues that grew, once their units are written.
        restarted: Called with the name of a topic whose queues begin at 0 again, and the queue id
            if it is known of one queue only, else None.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: Appender,
        queues: QueueSet,
        rules: Sequence[TagsCodeRule],
        notice: Callable[[str], None],
        restart_topic: Callable[[str, int], None],
    ) -> None:
        self._log, self._appender, self._queues = log, appender, queues
        self._rules, self._restart_topic = rules, restart_topic
        self._notice = notice
        self._refused_at = -1  # log offset of the record that was refused last
        self._rows: Rows = np.zeros(CHUNK_RECORDS, layout.SCANNED)
        self._placed: Rows = np.zeros(CHUNK_RECORDS, layout.QUEUED)
        self._filler_from = -1  # log offset of the blank record that ended the last file
        self.observers: list[Observer] = []
        self.restarted: list[Callable[[str, int | None], None]] = []

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
        done = 0
        while done < rows.size:
            end = int(place(data, base, rows, done, self._queues.topics.arrays, self._placed))
            if end == done:
                self._prepare_queue(rows[done], data, base)
                continue
            self._write(rows[done:end], data, base, done)
            done = end

    def _prepare_queue(self, row: Row, data: Bytes, base: int) -> None:
        """Prepare the queue of a record that `place` does not number, or put it into no queue.

        Raises:
            ReplicationFault: The record was received for the first time, and is not as expected.
        """
        topics, index, queue_id = self._queues.topics, int(row["topic_index"]), int(row["queue_id"])
        where = f"the record at log offset {int(row['phys_offset'])}"
        if row["damage"]:
            self._refuse_once(row, f"the body of {where} does not match its CRC")
            row["damage"] = 0
        elif not (0 <= queue_id < QUEUES_MAX and has_possible_offset(row)):
            self._refuse_once(row, f"{where} names an impossible queue")
            row["topic_index"] = layout.IN_NO_QUEUE
        elif index < 0:
            name = topic_of(data, base, row)
            if is_topic_name(name):
                topics.add(name)
            else:
                self._refuse_once(row, f"{where} has no valid topic")
                row["topic_index"] = layout.IN_NO_QUEUE
        elif (slot := topics.slot(index, queue_id)) < 0:
            topics.slot(index, queue_id, create=True)
        elif self._is_gap(row, slot):
            topics.set_next_offset(slot, int(row["queue_offset"]))
        else:
            self._refuse_once(
                row,
                f"{where} has queue offset {int(row['queue_offset'])}, but queue {queue_id} of "
                f"{topics.name(index)} ends at {topics.next_offset(slot)}",
            )
            self._restart_queue(row, topics.name(index), slot)

    def _refuse_once(self, row: Row, reason: str) -> None:
        """Raise `ReplicationFault` unless the same record was refused before."""
        offset = int(row["phys_offset"])
        if offset == self._refused_at:
            self._notice(f"commit log offset {offset}: implausible record, as in the master's log")
            return
        self._refused_at = offset
        raise ReplicationFault(
            f"{reason}: it was damaged on the network or at the master (run duemq store verify "
            f"there). It is accepted if the master sends it again"
        )

    def _is_gap(self, row: Row, slot: int) -> bool:
        """Return whether the queue offsets before a record may be those of lost messages."""
        queue = self._queues.of_slot(slot)
        missing = int(row["queue_offset"]) - self._queues.topics.next_offset(slot)
        if missing < 0:
            return False
        last = queue.read(queue.max_offset - 1, 1)
        has_unit = last.size and not is_blank(last)[0]
        start = int(last[0]["phys_offset"]) if has_unit else 0
        return missing <= (int(row["phys_offset"]) - start) // layout.RECORD_FIXED_BYTES

    def _restart_queue(self, row: Row, name: str, slot: int) -> None:
        """Remove the queues of a topic whose records begin at 0 again; else use no queue."""
        if row["queue_offset"] != 0:
            row["topic_index"] = layout.IN_NO_QUEUE
            return
        queue = self._queues.of_slot(slot)
        last = queue.log_offset(queue.max_offset - 1)
        if last >= 0:
            self.delete_topic(name, last + 1)
            return
        # Retention has removed its records: other queues may be those of the new topic.
        queue_id = int(row["queue_id"])
        self._notice(f"queue {queue_id} of {name} begins at 0 again")
        self._queues.restart(slot)
        for observer in self.restarted:
            observer(name, queue_id)

    def delete_topic(self, name: str, before: int) -> None:
        """Remove the queues of a topic that the master has deleted.

        Args:
            before: Log offset after the records of the deleted topic that are known.
        Raises:
            OSError: The disk refused it; the call can be repeated.
        """
        if self._queues.holds(name):
            self._notice(f"the master has deleted the topic {name}: its queues begin at 0 again")
            self._restart_topic(name, before)
        for observer in self.restarted:
            observer(name, None)

    def _write(self, rows: Rows, data: Bytes, base: int, first: int) -> None:
        """Write records that `place` has numbered, and their units."""
        log, last = self._log, rows[-1]
        end = int(last["phys_offset"] + last["record_size"])
        block = data[int(rows[0]["phys_offset"]) - base : end - base]
        file = log.file_at_end
        try:
            file = file or log.writable_file()
            file.write(log.end - file.base, block.data)
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
