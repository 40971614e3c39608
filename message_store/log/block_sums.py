"""Checksums of the log's blocks, to detect damage that the CRCs of records do not cover.

    commitlog/00000000000000000000   [block][block][block][open..       Apache's bytes
    sums/00000000000000000000        crc    crc    0                    0: unknown
    sums/tail                        end, crc of the open block up to it

Apache's records have a CRC of the body only. A flipped bit in a header or in properties would not
be detected. Therefore checksums are written for synced bytes: a complete block gets a permanent one
(the block is *sealed*); the incomplete last block (the *open* block) gets one that the next sync
replaces. `duemq store verify` compares them, and a start compares the open block before it grows.

A checksum is written after the sync of its bytes, and bytes before the log's end never change.
After a kill or a power cut, even an old checksum therefore covers bytes that are on the disk. Bytes
after it were never synced: those in the log are in the page cache, and the first sync after the
start seals them.

Blocks are not checked if their original bytes are not known: blocks that another broker wrote,
blocks after a truncation or a bridge, and blocks in which a byte was changed in place
(`rewriting`). Checksums are synced only when some are withdrawn; a lost checksum is not compared.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from duemq_common.existence import exists, is_directory
from message_store.kernels.sums import sum_blocks
from message_store.layout import BLOCK_SUM, SUM_UNKNOWN, TAIL_SUM, packer, positions
from message_store.log.file_sequence import NAME_DIGITS
from message_store.log.unreadable import MappedFile

logger = logging.getLogger(__name__)
DIRECTORY: Final = "sums"
TAIL: Final = "tail"
BLOCK_BYTES: Final = 4_096
SEAL_BYTES_MAX: Final = 16 << 20  # maximum bytes after one sync, because the next one waits
LAG_BYTES_MAX: Final = 64 << 20  # maximum unsealed bytes at a start; older ones stay unsealed
Sums = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Piece = tuple[int, Bytes]  # log offset of a file's first byte, its bytes
Changed = tuple[int, int, int]
NO_OFFSET: Final = (1 << 63) - 1  # after every log offset
TAIL_RECORD = packer(TAIL_SUM)
OWN_CRC_POS: Final[int] = positions(TAIL_SUM).own_crc


class BlockSums:
    """Checksums of one log. The syncing thread seals blocks; the log's owner withdraws checksums.

    Args:
        files: Returns the log's files, in order.
    Attributes:
        sealed: Log offset up to which blocks are sealed or skipped; the start of the open block.
    """

    def __init__(self, directory: Path, files: Callable[[], Sequence[MappedFile]]) -> None:
        self.directory, self._files = directory, files
        self.sealed = 0
        self._lock = threading.Lock()
        self._fd, self._base, self._tail_fd = -1, -1, -1
        self._first = -1  # base of the log's first file when checksums of removed ones were removed
        self._refused = False
        self._rewritten: set[int] = set()  # starts of blocks that are not sealed yet
        self._damaged = -1  # start of the open block, if the disk has changed it
        self._tails_from = 0  # first start of an open block whose checksum the disk may have

    def open(self, end: int) -> None:
        """Continue after the last sealed block of a log that ends at `end`.

        Raises:
            OSError: The checksums of bytes after the end cannot be withdrawn.
        """
        sealed_end = self._sealed_end()
        tail = _valid_tail(self.directory, [(f.base, f.pages.data) for f in self._files()])
        if tail is not None:
            sealed_end = max(sealed_end or 0, tail.start)
        if max(sealed_end or 0, tail.end if tail else 0) > end:
            self.withdraw(end)
        if sealed_end is None or not 0 <= end - sealed_end <= LAG_BYTES_MAX:
            sealed_end = end
        self.sealed = self._block_start(sealed_end)
        if tail is not None and tail.start == self.sealed and tail.has_changed:
            self._damaged = tail.start
            logger.warning(
                "%s: the disk has changed the %d bytes from log offset %d on: a record in "
                "them is damaged, even if no other check detects it",
                self.directory.parent / "commitlog",
                tail.end - tail.start,
                tail.start,
            )

    def _sealed_end(self) -> int | None:
        """Return the log offset after the last sealed block, None without any."""
        sizes = {file.base: file.pages.data.size for file in self._files()}
        for path in reversed(_paths(self.directory)):
            base, blocks = int(path.name), np.flatnonzero(np.fromfile(path, BLOCK_SUM))
            if blocks.size and base in sizes:
                return base + min((int(blocks[-1]) + 1) * BLOCK_BYTES, sizes[base])
        return None

    def _block_start(self, offset: int) -> int:
        """Return the log offset at which the block of an offset begins."""
        for file in reversed(list(self._files())):
            if file.base <= offset < file.base + file.pages.data.size:
                return offset - (offset - file.base) % BLOCK_BYTES
        return offset

    def seal(self, end: int) -> None:
        """Seal complete blocks before `end`, and write the checksum of the open block.

        If a checksum cannot be written, sealing stops until the next start.

        Args:
            end: Log offset up to which the log is on the disk.
        """
        if end <= self.sealed or self._refused:
            return
        with self._lock:
            try:
                self._seal_until(min(end, self.sealed + SEAL_BYTES_MAX))
                if end - self.sealed < BLOCK_BYTES:
                    self._write_open_block(end)
            except OSError as error:
                self._refused = True
                self._rewritten.clear()  # no block is sealed any more
                logger.warning("checksums of the log cannot be written: %s", error)

    def _seal_until(self, end: int) -> None:
        for file in self._files_from(self.sealed):
            size = int(file.pages.data.size)
            first, after = max(self.sealed - file.base, 0), min(end - file.base, size)
            if after < size:
                after -= after % BLOCK_BYTES
            if first < after:
                sums = block_sums(file.pages.data, first, after)
                for start in self._rewritten:
                    if first <= start - file.base < after:
                        sums[(start - file.base - first) // BLOCK_BYTES] = SUM_UNKNOWN
                if first <= self._damaged - file.base < after:
                    position = (self._damaged - file.base - first) // BLOCK_BYTES
                    sums[position] = _mismatch(int(sums[position]))
                if _is_readable(file):
                    self._write(file, first, sums)
                self.sealed = file.base + after
        if self._rewritten:
            self._rewritten = {start for start in self._rewritten if start >= self.sealed}

    def _files_from(self, offset: int) -> list[MappedFile]:
        """Return the files that do not end at or before a log offset, in order."""
        files: list[MappedFile] = []
        for file in reversed(self._files()):
            if file.base + file.pages.data.size <= offset:
                break
            files.append(file)
        return files[::-1]

    def _files_of(self, offsets: Offsets) -> Sequence[MappedFile]:
        """Return the files from that of the first of some log offsets to that of the last."""
        if not offsets.size:
            return ()
        low, high = int(offsets.min()), int(offsets.max())
        files = self._files()
        first = bisect_right(files, low, key=lambda file: file.base) - 1
        return files[max(first, 0) : bisect_right(files, high, key=lambda file: file.base)]

    def _write(self, file: MappedFile, first: int, sums: Sums) -> None:
        if file.base != self._base:
            self._open_file(file.base)
        pos = first // BLOCK_BYTES * BLOCK_SUM.itemsize
        os.pwrite(self._fd, sums.astype(BLOCK_SUM).tobytes(), pos)

    def _write_open_block(self, end: int) -> None:
        """Write the checksum of the bytes after the last complete block, up to `end`."""
        start = self.sealed
        if start == end or start in self._rewritten or start == self._damaged:
            return
        for file in self._files_from(start):
            if file.base <= start and _is_readable(file):
                crc = zlib.crc32(file.pages.data[start - file.base : end - file.base].data)
                self._tails_from = min(self._tails_from, start)
                os.pwrite(self._opened_tail(), _packed_tail(end, crc), 0)

    def _opened_tail(self) -> int:
        if self._tail_fd < 0:
            self.directory.mkdir(exist_ok=True)
            self._tail_fd = os.open(self.directory / TAIL, os.O_RDWR | os.O_CREAT, 0o644)
        return self._tail_fd

    def _open_file(self, base: int) -> None:
        """Open the checksums of one log file; remove those of removed log files."""
        self._close_file()
        self.directory.mkdir(exist_ok=True)
        path = self._path(base)
        self._fd, self._base = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), base
        files = self._files()
        if files[0].base == self._first:  # none was removed since the last search
            return
        self._first, bases = files[0].base, {file.base for file in files}
        for old in _paths(self.directory):
            if int(old.name) not in bases:
                old.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._base = -1, -1

    def close(self, end: int | None = None) -> None:
        """Close the files.

        Args:
            end: End of the log at a clean stop; all blocks before it are sealed.
        """
        before = -1
        while end is not None and before < self.sealed:
            before = self.sealed
            self.seal(end)
        self._close_file()
        if self._tail_fd >= 0:
            os.close(self._tail_fd)
        self._tail_fd = -1

    def has_changed(self, offset: int, size: int) -> bool | None:
        """Return whether a record's bytes are in a block that has changed, None if unknown."""
        for file in self._files_from(offset):
            if file.base <= offset:
                return self._changed_in(file, offset, offset + size)
        return None

    def _changed_in(self, file: MappedFile, offset: int, end: int) -> bool | None:
        low = (offset - file.base) // BLOCK_BYTES
        count, start = -(-(end - file.base) // BLOCK_BYTES) - low, low * BLOCK_BYTES
        tail = _valid_tail(self.directory, [(file.base, file.pages.data)])
        try:
            expected = np.fromfile(
                self._path(file.base), BLOCK_SUM, count, offset=low * BLOCK_SUM.itemsize
            )
        except OSError:
            expected = np.empty(0, BLOCK_SUM)
        after = min(start + count * BLOCK_BYTES, int(file.pages.data.size))
        actual = block_sums(file.pages.data, start, after)[: expected.size]
        if ((expected != SUM_UNKNOWN) & (expected != actual)).any():
            return True
        unknown = set((file.base + start + np.flatnonzero(expected == 0) * BLOCK_BYTES).tolist())
        unknown.update(range(file.base + start + expected.size * BLOCK_BYTES, end, BLOCK_BYTES))
        if tail is None or not unknown <= {tail.start} or (unknown and tail.end < end):
            return None if unknown else False
        return bool(unknown) and tail.has_changed

    def _path(self, base: int) -> Path:
        return self.directory / f"{base:0{NAME_DIGITS}d}"

    def withdraw(self, offset: int) -> None:
        """Mark the checksums from a log offset on as unknown, before bytes after it change.

        Raises:
            OSError: They cannot be withdrawn, and would not match the new bytes.
        """
        with self._lock:
            first = self._block_start(offset)
            self.sealed = min(self.sealed, first)
            self._rewritten = {start for start in self._rewritten if start < first}
            self._close_file()
            self._first = -1
            if self._forget_tail(offset):
                self._damaged = -1
            for path in _paths(self.directory):
                size = max(first - int(path.name), 0) // BLOCK_BYTES * BLOCK_SUM.itemsize
                if size < path.stat().st_size:
                    with path.open("r+b") as file:
                        file.truncate(size)
                        os.fsync(file.fileno())

    @contextmanager
    def rewriting(self, offsets: Offsets) -> Iterator[None]:
        """Mark the checksums of blocks as unknown; bytes may change inside the `with` block.

        Args:
            offsets: (n,) i8: log offsets of the bytes.

        Raises:
            OSError: The checksums cannot be withdrawn; no byte may be changed.
        """
        with self._lock:
            self._forget_blocks(offsets)
            yield

    def _forget_blocks(self, offsets: Offsets) -> None:
        covered = offsets.size and int(offsets.max()) >= self._tails_from
        if covered and self._forget_tail(0):  # the disk may have an older tail than memory
            self._tails_from = NO_OFFSET
        for file in self._files_of(offsets):
            blocks = _blocks_of(
                offsets[(offsets >= file.base) & (offsets < file.base + file.pages.data.size)]
                - file.base
            )
            starts = file.base + blocks * BLOCK_BYTES
            if not self._refused:
                self._rewritten.update(starts[starts >= self.sealed].tolist())
            _forget(self._path(file.base), blocks)

    def _forget_tail(self, offset: int) -> bool:
        """Mark the tail as unknown if it covers bytes after `offset`; return whether it does."""
        tail = _read_tail(self.directory / TAIL)
        if tail is None or tail[0] <= offset:
            return False
        fd = self._opened_tail()
        os.pwrite(fd, bytes(TAIL_SUM.itemsize), 0)
        os.fsync(fd)
        return True


def _is_readable(file: MappedFile) -> bool:
    """Return whether no page of a file was replaced by zeros."""
    if file.pages.replaced[0]:
        file.pages.update()
    return not file.pages.unreadable


def _mismatch(crc: int) -> int:
    """Return a checksum that never matches a block with a given one."""
    return crc ^ 1 or 2


def _blocks_of(positions: Offsets) -> Offsets:
    """Return the blocks of positions in a file, ascending, each once."""
    if not positions.size:
        return positions
    blocks = positions // BLOCK_BYTES
    first = int(blocks.min())
    return np.flatnonzero(np.bincount(blocks - first)) + first


def _forget(path: Path, blocks: Offsets) -> None:
    """Mark the checksums of some blocks, ascending, of a log file as unknown, on the disk."""
    if not blocks.size or not exists(path):
        return
    first, last = int(blocks[0]), int(blocks[-1])
    start = first * BLOCK_SUM.itemsize
    sums = np.fromfile(path, BLOCK_SUM, last + 1 - first, offset=start)
    blocks = blocks[blocks < first + sums.size] - first
    blocks = blocks[sums[blocks] != SUM_UNKNOWN]
    if blocks.size:
        sums[blocks] = SUM_UNKNOWN
        with path.open("r+b") as file:
            file.seek(start)
            file.write(sums.tobytes())
            file.flush()
            os.fsync(file.fileno())


def block_sums(data: Bytes, first: int, after: int) -> Sums:
    """Return the checksums of the blocks of a file between two positions, (n,) u4."""
    sums = np.empty(-(-(after - first) // BLOCK_BYTES), np.uint32)
    sum_blocks(data, first, BLOCK_BYTES, sums)
    return sums


def _paths(directory: Path) -> list[Path]:
    if not is_directory(directory):
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdigit())


# -- comparison ---------------------------------------------------------------------------------


def changed_blocks(directory: Path, files: Sequence[Piece]) -> Iterator[Changed]:
    """Yield the base of a log file and two positions in it, for each block that has changed.

    Args:
        files: Base and bytes of each log file.

    Raises:
        OSError: The checksums cannot be read.
    """
    tail = _valid_tail(directory, files)
    for base, data in files:
        path = directory / f"{base:0{NAME_DIGITS}d}"
        if exists(path):
            expected = np.fromfile(path, BLOCK_SUM)[: -(-data.size // BLOCK_BYTES)]
            if tail is not None and tail.start in base + np.flatnonzero(expected) * BLOCK_BYTES:
                tail = None  # its block has a permanent checksum now
            actual = block_sums(data, 0, min(expected.size * BLOCK_BYTES, data.size))
            for block in np.flatnonzero((expected != SUM_UNKNOWN) & (expected != actual)).tolist():
                yield base, block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, data.size)
    if tail is not None and tail.has_changed:
        yield tail.base, tail.start - tail.base, tail.end - tail.base


class _Tail(NamedTuple):
    """Part of the open block of a log that its checksum covers.

    Attributes:
        base: Log offset of its file's first byte.
        start, end: Log offsets of its first byte and after its last byte.
    """

    base: int
    start: int
    end: int
    has_changed: bool


def _valid_tail(directory: Path, files: Sequence[Piece]) -> _Tail | None:
    """Return the open block, None if it has no checksum."""
    tail = _read_tail(directory / TAIL)
    if tail is None:
        return None
    end, crc = tail
    for base, data in files:
        size = (end - base) % BLOCK_BYTES
        if base < end < base + data.size and size:
            checksum = zlib.crc32(data[end - base - size : end - base].data)
            return _Tail(base, end - size, end, checksum != crc)
    return None


def _read_tail(path: Path) -> tuple[int, int] | None:
    """Return the known end and checksum of the open block, None if they are damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != TAIL_RECORD.size:
        return None
    end, crc, _ = TAIL_RECORD.unpack(data)
    return (end, crc) if data == _packed_tail(end, crc) else None


def _packed_tail(end: int, crc: int) -> bytes:
    own_crc = zlib.crc32(TAIL_RECORD.pack(end, crc, 0)[:OWN_CRC_POS])
    return TAIL_RECORD.pack(end, crc, own_crc)
