"""Read access to a store: queues, records, times, keys.

Pulls get slices of the mapped log; no record is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock
from duemq_common.errors import RecordUnreadable, UnitsRewritten
from duemq_common.text import index_hash
from message_store import layout
from message_store.config import SYNC_FLUSH, StoreConfig
from message_store.hooks import TagsCodeRule
from message_store.index.index_service import CATCH_UP_BYTES_MAX, IndexService
from message_store.index.log_tail import newest_in_tail
from message_store.kernels import scan
from message_store.kernels.bytes import Bytes
from message_store.kernels.kernel import entry
from message_store.layout import Row, Rows
from message_store.log.commit_log import CommitLog, LogFile
from message_store.log.flusher import Flusher
from message_store.log.frames import frame_at, topic_of
from message_store.log.page_guard import PAGE_BYTES
from message_store.log.prefetch import prefetch
from message_store.log.record import Record, decode_record
from message_store.log.unreadable import READS_MAX, UnreadableRanges
from message_store.queues.apache_names import LIGHT_QUEUES
from message_store.queues.consume_queues import QueueSet
from message_store.queues.time_search import search, time_from
from message_store.queues.topic_table import TopicTable
from message_store.recovery import recover, start_position
from message_store.recovery.log_identity import LastRecord, last_record
from message_store.recovery.truncations import Truncations
from message_store.recovery.unit_repair import UnitRepair
from message_store.replication.acknowledgement import Replicated
from message_store.write_gate import WriteGate

Offsets = npt.NDArray[np.int64]
Visit = Callable[[Bytes, Rows, int], int]
QUERY_CANDIDATES_MAX = 1_024


GatherKernels = tuple[Callable[..., tuple[int, int]], Callable[..., int]]


class StoreReader:
    """The read side of a store."""

    root: Path
    clock: Clock
    notice: Callable[[str], None]
    gate: WriteGate
    topics: TopicTable
    log: CommitLog
    queues: QueueSet
    index: IndexService
    flusher: Flusher
    truncations: Truncations
    replicated: Replicated
    config: StoreConfig
    repair: UnitRepair
    gather_kernels: dict[bool, GatherKernels]
    recovered: recover.Recovered | None

    # -- reads --------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        """Log offset up to which consumers may read.

        With SYNC_FLUSH, the log before it is synced; with SYNC_MASTER, it is also on replicas.
        Source: DefaultMessageStore.getConfirmOffset
        """
        stored = self.transfer_end
        return min(stored, self.replicated.offset) if self.replicated.required else stored

    def when_confirmed(self, offset: int, call: Callable[[], None]) -> None:
        """Call `call` on the event loop once `confirm_offset` has reached `offset`."""
        if self.replicated.required:
            call = partial(self.replicated.when_reached, offset, call)
        if self.config.flush_disk_type == SYNC_FLUSH:
            self.flusher.when_durable(offset, call)
        else:
            call()

    @property
    def durable_offset(self) -> int:
        """Log offset up to which the log is on the disk."""
        return self.flusher.durable

    @property
    def disk_bytes(self) -> tuple[int, int]:
        """Used and free bytes of the disk that holds the commit log."""
        return self.gate.disk_bytes

    @property
    def transfer_end(self) -> int:
        """Log offset up to which replicas may copy; with SYNC_FLUSH, the synced end.

        A replica with more bytes than its master after a power cut could not continue to copy.
        """
        return self.flusher.durable if self.config.flush_disk_type == SYNC_FLUSH else self.log.end

    @property
    def min_offset(self) -> int:
        """First log offset that still exists."""
        return self.log.min_offset

    @property
    def max_offset(self) -> int:
        """Log offset after the last record."""
        return self.log.end

    @property
    def generation(self) -> int:
        """Number of the log's last truncation; a checkpoint records it with its log offset."""
        return self.truncations.generation

    def unchanged_end(self, generation: int) -> int:
        """Return the log offset up to which the log has not changed since a generation."""
        return min(self.truncations.floor(generation), self.log.end)

    # The log itself is private to this package; others use these methods.

    @property
    def log_files(self) -> list[LogFile]:
        """The files of the log, in order."""
        return list(self.log.files)

    def files_of(self, ranked: Offsets) -> Iterator[tuple[LogFile, int, int]]:
        """Yield the files that hold log offsets, with first and end of the offsets in each.

        Any thread.

        Args:
            ranked: (n,) log offsets, ascending; those outside of the log are skipped.
        """
        return self.log.files_with(ranked[: np.searchsorted(ranked, self.log.end)])

    def indexes_by_file(self, offsets: Offsets) -> Iterator[tuple[LogFile, Offsets]]:
        """Yield the files that hold (n,) log offsets, in any order, with the indexes of these.

        Any thread; a file that retention removes meanwhile may be missing.
        """
        low, high = (int(offsets.min()), int(offsets.max())) if offsets.size else (-1, -1)
        if self.log.min_offset <= low and high < self.log.end:
            file = self.log.find_file(low)
            if file is not None and high < file.base + file.size:  # often: nothing to sort
                yield file, np.arange(offsets.size)
                return
        order = np.argsort(offsets, kind="stable")
        for file, first, end in self.files_of(offsets[order]):
            yield file, order[first:end]

    def log_file(self, phys_offset: int) -> LogFile:
        """Return the file of the log that holds an offset.

        Raises:
            RecordUnreadable: The offset is outside of the log.
        """
        return self.log.file_of(phys_offset)

    def written_span(self, file: LogFile) -> tuple[int, int]:
        """Return the log offset of a file's first byte, and the number of its written bytes."""
        return file.base, min(file.size, self.log.end - file.base)

    def log_file_before(self, time_ms: int) -> int:
        """Return the first log offset of the last file without a record after a time before it."""
        return start_position.file_before(self.log, time_ms)

    def log_view(self, phys_offset: int, size: int) -> Bytes:
        """Return bytes of the log without a copy; unreadable pages are zero.

        Raises:
            RecordUnreadable: Part of them is outside of the log or in another file.
        """
        return self.log.view(phys_offset, size)

    @property
    def unreadable(self) -> UnreadableRanges:
        """Ranges of the log that the disk cannot read."""
        return self.log.unreadable

    def frame_at(self, phys_offset: int) -> Row | None:
        """Return the columns of the valid record at a log offset, (`layout.SCANNED`), or None."""
        return frame_at(self.log, phys_offset)

    def record_identity(self, phys_offset: int) -> LastRecord:
        """Return the record at a log offset, `NO_RECORD` without one, for files of progress."""
        return last_record(self.log, phys_offset)

    def tags_codes(self, rule: TagsCodeRule, rows: Rows) -> npt.NDArray[np.int64]:
        """Return the tags codes that a rule has for (n,) `layout.SCANNED` records."""
        return rule.tags_codes(rows, self.log)

    def has_changed(self, phys_offset: int, size: int) -> bool | None:
        """Return whether the disk has changed a range of the log, None if it has no checksums."""
        return self.log.sums.has_changed(phys_offset, size)

    def rewriting(self, phys_offsets: npt.NDArray[np.int64]) -> AbstractContextManager[None]:
        """Withdraw the checksums of bytes that the block changes.

        Raises:
            OSError: The checksums cannot be withdrawn.
        """
        return self.log.sums.rewriting(phys_offsets)

    def queue_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return (first, one past the last) queue offset; (0, 0) if there is no such queue."""
        queue = self.queues.find(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def queue_end_before(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Return the queue offset after the last message that ends at or before a log offset."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.end_before(log_offset)

    def readable_bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Return `queue_bounds` without the messages that consumers may not read yet.

        A power cut could lose messages after `confirm_offset`, and other messages could then get
        their queue offsets.
        """
        return self.consumer_bounds(topic, queue_id)[:2]

    def consumer_bounds(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        """Return the first queue offset, and the ends of `readable_bounds` and `queue_bounds`."""
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return 0, 0, 0
        first, end = queue.min_offset, queue.max_offset
        if self.config.flush_disk_type != SYNC_FLUSH and not self.replicated.required:
            return first, end, end
        confirmed = self.confirm_offset
        if confirmed >= self.log.end:
            return first, end, end
        return first, queue.end_before(confirmed), end

    def units(self, topic: str, queue_id: int, offset: int, count_max: int) -> Rows:
        """Return (n,) `layout.UNIT` from a queue offset on, to the end of that file at most."""
        queue = self.queues.find(topic, queue_id)
        return np.empty(0, layout.UNIT) if queue is None else queue.read(offset, count_max)

    def log_offset_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the log offset of the message at a queue offset; -1 if there is none."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else queue.log_offset(offset)

    def record_bytes(self, phys_offset: int, size: int) -> memoryview:
        """Return a record's bytes without a copy.

        Raises:
            RecordUnreadable: It is not in the log, or the disk cannot read it.
        """
        data = self.log.view(phys_offset, size)
        data[::PAGE_BYTES].any()  # touches every page
        data[-1:].any()
        self.log.unreadable.check(phys_offset, size)
        return data.data

    def prefetch(
        self,
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64] | int = PAGE_BYTES,
    ) -> None:
        """Begin to read records, or their first pages, into the page cache. Any thread."""
        prefetch(self.log, offsets, sizes)

    def read_record(self, phys_offset: int) -> Record:
        """Return the decoded record that starts at `phys_offset`.

        Raises:
            RecordUnreadable: No record starts there, or it is damaged.
        """
        file = self.log.file_of(phys_offset)
        row = np.zeros(1, layout.SCANNED)
        pos, end = phys_offset - file.base, min(file.size, self.log.end - file.base)
        for _ in range(READS_MAX):
            seen = self.log.unreadable.seen
            size = scan.read_frame(file.data, pos, end, phys_offset, row[0])
            if not self.log.unreadable.changed(seen):
                break
        if size < 0:
            self.log.unreadable.check(phys_offset, 1)
            raise RecordUnreadable(phys_offset, "no record starts here")
        return decode_record(self.record_bytes(phys_offset, size), phys_offset)

    def read_queued(self, phys_offset: int) -> Record:
        """Return the decoded record at a log offset that a consume queue unit points at.

        Use it for every offset that a client sends: bytes inside a body can look like a record
        and contain their own offset, but no queue points at them.

        Raises:
            RecordUnreadable: No record starts there, it is damaged, or no queue points at it.
        """
        if not self.is_queued(phys_offset):
            raise RecordUnreadable(phys_offset, "no consume queue has a message here")
        return self.read_record(phys_offset)

    def is_queued(self, phys_offset: int) -> bool:
        """Return whether the unit of a record's own queue and queue offset points at it."""
        row = frame_at(self.log, phys_offset)
        if row is None:
            return False
        file = self.log.file_of(phys_offset)
        topic = topic_of(file.data, file.base, row)
        units = self.units(topic, int(row["queue_id"]), int(row["queue_offset"]), 1)
        return bool(
            units.size
            and units["phys_offset"][0] == phys_offset
            and units["size"][0] == row["record_size"]
        )

    def gather(self, topic: str, queue_id: int, offset: int, units: Rows) -> bytes:
        """Return the records of a queue's units back to back, without decoding them.

        Args:
            offset: Queue offset of the unit with index 0.

        Raises:
            RecordUnreadable: A record is not in the log, is not its unit's, or cannot be read.
            UnitsRewritten: A unit did not match its record and was repaired: read the units again.
        """
        pieces: list[bytes] = []
        name = np.frombuffer(topic.encode(), np.uint8)
        queue = (queue_id, offset, 0 if topic.startswith(LIGHT_QUEUES) else 1)
        scratch = np.zeros(1, layout.SCANNED)
        if not units.flags.c_contiguous:
            units = np.ascontiguousarray(units)
        while units.size:
            try:
                file = self.log.file_of(int(units["phys_offset"][0]))
            except RecordUnreadable:
                self._refuse_foreign(topic, queue_id, offset, units[0])
            limit = min(file.base + file.size, self.log.end)
            leading_inside, copy_records = self.gather_kernels.get(
                units.flags.writeable
            ) or self._find_gather_kernels(file.data, units, name, queue, scratch)
            count, size = leading_inside(units, file.base, limit)
            if count == 0:
                self._refuse_foreign(topic, queue_id, offset, units[0])
            out = np.empty(size, np.uint8)
            unreadable = self.log.unreadable
            arguments = file.data, units[:count], file.base, name, queue, scratch, out
            seen, copied = unreadable.seen, copy_records(*arguments)
            if unreadable.replaced[0] != seen:  # zeros were read in place of some pages
                reading = unreadable.reading(seen)
                while reading.again(int(copied)):
                    copied = copy_records(*arguments)
            if unreadable.ranges:
                self._refuse_unreadable(units[:count])
            if copied < count:
                self._refuse_foreign(topic, queue_id, offset, units[copied])
            pieces.append(out.tobytes())
            units = units[count:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _find_gather_kernels(
        self, data: Bytes, units: Rows, name: Bytes, queue: tuple[int, int, int], scratch: Rows
    ) -> GatherKernels:
        """Return the kernels of `gather` for units that are writable, or read-only."""
        assert units.dtype == layout.UNIT
        out = np.empty(0, np.uint8)
        gather_kernels = self.gather_kernels[units.flags.writeable] = (
            entry(scan.leading_inside, units, 0, 0),
            entry(scan.copy_records, data, units, 0, name, queue, scratch, out),
        )
        return gather_kernels

    def visit_records(self, units: Rows, visit: Visit) -> None:
        """Call `visit(data, units, base)` for the units of each log file, except units outside.

        data[0] is log offset `base`. If readable pages were replaced by zeros, the same units are
        visited again.

        Args:
            visit: Returns the number of units whose records are not in `data`.
        """
        while units.size:
            try:
                file = self.log.file_of(int(units["phys_offset"][0]))
            except RecordUnreadable:
                units = units[1:]
                continue
            limit = min(file.base + file.size, self.log.end)
            count, _ = scan.leading_inside(units, file.base, limit)
            reading = self.log.unreadable.reading()
            while count and reading.again(int(count) - visit(file.data, units[:count], file.base)):
                pass
            units = units[max(int(count), 1) :]

    def _refuse_foreign(self, topic: str, queue_id: int, offset: int, unit: Row) -> NoReturn:
        """Raise for a unit whose record is missing or belongs to another unit.

        Raises:
            RecordUnreadable, UnitsRewritten: As `gather`.
        """
        position, phys_offset = offset + int(unit["index"]), int(unit["phys_offset"])
        if self.repair.repaired(topic, queue_id, position):
            raise UnitsRewritten(f"{topic}/{queue_id}/{position}")
        raise RecordUnreadable(
            phys_offset, f"it is not the record of {topic}/{queue_id}/{position}"
        )

    def _refuse_unreadable(self, units: Rows) -> None:
        """Raise for the first record on an unreadable page, which was copied as zeros.

        Raises:
            RecordUnreadable: A record is on an unreadable page.
        """
        unreadable = self.log.unreadable
        if unreadable.ranges:
            for unit in units[unreadable.mask(units["phys_offset"], units["size"])]:
                unreadable.check(int(unit["phys_offset"]), int(unit["size"]))

    def sound_units(self, units: Rows) -> Rows:
        """Return the units whose records are not known to be unreadable."""
        unreadable = self.log.unreadable
        if not unreadable.ranges:
            return units
        return units[~unreadable.mask(units["phys_offset"], units["size"])]

    def store_ms(self, phys_offset: int) -> int:
        """Return the store timestamp of the record at `phys_offset`, -1 if there is none."""
        row = frame_at(self.log, phys_offset)
        return int(row["store_ms"]) if row is not None else -1

    def search_offset(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """Return the first queue offset stored at or after `time_ms` (the end if none).

        With `upper`: the last one stored at or before it. Empty queue: 0.
        """
        queue, bounds = self.queues.find(topic, queue_id), self.readable_bounds(topic, queue_id)
        return 0 if queue is None else search(self.log, queue, bounds, time_ms, upper=upper)

    def earliest_store_ms(self, topic: str, queue_id: int) -> int:
        """Return the store time of a queue's first readable message, -1 if it has none."""
        queue, bounds = self.queues.find(topic, queue_id), self.queue_bounds(topic, queue_id)
        return -1 if queue is None else time_from(self.log, queue, *bounds)

    def query_keys(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        """Return log offsets indexed under topic and key, newest first."""
        self.index.catch_up()
        tail = newest_in_tail(
            self.log, self.index, index_hash(f"{topic}#{key}"), CATCH_UP_BYTES_MAX
        )
        offsets: list[int] = []
        indexed = self.index.query(topic, key, QUERY_CANDIDATES_MAX, begin_ms, end_ms)
        prefetch(self.log, np.array(indexed, np.int64), PAGE_BYTES)
        for offset in dict.fromkeys([*tail, *indexed]):
            if len(offsets) < count_max and self._has_key(offset, topic, key, begin_ms, end_ms):
                offsets.append(offset)
        return offsets

    def _has_key(self, offset: int, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
        try:
            record = self.read_record(offset)
        except RecordUnreadable:
            return False
        if record.topic != topic or not begin_ms <= record.store_ms <= end_ms:
            return False
        keys = record.properties.get("KEYS", "").split(" ")
        return key == record.properties.get("UNIQ_KEY") or key in keys

    def scan(
        self, start: int, end: int | None = None, *, count: int = recover.CHUNK_RECORDS
    ) -> Iterator[Rows]:
        """Yield (n,) `layout.SCANNED`, n <= `count`, of the records in start..end. Reused.

        Damage, such as unreadable sectors, is skipped.
        """
        limit = self.log.end if end is None else end
        return recover.walk_log(
            self.log, start, limit, self.topics, check=False, past_damage=True, count=count
        )
