"""Commit log: files of a fixed size, named by their first offset, and the append of batches.

    commitlog/00000000000000000000   [record][record]...[blank]
    commitlog/00000000001073741824   [record]...            <- recovery finds the write position

`NumberedLog` has the files, also those of other logs. `Appender` encodes the rows of a batch and
writes them, file by file. Reads go through a shared mapping of each file, which shows the bytes of
pwritev at once. Unreadable pages are zero there, and listed (`page_guard`, `unreadable`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from duemq_common.clock import Clock
from duemq_common.directories import sync_directory
from duemq_common.errors import CorruptStore, RecordUnreadable
from duemq_common.existence import is_directory
from message_store.config import StoreConfig
from message_store.kernels import encode
from message_store.kernels.kernel import entry
from message_store.layout import BLANK_BYTES, BLANK_RECORD, ENTRY_END, MAGIC_BLANK, PUT, packer
from message_store.log.batch import PutBatch
from message_store.log.block_sums import DIRECTORY as SUMS
from message_store.log.block_sums import BlockSums
from message_store.log.file_sequence import NAME_DIGITS
from message_store.log.page_guard import GuardedMap
from message_store.log.properties import encode_properties
from message_store.log.unreadable import UnreadableRanges
from message_store.log.zeroing import restored_size, zero_range
from message_store.queues.topic_table import TopicTable

BLANK = packer(BLANK_RECORD)
OUT_BYTES_MIN = 1 << 20
OUT_BYTES_MAX = 32 << 20
RECORD_EXTRA_BYTES_MAX = 65_536  # maximum bytes of a record in addition to maxMessageSize
CLOCK_STEP_MS_MAX = 1_000  # after a smaller step back of the clock, store times do not decrease
Encoders = tuple[Callable[..., tuple[int, int, int]], Callable[..., tuple[int, int, int]]]


class LogFile:
    """One file of the log.

    Attributes:
        base: Log offset of its first byte.
        pages: The mapped file.
        data: (size,) u1, read-only: its bytes; unreadable pages are zero.
    """

    def __init__(self, path: Path, base: int, size: int, *, create: bool) -> None:
        self.path, self.base, self.size = path, base, size
        self._named = False  # whether the name of the file is on the disk
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        self.fd = os.open(path, flags, 0o644)
        try:
            if create:
                os.ftruncate(self.fd, size)
            self.pages = GuardedMap(path, self.fd, size)
        except OSError:
            os.close(self.fd)
            if create:
                path.unlink(missing_ok=True)
            raise
        self.data: npt.NDArray[np.uint8] = self.pages.data

    def write(self, pos: int, data: memoryview | bytes) -> None:
        """Write all of `data` at file position `pos`.

        Raises:
            OSError: Part of it may be written; write again at `pos`.
        """
        done = os.pwritev(self.fd, (data,), pos)
        while done < len(data):
            done += os.pwritev(self.fd, (memoryview(data)[done:],), pos + done)
        if self.pages.replaced[0]:
            self.pages.written(pos, len(data))

    def sync(self) -> None:
        """Wait until the file's data and its name are on the disk."""
        os.fdatasync(self.fd)
        if not self._named:
            sync_directory(self.path.parent)
            self._named = True

    def zero_from(self, pos: int) -> None:
        """Zero the file from position `pos` on without changing its size.

        Raises:
            OSError: The disk refused it; some of the bytes may be zeros.
        """
        zero_range(self.fd, pos, self.size)

    def has_data(self, pos: int, end: int) -> bool:
        """Return whether any byte in pos..end is not zero; holes are not read."""
        end = min(end, self.size)
        while pos < end:
            try:
                pos = os.lseek(self.fd, pos, os.SEEK_DATA)
            except OSError:  # only holes from here on
                return False
            hole = min(os.lseek(self.fd, pos, os.SEEK_HOLE), end)
            if self.data[pos:hole].any():
                return True
            pos = max(hole, pos)
        return False

    def modified_s(self) -> float:
        """Return the time of the last modification, in seconds since the epoch."""
        return os.fstat(self.fd).st_mtime

    def close(self) -> None:
        """Close the descriptor; the mapping exists as long as a view of it."""
        self.pages.forget_file()
        os.close(self.fd)

    def erase(self) -> None:
        """Remove the file. Slow if it is large; any thread may call it."""
        try:
            self.path.unlink(missing_ok=True)
        finally:
            self.close()


