"""Consume queue: units of 20 bytes at position queue offset x 20, in files of fixed size.

Because the position of a unit is fixed, writing it twice has no effect, and a rebuild replays the
log. Units before the first known record (after files were lost) are Apache's pre-blanks
(0, 0x7FFFFFFF, 0).
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duemq_common.errors import CorruptStore
from duemq_common.existence import is_directory
from message_store.descriptors import QUEUE_FILES_MIN, is_out_of_descriptors
from message_store.hooks import Dispatcher
from message_store.kernels import scan
from message_store.layout import CQ_UNIT, PRE_BLANK_SIZE, UNIT, UNIT_BYTES, Rows, packer
from message_store.log.file_sequence import check_next
from message_store.log.file_system_sync import FileSystem
from message_store.log.zeroing import zero_range
from message_store.queues.queue_sums import BLOCK_UNITS, QueueSums

PRE_BLANK = np.array([(0, PRE_BLANK_SIZE, 0)], CQ_UNIT)
PACKED_UNIT = packer(CQ_UNIT)
LONG_MAX = (1 << 63) - 1
UNITS_BACK_MIN, UNITS_BACK_MAX = 64, 4_096  # units read at a time, from the end of a queue backward
VALID_UNITS_MIN, VALID_UNITS_MAX = 64, 8_192  # units read at a time, in search of the end of a file


class FileCache:
    """Open descriptors of queue files, the least recently used closed first.

    Paths are text: a `Path` takes longer to look up than the read or write that follows.

    Args:
        unreadable: Called with the path of a file that the disk cannot read.
        sums: Checksums of the files, None without any.
    Attributes:
        file_system: File system of the files.
        has_foreign: Whether a file of another file system was opened, as below a symbolic link.
    """

    def __init__(
        self,
        count_max: int = QUEUE_FILES_MIN,
        unreadable: Callable[[str], None] = lambda path: None,
        sums: QueueSums | None = None,
    ) -> None:
        self._count_max, self._unreadable, self.sums = count_max, unreadable, sums
        self.file_system = FileSystem()
        self.has_foreign = False
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._dirty: set[str] = set()
        self._dirty_lock = threading.Lock()

    def get(self, path: str, create_bytes: int = 0) -> int:
        """Return a descriptor for reading and writing; with `create_bytes` create the file.

        Raises:
            FileNotFoundError: It does not exist and `create_bytes` is 0.
        """
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        try:
            fd = self._with_room(lambda: os.open(path, os.O_RDWR))
        except FileNotFoundError:
            if not create_bytes:
                raise
            self._mark_names(os.path.dirname(path))
            fd = self._with_room(lambda: _create(path, create_bytes))
        self._fds[path] = fd
        self.has_foreign = self.has_foreign or not self.file_system.contains(fd)
        if len(self._fds) > self._count_max:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def read(self, path: str, size: int, pos: int) -> bytes:
        """Return bytes of a file, fewer at its end.

        Raises:
            CorruptStore: The disk cannot read them.
        """
        try:
            fd = self.get(path)
            data = os.pread(fd, size, pos)
            while len(data) < size and (more := os.pread(fd, size - len(data), pos + len(data))):
                data += more
            return data
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self._unreadable(path)
            raise CorruptStore(
                path,
                pos,
                f"it cannot be read: {error.strerror}",
                "Start the broker again: it rebuilds the consume queues from the log.",
            ) from error

    def _with_room(self, open_file: Callable[[], int]) -> int:
        """Open a file; without a free descriptor, close the least recently used one first."""
        while True:
            try:
                return open_file()
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._fds:
                    raise
            os.close(self._fds.popitem(last=False)[1])

    def _mark_names(self, directory: str) -> None:
        """Mark directories with new names as dirty: that of the queue, and new ones above it."""
        if not os.path.isdir(directory):
            os.makedirs(directory)
            topic = os.path.dirname(directory)
            self.mark_dirty(topic)
            self.mark_dirty(os.path.dirname(topic))
        self.mark_dirty(directory)

    def mark_dirty(self, path: str) -> None:
        """Record that the next sync must include a file, or the names in a directory."""
        if path not in self._dirty:
            with self._dirty_lock:
                self._dirty.add(path)

    def take_dirty(self) -> set[str]:
        """Return the files written since the last call. Any thread may call it."""
        with self._dirty_lock:
            paths, self._dirty = self._dirty, set()
        return paths

    def drop(self, path: str) -> None:
        """Close a file that is about to be removed."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close all."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self.file_system.close()


