"""Checksums of the log's blocks: damage is noticed that a record's own CRC does not cover.

    commitlog/00000000000000000000   [block][block][block][block]....   Apache's bytes
    sums/00000000000000000000        crc    crc    crc    0             0: unknown

Apache's records have a CRC of the body only. A flipped bit in a header or in properties would go
unnoticed: another birth time, key, or property. So each block of the log gets a checksum once it is
on the disk. The thread that syncs the log computes it, SEAL_BYTES at a time, and the rest at a
stop. `duemq store verify` compares.

What is not known to be as written is not checked: blocks that another broker wrote, blocks after a
crash that were not sealed yet, everything after a place at which the log was cut or bridged, and
blocks in which a byte was changed in place (`rewriting`). Checksums are only synced when some are
withdrawn, as a lost one checks nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.kernels.sums import sum_blocks
from message_store.layout import BLOCK_SUM, SUM_UNKNOWN, TAIL_SUM, positions
from message_store.log.unreadable import MappedFile

logger = logging.getLogger(__name__)
DIRECTORY: Final = "sums"
TAIL: Final = "tail"
BLOCK_BYTES: Final = 4_096
SEAL_BYTES: Final = 1 << 20  # fewer bytes are not sealed before the store is closed
SEAL_BYTES_MAX: Final = 16 << 20  # at once
LAG_BYTES_MAX: Final = 64 << 20  # what a start finds unsealed beyond this stays unsealed
Sums = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Piece = tuple[int, Bytes]  # log offset of a file's first byte, its bytes
Changed = tuple[int, int, int]
NAME_DIGITS: Final = 20


class BlockSums:
    """Checksums of one log. The thread that syncs it seals; the log's owner withdraws.

    Args:
        files: Returns the log's files, in order.
    Attributes:
        sealed: Log offset up to which blocks are sealed, or left out; the start of a block.
    """

    def __init__(self, directory: Path, files: Callable[[], Sequence[MappedFile]]) -> None:
        self.directory, self._files = directory, files
        self.sealed = 0
        self._lock = threading.Lock()
        self._fd, self._base = -1, -1
        self._refused = False
        self._rewritten: set[int] = set()  # starts of blocks that are not sealed yet

    def open(self, end: int) -> None:
        """Continue after the last sealed block of a log that ends at `end`.

        Raises:
            OSError: The disk refused to withdraw checksums of bytes after the end.
        """
        known = self._sealed_end()
        if known is not None and known > end:
            self.withdraw(end)
        if known is None or not 0 <= end - known <= LAG_BYTES_MAX:
            known = end
        self.sealed = self._block_start(known)

    def _sealed_end(self) -> int | None:
        """Return the log offset after the last sealed block, None without any."""
        sizes = {file.base: file.pages.data.size for file in self._files()}
        for path in reversed(_paths(self.directory)):
            base, known = int(path.name), np.flatnonzero(np.fromfile(path, BLOCK_SUM))
            if known.size and base in sizes:
                return base + min((int(known[-1]) + 1) * BLOCK_BYTES, sizes[base])
        return None

    def _block_start(self, offset: int) -> int:
        """Return the log offset at which the block of an offset begins."""
        for file in reversed(list(self._files())):
            if file.base <= offset < file.base + file.pages.data.size:
                return offset - (offset - file.base) % BLOCK_BYTES
        return offset

    def seal(self, end: int, *, step_bytes: int = SEAL_BYTES) -> None:
        """Seal whole blocks before `end`, once there are `step_bytes` of them.

        A disk that refuses a checksum ends the sealing until the next start.

        Args:
            end: Log offset up to which the log is on the disk.
        """
        if end - self.sealed < step_bytes or self._refused:
            return
        with self._lock:
            try:
                self._seal_until(min(end, self.sealed + SEAL_BYTES_MAX))
            except OSError as error:
                self._refused = True
                logger.warning("checksums of the log cannot be written: %s", error)

    def _seal_until(self, end: int) -> None:
        for file in list(self._files()):
            size = int(file.pages.data.size)
            first, after = max(self.sealed - file.base, 0), min(end - file.base, size)
            if after < size:
                after -= after % BLOCK_BYTES
            if first < after:
                sums = block_sums(file.pages.data, first, after)
                for start in self._rewritten:
                    if first <= start - file.base < after:
                        sums[(start - file.base - first) // BLOCK_BYTES] = SUM_UNKNOWN
                self._write(file, first, sums)
                self.sealed = file.base + after
        self._rewritten = {start for start in self._rewritten if start >= self.sealed}

    def _write(self, file: MappedFile, first: int, sums: Sums) -> None:
        if file.pages.replaced:
            file.pages.look()
            if file.pages.unreadable:  # zeros were read in place of some blocks
                return
        if file.base != self._base:
            self._open_file(file.base)
        pos = first // BLOCK_BYTES * BLOCK_SUM.itemsize
        os.pwrite(self._fd, sums.astype(BLOCK_SUM).tobytes(), pos)

    def _open_file(self, base: int) -> None:
        """Open the checksums of one log file; remove those of removed log files."""
        self._close_file()
        self.directory.mkdir(exist_ok=True)
        path = self.directory / f"{base:0{NAME_DIGITS}d}"
        self._fd, self._base = os.open(path, os.O_RDWR | os.O_CREAT, 0o644), base
        bases = {file.base for file in self._files()}
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
            end: End of the log after a clean stop: everything before it is sealed.
        """
        before = -1
        while end is not None and before < self.sealed:
            before = self.sealed
            self.seal(end, step_bytes=1)
        if end is not None and not self._refused:
            with suppress(OSError):
                self._seal_tail(end)
        self._close_file()

    def has_changed(self, offset: int, size: int) -> bool | None:
        """Return whether a record's bytes are in a block that has changed, None if unknown."""
        for file in list(self._files()):
            if not file.base <= offset < file.base + file.pages.data.size:
                continue
            low, high = (offset - file.base) // BLOCK_BYTES, offset - file.base + size
            count = -(-high // BLOCK_BYTES) - low
            path, start = self.directory / f"{file.base:0{NAME_DIGITS}d}", low * BLOCK_BYTES
            try:
                noted = np.fromfile(path, BLOCK_SUM, count, offset=low * BLOCK_SUM.itemsize)
            except OSError:
                return None
            after = min(start + count * BLOCK_BYTES, int(file.pages.data.size))
            found = block_sums(file.pages.data, start, after)[: noted.size]
            if ((noted != SUM_UNKNOWN) & (noted != found)).any():
                return True
            return None if noted.size < count or (noted == SUM_UNKNOWN).any() else False
        return None

    def _seal_tail(self, end: int) -> None:
        """Note the checksum of the bytes after the last whole block."""
        found = _tail_of([(file.base, file.pages.data) for file in self._files()], end)
        if found is not None and self._block_start(end) not in self._rewritten:
            self.directory.mkdir(exist_ok=True)
            tail = np.array([(end, zlib.crc32(found), 0)], TAIL_SUM)
            tail["own_crc"] = _own_crc(tail)
            (self.directory / TAIL).write_bytes(tail.tobytes())

    def withdraw(self, offset: int) -> None:
        """Make the checksums from a log offset on unknown: bytes after it are about to change.

        Raises:
            OSError: The disk refused it: the checksums would accuse what is written now.
        """
        with self._lock:
            first = self._block_start(offset)
            self.sealed = min(self.sealed, first)
            self._rewritten = {start for start in self._rewritten if start < first}
            self._close_file()
            (self.directory / TAIL).unlink(missing_ok=True)
            for path in _paths(self.directory):
                size = max(first - int(path.name), 0) // BLOCK_BYTES * BLOCK_SUM.itemsize
                if size < path.stat().st_size:
                    with path.open("r+b") as file:
                        file.truncate(size)
                        os.fsync(file.fileno())

    @contextmanager
    def rewriting(self, offsets: Offsets) -> Iterator[None]:
        """Make the checksums of blocks unknown whose bytes change in place while the block is open.

        Args:
            offsets: (n,) i8: log offsets of the bytes.

        Raises:
            OSError: The disk refused it; nothing may be changed.
        """
        with self._lock:
            (self.directory / TAIL).unlink(missing_ok=True)
            for file in list(self._files()):
                mine = offsets[
                    (offsets >= file.base) & (offsets < file.base + file.pages.data.size)
                ]
                blocks = np.unique((mine - file.base) // BLOCK_BYTES)
                starts = file.base + blocks * BLOCK_BYTES
                self._rewritten.update(starts[starts >= self.sealed].tolist())
                _forget(self.directory / f"{file.base:0{NAME_DIGITS}d}", blocks)
            yield


def _forget(path: Path, blocks: Offsets) -> None:
    """Make the checksums of some blocks of a log file unknown, on the disk."""
    if not blocks.size or not path.exists():
        return
    known = np.fromfile(path, BLOCK_SUM)
    blocks = blocks[blocks < known.size]
    blocks = blocks[known[blocks] != SUM_UNKNOWN]
    if blocks.size:
        known[blocks] = SUM_UNKNOWN
        first, last = int(blocks[0]), int(blocks[-1])
        with path.open("r+b") as file:
            file.seek(first * BLOCK_SUM.itemsize)
            file.write(known[first : last + 1].tobytes())
            file.flush()
            os.fsync(file.fileno())


def block_sums(data: Bytes, first: int, after: int) -> Sums:
    """Return the checksums of the blocks of a file between two positions, (n,) u4."""
    sums = np.empty(-(-(after - first) // BLOCK_BYTES), np.uint32)
    sum_blocks(data, first, BLOCK_BYTES, sums)
    return sums


def _paths(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if path.name.isdigit())


# -- comparison ---------------------------------------------------------------------------------


def changed_blocks(directory: Path, files: Sequence[Piece], end: int) -> Iterator[Changed]:
    """Yield the base of a log file and two positions in it, for each block that has changed.

    Args:
        files: Base and bytes of each log file.
        end: End of the log, up to which the rest of the last block is checked after a clean stop.

    Raises:
        OSError: The checksums cannot be read.
    """
    for base, data in files:
        path = directory / f"{base:0{NAME_DIGITS}d}"
        if path.exists():
            noted = np.fromfile(path, BLOCK_SUM)[: -(-data.size // BLOCK_BYTES)]
            found = block_sums(data, 0, min(noted.size * BLOCK_BYTES, data.size))
            for block in np.flatnonzero((noted != SUM_UNKNOWN) & (noted != found)).tolist():
                yield base, block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, data.size)
    tail, noted_crc = _tail_of(files, end), _tail_crc(directory, end)
    if tail is not None and noted_crc is not None and zlib.crc32(tail) != noted_crc:
        base = max(base for base, _ in files if base < end)
        yield base, end - base - len(tail), end - base


def _tail_of(files: Sequence[Piece], end: int) -> bytes | None:
    """Return the bytes of the log after its last whole block, None without any."""
    for base, data in files:
        size = (end - base) % BLOCK_BYTES
        if base < end < base + data.size and size:
            return data[end - base - size : end - base].tobytes()
    return None


def _tail_crc(directory: Path, end: int) -> int | None:
    """Return the noted checksum of the last block of a log that ends at `end`."""
    path = directory / TAIL
    if not path.exists() or path.stat().st_size != TAIL_SUM.itemsize:
        return None
    tail = np.fromfile(path, TAIL_SUM)
    if int(tail["own_crc"][0]) != _own_crc(tail) or int(tail["end"][0]) != end:
        return None
    return int(tail["crc"][0])


def _own_crc(tail: npt.NDArray[np.void]) -> int:
    return zlib.crc32(tail.tobytes()[: positions(TAIL_SUM).own_crc])