def erase_files(files: list[LogFile]) -> None:
    """Remove files, oldest first. Empty the list: the last reference to a file frees its blocks.

    Raises:
        OSError: A file cannot be removed; this and later files exist again at the next start.
    """
    try:
        while files:
            files.pop(0).erase()
    finally:
        for file in files:
            file.close()
        files.clear()


File = TypeVar("File", bound=LogFile)


class NumberedLog(Generic[File]):
    """Files of one size in order, each named after the offset of its first byte.

    Attributes:
        files: In order; only the last one grows.
        end: Offset of the next byte to be written.
    """

    def __init__(self, directory: Path, file_bytes: int, file_type: type[File]) -> None:
        self.directory, self.file_bytes, self.file_type = directory, file_bytes, file_type
        self.files: list[File] = []
        self.end = 0

    @property
    def file_at_end(self) -> File | None:
        """The file that contains `end`, None if it does not exist yet."""
        if self.files and self.end < self.files[-1].base + self.file_bytes:
            return self.files[-1]
        return None

    def files_from(self, offset: int) -> list[File]:
        """Return the files with bytes at or after an offset, in order. Any thread.

        It visits these files only, from the last one on, so that a removal of old ones by the event
        loop hides none.
        """
        files: list[File] = []
        for file in reversed(self.files):
            if file.base + file.size <= offset:
                break
            files.append(file)
        return files[::-1]

    def find_file(self, offset: int) -> File | None:
        """Return the file that contains an offset, None without one. Any thread.

        The search is repeated if the event loop removes an old file meanwhile.
        """
        while self.files and offset >= (first := self.files[0].base):
            position = (offset - first) // self.file_bytes
            candidates = self.files[position : position + 1]
            if not candidates or candidates[0].base <= offset:
                return candidates[0] if candidates else None
        return None

    def files_with(self, ranked: npt.NDArray[np.int64]) -> Iterator[tuple[File, int, int]]:
        """Yield the files that hold offsets, with first and end of the offsets in each. Any thread.

        It visits these files only.

        Args:
            ranked: (n,) ascending offsets; those outside of the files are skipped.
        """
        first = 0
        while self.files:
            limits = (self.files[0].base, self.files[-1].base + self.file_bytes)
            low, last = np.searchsorted(ranked, limits).tolist()
            first = max(first, low)
            if first >= last:
                return
            file = self.find_file(int(ranked[first]))
            if file is None:  # it was removed meanwhile
                first += 1
                continue
            end = int(np.searchsorted(ranked, file.base + file.size))
            yield file, first, end
            first = end

    def open_file(self, path: Path, *, create: bool = False) -> File:
        """Open the file that comes next, and add it."""
        self.files.append(self.file_type(path, int(path.name), self.file_bytes, create=create))
        return self.files[-1]

    def writable_file(self) -> File:
        """Return the file that contains `end`; create it if it does not exist."""
        file = self.file_at_end
        if file is not None:
            return file
        base = self.end - self.end % self.file_bytes
        assert not self.files or base == self.files[-1].base + self.file_bytes
        return self.open_file(self.directory / f"{base:0{NAME_DIGITS}d}", create=True)

    def truncate(self, end: int, *, files_min: int = 0) -> None:
        """Remove all bytes from `end` on: zero the rest of the file, remove later files.

        Args:
            files_min: Minimum number of files to keep, even if they are empty.
        """
        while len(self.files) > files_min and self.files[-1].base >= end:
            self.files.pop().erase()
        self.end = end
        if self.files and end < self.files[-1].base + self.file_bytes:
            self.files[-1].zero_from(end - self.files[-1].base)

    def detach_first(self) -> File:
        """Detach the oldest file from the log; the caller erases it. The last file stays."""
        assert len(self.files) > 1
        return self.files.pop(0)

    def close(self) -> None:
        """Close all files."""
        for file in self.files:
            file.close()
        self.files.clear()