def _create(path: str, size: int) -> int:
    """Return the descriptor of a new file of zeros.

    Raises:
        OSError: The disk refused it; the file does not exist then.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


class ConsumeQueue:
    """The units of one queue.

    Attributes:
        min_offset: First queue offset whose record still exists.
        max_offset: Queue offset after the last unit.
        dispatchers: Functions that are called with each batch that has a message in this topic.
    """

    def __init__(self, directory: Path, file_bytes: int, files: FileCache) -> None:
        assert file_bytes % UNIT_BYTES == 0
        self.directory, self.file_bytes = directory, file_bytes
        self._files = files
        self._bases: list[int] = []  # byte position of each file's first unit
        self._paths: dict[int, str] = {}  # by base
        self._write_base = -1  # file written last, which saves the lookup of its path
        self._write_path = ""
        self.min_offset = 0
        self.max_offset = 0
        self.dispatchers: list[Dispatcher] = []

    @property
    def file_units(self) -> int:
        """Units per file."""
        return self.file_bytes // UNIT_BYTES

    def _path(self, base: int) -> str:
        path = self._paths.get(base)
        if path is None:
            path = self._paths[base] = f"{self.directory}/{base:020d}"
        return path

    def _remove(self, base: int) -> None:
        path = self._path(base)
        self._files.drop(path)
        if self._files.sums is not None:
            self._files.sums.forget(path)
        os.unlink(path)
        self._paths.pop(base)

    def load(self) -> None:
        """Open the files and find the end of the valid units.

        Raises:
            CorruptStore: A file of another size or with a stray name.
        """
        paths = sorted(p for p in self.directory.iterdir() if not is_directory(p))
        if paths and paths[-1].stat().st_size == 0:
            paths.pop().unlink()
        for path in paths:
            base = check_next(
                path,
                self._bases[-1] if self._bases else None,
                self.file_bytes,
                is_last=path == paths[-1],
                key="mappedFileSizeConsumeQueue",
                source="the log",
            )
            self._bases.append(base)
        if not self._bases:
            return
        self.min_offset = self._bases[0] // UNIT_BYTES
        while len(self._bases) > 1 and self._valid_in(self._bases[-1]) == 0:
            self._drop_last()
        last = self._bases[-1]
        self.max_offset = last // UNIT_BYTES + self._valid_in(last)

    def _valid_in(self, base: int) -> int:
        path = self._path(base)
        count, step = 0, VALID_UNITS_MIN
        while count < self.file_units:
            block = self._files.read(path, step * UNIT_BYTES, count * UNIT_BYTES)
            units = len(block) // UNIT_BYTES
            valid_count = scan.valid_units(np.frombuffer(block, np.uint8), units)
            count += valid_count
            if valid_count < units or units == 0:
                break
            step = min(2 * step, VALID_UNITS_MAX)
        return count

    def cut_at_hole(self) -> None:
        """Truncate the queue at the first missing unit.

        Used after a power cut, when the disk may have later units but lack earlier ones. The log
        has the records of all removed units.
        """
        for base in self._bases[:-1]:
            valid = self._valid_in(base)
            if valid < self.file_units:
                self.cut(base // UNIT_BYTES + valid)
                break
        if self._bases:
            self._zero_from(self.max_offset)

    def _zero_from(self, offset: int) -> None:
        """Zero the units from `offset` on in the last file."""
        base = self._bases[-1]
        path = self._path(base)
        zero_range(self._files.get(path), max(offset * UNIT_BYTES - base, 0), self.file_bytes)
        self._files.mark_dirty(path)  # otherwise the units may exist again after a power cut

    def _drop_last(self) -> None:
        self._remove(self._bases.pop())
        self._files.mark_dirty(str(self.directory))
        self._write_base = -1

    def write(self, first_offset: int, block: memoryview) -> None:
        """Write units (bytes) from `first_offset` on; the queue may grow, never shrink.

        Raises:
            OSError: The disk is full. The log has the records, so recovery can write the units.
        """
        if self.max_offset < first_offset:
            self._fill_pre_blanks(first_offset)
        pos = first_offset * UNIT_BYTES
        end_offset = first_offset + len(block) // UNIT_BYTES
        while block:
            start = pos % self.file_bytes
            room = self.file_bytes - start
            part = block if len(block) <= room else block[:room]
            done = os.pwrite(self._write_fd(pos - start), part, start)
            self._files.mark_dirty(self._write_path)
            pos += done
            block = block[done:]
        self.max_offset = max(self.max_offset, end_offset)
        self.min_offset = min(self.min_offset, first_offset)  # recovery writes earlier units again

    def rewrite(self, first_offset: int, units: Rows) -> None:
        """Replace units of the queue, such as their tags codes.

        Args:
            units: (n,) `layout.UNIT`.
        Raises:
            OSError: The disk refused it; some of them may be written.
        """
        assert self.min_offset <= first_offset <= self.max_offset - units.size
        block = np.empty(units.size, CQ_UNIT)
        for name in CQ_UNIT.names or ():
            block[name] = units[name]
        self.write(first_offset, memoryview(block.tobytes()))

    def _write_fd(self, base: int) -> int:
        if base != self._write_base:
            self._write_base, self._write_path = base, self._path(base)
            if base not in self._bases:
                self._bases.append(base)
                self._bases.sort()
        return self._files.get(self._write_path, self.file_bytes)

    def _fill_pre_blanks(self, end_offset: int) -> None:
        """Fill the file of `end_offset` with pre-blanks up to it, from the last known unit on."""
        file_start = end_offset - end_offset % self.file_units
        if self.max_offset < file_start:
            for base in self._bases:
                self._remove(base)
            self._bases.clear()
        first = self.min_offset if self._bases else end_offset
        self.max_offset = start = max(file_start, self.max_offset) if self._bases else file_start
        if end_offset > start:
            self.write(start, memoryview(PRE_BLANK.tobytes() * (end_offset - start)))
        self.min_offset = first  # pre-blanks do not count

    def read(self, offset: int, count_max: int) -> Rows:
        """Return units from `offset` on, (n,) `layout.UNIT`, to the end of that file at most."""
        if offset < self.min_offset or offset >= self.max_offset or count_max <= 0:
            return np.empty(0, UNIT)
        base = offset * UNIT_BYTES // self.file_bytes * self.file_bytes
        pos = offset * UNIT_BYTES - base
        count = min(count_max, self.max_offset - offset, (self.file_bytes - pos) // UNIT_BYTES)
        block = self._files.read(self._path(base), count * UNIT_BYTES, pos)
        out = np.empty(len(block) // UNIT_BYTES, UNIT)
        return out[: scan.read_units(np.frombuffer(block, np.uint8), out)]

    def log_offset(self, offset: int) -> int:
        """Return the log offset of the message at a queue offset; -1 if there is none."""
        return self._span(offset)[0]

    def _span(self, offset: int) -> tuple[int, int]:
        """Return log offset and size of the message at a queue offset; (-1, 0) if there is none."""
        if not self.min_offset <= offset < self.max_offset:
            return -1, 0
        base = offset * UNIT_BYTES // self.file_bytes * self.file_bytes
        data = self._files.read(self._path(base), UNIT_BYTES, offset * UNIT_BYTES - base)
        phys_offset, size, _ = PACKED_UNIT.unpack(data)
        is_message = 0 < size != PRE_BLANK_SIZE and phys_offset >= 0
        return (int(phys_offset), int(size)) if is_message else (-1, 0)

    def changed_blocks(self, offset: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of queue offsets whose checksum differs, among `count` units of a file.

        When the caller continues, the checksum of the range is renewed.

        Args:
            offset: Queue offset of the first unit.
        """
        sums, count = self._files.sums, min(count, self.max_offset - offset)
        if sums is None or offset < self.min_offset or count <= 0:
            return
        base = offset // self.file_units * self.file_units
        path, first = self._path(base * UNIT_BYTES), offset - base
        end = min(first + count, self.file_units)
        for number in sums.changed(path, first, end, self._files.read):
            start = base + number * BLOCK_UNITS
            after = min(start + BLOCK_UNITS, base + self.file_units, self.max_offset)
            yield max(start, self.min_offset), after
            sums.renew(path, number, self._files.read)

    def truncate(self, log_end: int) -> None:
        """Remove the units whose record does not end before `log_end`."""
        self.cut(self.end_before(log_end))

    def end_before(self, log_end: int) -> int:
        """Return the offset after the last unit whose record ends at or before `log_end`."""
        keep, step = self.max_offset, UNITS_BACK_MIN
        if 0 <= sum(self._span(keep - 1)) <= log_end:
            return keep
        while keep > self.min_offset:
            first = max(self.min_offset, (keep - 1) // self.file_units * self.file_units)
            first = max(first, keep - step)
            units = self.read(first, keep - first)
            good = (units["phys_offset"] + units["size"] <= log_end) | is_blank(units)
            if good.any():
                return first + int(np.flatnonzero(good)[-1]) + 1
            keep, step = first, UNITS_BACK_MAX
        return keep

    def cut(self, max_offset: int) -> None:
        """Remove the units from `max_offset` on."""
        if max_offset >= self.max_offset:
            return
        pos = max_offset * UNIT_BYTES
        while len(self._bases) > 1 and self._bases[-1] >= pos:
            self._drop_last()
        self._zero_from(max_offset)
        self.max_offset = max_offset

    def correct_min(self, log_min: int) -> None:
        """Advance `min_offset` past units whose records were removed; remove files before it."""
        self.min_offset = low = self.offset_from(log_min)
        while len(self._bases) > 1 and self._bases[1] <= low * UNIT_BYTES:
            self._remove(self._bases.pop(0))

    def blank(self, log_start: int, log_end: int) -> int:
        """Replace units that point into log_start..log_end by pre-blanks; return their number."""
        count = 0
        position = self.offset_from(log_start)
        while position < self.max_offset and self.message_from(position)[1] < log_end:
            self.write(position, memoryview(PRE_BLANK.tobytes()))
            position, count = self.message_from(position)[0], count + 1
        return count

    def offset_from(self, log_offset: int) -> int:
        """Return the queue offset of the first message at or after a log offset, or the end."""
        low, high = self.min_offset, self.max_offset
        position, phys_offset = self.message_from(low)
        if phys_offset >= log_offset:  # as at a start, unless retention has removed files
            return position
        if 0 <= self.log_offset(high - 1) < log_offset:
            return high
        low += bisect_left(range(low, high), log_offset, key=lambda n: self.message_from(n)[1])
        return self.message_from(low)[0]

    def unit_from(self, log_offset: int) -> Any | None:
        """Return the first unit, () `UNIT`, of a message at or after a log offset."""
        units = self.read(self.offset_from(log_offset), 1)
        return units[0] if units.size and not is_blank(units)[0] else None

    def message_from(self, offset: int) -> tuple[int, int]:
        """Return queue and log offset of the first unit from `offset` on that is not a pre-blank.

        Without one: the end of the queue and LONG_MAX.
        """
        if (phys_offset := self.log_offset(offset)) >= 0:
            return offset, phys_offset
        while offset < self.max_offset:
            units = self.read(offset, 4_096)
            messages = np.flatnonzero(~is_blank(units))
            if messages.size:
                position = int(messages[0])
                return offset + position, int(units[position]["phys_offset"])
            offset += max(int(units.size), 1)
        return self.max_offset, LONG_MAX

    def forget(self) -> None:
        """Reset the queue, after its files were moved out of the directory."""
        for base in self._bases:
            self._files.drop(self._path(base))
        self._bases.clear()
        self._paths.clear()
        self._write_base = -1
        self.min_offset = self.max_offset = 0

    def discard(self) -> None:
        """Remove the files of a queue that is rebuilt from the log."""
        while self._bases:
            self._drop_last()
        self.min_offset = self.max_offset = 0


def is_blank(units: Rows) -> npt.NDArray[np.bool_]:
    """Return which units are pre-blanks, units without a message."""
    return np.asarray(
        (units["phys_offset"] == 0) & (units["size"] == PRE_BLANK_SIZE) & (units["tags_code"] == 0)
    )