class CommitLog(NumberedLog[LogFile]):
    """Commit log: the files in order, the write position, and views of the written bytes."""

    def __init__(self, directory: Path, file_bytes: int) -> None:
        super().__init__(directory, file_bytes, LogFile)
        self.unreadable = UnreadableRanges(lambda: self.files)
        self.sums = BlockSums(directory.parent / SUMS, lambda: self.files)

    def load(self, *, synced: int = 0) -> None:
        """Open every file; set `end` to the end of the last one.

        Args:
            synced: Log offset up to which the log was synced. A last file that ends before it has
                lost messages; it is reported, not extended.
        Raises:
            CorruptStore: A file has a wrong size or name, or a file is missing in between.
        """
        paths = numbered_files(self.directory)
        for path in paths:
            self._check(path, last=path == paths[-1], synced=synced)
            self.open_file(path)
        if self.files:
            self.end = self.files[-1].base + self.file_bytes

    def _check(self, path: Path, *, last: bool, synced: int) -> None:
        if not (path.name.isdigit() and len(path.name) == NAME_DIGITS):
            raise CorruptStore(
                path, 0, "its name is not a 20-digit log offset", "Move it out of this directory."
            )
        proven = bool(self.files)
        size = path.stat().st_size
        if last and int(path.name) + size >= synced:
            size = restored_size(path, self.file_bytes, proven=proven)
        if size != self.file_bytes:
            raise CorruptStore(
                path,
                0,
                f"it has {size} bytes, mappedFileSizeCommitLog is {self.file_bytes}",
                f"Set mappedFileSizeCommitLog to the size with which it was written. If that is "
                f"{self.file_bytes}, restore this file from a copy.",
            )
        if self.files and int(path.name) != self.files[-1].base + self.file_bytes:
            raise CorruptStore(
                path,
                0,
                f"the file before it starts at {self.files[-1].base}",
                "Restore the missing file from a copy, or move the later files away.",
            )

    @property
    def min_offset(self) -> int:
        """First log offset that still exists."""
        return self.files[0].base if self.files else 0

    def file_of(self, offset: int) -> LogFile:
        """Return the file that holds `offset`.

        Raises:
            RecordUnreadable: The offset is outside of the log.
        """
        file = self.find_file(offset) if offset < self.end else None
        if file is None:
            raise RecordUnreadable(offset, f"outside of the log ({self.min_offset}..{self.end})")
        return file

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes at `offset`, without a copy. They must be in one file.

        Raises:
            RecordUnreadable: Part of it is outside of the log.
        """
        file = self.file_of(offset)
        pos = offset - file.base
        if size < 0 or pos + size > file.size or offset + size > self.end:
            raise RecordUnreadable(offset, f"{size} bytes from here reach past the log's end")
        return file.data[pos : pos + size]

    def close_file(self) -> None:
        """Write the blank record that ends the current file; the next append opens a new one."""
        file = self.writable_file()
        pos = self.end - file.base
        file.write(pos, BLANK.pack(file.size - pos, MAGIC_BLANK))
        self.end = file.base + file.size

    def truncate(self, end: int, *, files_min: int = 1) -> None:
        """Remove all bytes from `end` on; keep one file, because its name defines the offset."""
        self.sums.withdraw(end)
        super().truncate(end, files_min=files_min)


class Appender:
    """Write side of a commit log.

    Attributes:
        last_record: Log offset of the last record, -1 if the log is empty.
        last_store_ms: Store time of that record.
    """

    def __init__(
        self,
        log: CommitLog,
        topics: TopicTable,
        config: StoreConfig,
        clock: Clock,
    ) -> None:
        self._log, self._topics, self._config, self._clock = log, topics, config, clock
        self._out: npt.NDArray[np.uint8] = np.empty(OUT_BYTES_MIN, np.uint8)
        self._encoders: dict[bool, Encoders] = {}  # by whether the staging buffer is writable
        self._encode: Callable[..., tuple[int, int, int]]  # for the prepared batch
        self.last_record = -1
        self.last_store_ms = 0

    def prepare(self, batch: PutBatch) -> None:
        """Compute sizes of records and find their queues; refuse rows that cannot be stored."""
        rows, count = batch.rows, batch.count
        record_max = self._config.commitlog_file_bytes - BLANK_BYTES
        body_max = record_max if batch.trusted else self._config.message_bytes_max
        record_max = min(record_max, body_max + RECORD_EXTRA_BYTES_MAX)
        prepare, self._encode = self._encoders_of(batch)
        refused = 0
        while True:
            index, total, refused_now = prepare(
                rows, count, batch.staging, self._topics.arrays, body_max, record_max
            )
            refused += refused_now  # a repeated call skips the rows that it refused before
            if index == count:
                break
            # the kernel stops at a queue without a slot, which only Python can create
            self._topics.slot(
                int(rows[index]["topic_index"]), int(rows[index]["queue_id"]), create=True
            )
        if refused:
            for index in np.flatnonzero(batch.filled["status"] == encode.MESSAGE_ILLEGAL).tolist():
                batch.remarks.setdefault(index, self._illegal_remark(batch, index))
            batch.refuse_together()
        if total > self._out.size and self._out.size < OUT_BYTES_MAX:
            self._out = np.empty(min(int(total) * 2, OUT_BYTES_MAX), np.uint8)

    def _encoders_of(self, batch: PutBatch) -> Encoders:
        """Return the kernels for a batch; its arrays must be as `PutBatch` makes them."""
        rows, staging = batch.rows, batch.staging
        assert rows.flags.c_contiguous
        assert staging.flags.c_contiguous
        encoders = self._encoders.get(staging.flags.writeable)
        if encoders is None:
            assert rows.dtype == PUT
            assert staging.dtype == np.uint8
            arrays = self._topics.arrays
            encoders = self._encoders[staging.flags.writeable] = (
                entry(encode.prepare, rows, 0, staging, arrays, 0, 0),
                entry(encode.encode, rows, (0, 0), staging, arrays, self._out, 0, 0, 0),
            )
        return encoders

    def _illegal_remark(self, batch: PutBatch, position: int) -> str:
        """Return which limit a refused row exceeds."""
        row, body_max = batch.rows[position], self._config.message_bytes_max
        properties_bytes = self._property_bytes(batch, position)
        if row["body_len"] > body_max and not batch.trusted:
            reason = f"its body has {row['body_len']} bytes; maxMessageSize is {body_max}"
        elif row["queue_id"] < 0:
            reason = f"its queue is {row['queue_id']}; queues begin at 0"
        elif properties_bytes > encode.PROPERTY_BYTES_MAX:
            added = properties_bytes - row["prop_len"]
            reason = f"its properties have {properties_bytes} bytes"
            reason += f", {added} of them added by the broker" if added else ""
            reason += f"; the limit is {encode.PROPERTY_BYTES_MAX}"
        else:
            reason = "its record has more bytes than a file of the commit log"
            reason += f"; mappedFileSizeCommitLog is {self._config.commitlog_file_bytes}"
        return f"the message is illegal: {reason}"

    def _property_bytes(self, batch: PutBatch, position: int) -> int:
        """Return the size of a row's properties with those of its real topic."""
        row = batch.rows[position]
        size, index = int(row["prop_len"]), int(row["real_topic_index"])
        if index < 0:
            return size
        real = {"REAL_TOPIC": self._topics.name(index), "REAL_QID": str(row["real_queue_id"])}
        is_open = size > 0 and batch.staging[row["prop_pos"] + size - 1] != ENTRY_END
        return size + is_open + len(encode_properties(real))

    def next_store_ms(self) -> int:
        """Return the store time of records that are appended now."""
        now = self._clock.now_ms()
        if now < self.last_store_ms <= now + CLOCK_STEP_MS_MAX:
            return self.last_store_ms
        return now

    def append(self, batch: PutBatch, first: int, store_ms: int) -> int:
        """Write the rows from `first` on that fit into the current file; return the next row.

        Call `prepare` with the same batch before.

        Raises:
            OSError: The disk refused the write; none of the rows is in the log.
        """
        log = self._log
        file = log.file_at_end or log.writable_file()
        left = file.base + file.size - log.end
        end, size, last = self._encode(
            batch.rows,
            (first, batch.count),
            batch.staging,
            self._topics.arrays,
            self._out,
            log.end,
            left,
            store_ms,
        )
        if size == 0 and end < batch.count:
            needed = int(batch.rows[end]["record_size"])
            if needed + BLANK_BYTES > left:
                log.close_file()
            else:
                self._out = np.empty(needed, np.uint8)
            return end
        if size:
            try:
                file.write(log.end - file.base, self._out.data[:size])
            except OSError:
                encode.revert_queue_offsets(batch.rows, first, end, self._topics.arrays)
                with suppress(OSError):  # completely written records are also refused
                    file.zero_from(log.end - file.base)
                raise
            self.last_record, self.last_store_ms = last, store_ms
            log.end += size
        return end


def numbered_files(directory: Path) -> list[Path]:
    """Return the files of a log in order; remove an empty last file."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = sorted(path for path in directory.iterdir() if not is_directory(path))
    if paths and paths[-1].stat().st_size == 0:
        paths.pop().unlink()
    return paths
