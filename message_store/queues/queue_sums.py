"""Checksums of the blocks of consume queue files, to detect damage that no record shows.

    consumequeue/T/0/00000000000000000000        [200 units][200 units][37 units
    sums/consumequeue/T/0/00000000000000000000    200 crc    200 crc    37 crc

A filter skips units by their tags codes, and a level waits for the due times in its units, both
without reading a record. Before a unit is relied on, its block is compared with its checksum
(`UnitRepair.compare`). Units of changed blocks are compared with their records and written again.

The flusher's thread seals the units of files after each sync, of at most `SEALED_MAX`: a seal holds
the interpreter for 0.1 ms, and thousands of queues may have new units in every second. A queue is
derived from the log, so checksums are neither synced nor withdrawn: where one is wrong, records and
units match, and it is renewed. Units without a checksum, as those of an Apache broker, are not
compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final
from zlib import crc32

from message_store.layout import UNIT_BYTES, UNIT_SUM, packer

BLOCK_UNITS: Final = 200
BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_BYTES
SUM: Final = packer(UNIT_SUM)
SEALED_MAX: Final = 32  # files per call of `seal_some`
ReadBytes = Callable[[str, int, int], bytes]  # path, size, position


class QueueSums:
    """Checksums of the queue files below a directory. Paths are text, as in `FileCache`."""

    def __init__(self, queues: Path, directory: Path) -> None:
        self._queues, self._directory = str(queues), str(directory)
        self._unsealed: dict[str, None] = {}  # files with new units, in the order of their syncs

    def _path(self, path: str) -> str:
        return self._directory + path[len(self._queues) :]

    def seal_some(self, paths: Iterable[str] = (), count_max: int = SEALED_MAX) -> None:
        """Seal synced files, the oldest first; those above `count_max` at the next call."""
        self._unsealed |= dict.fromkeys(paths)
        for path in list(islice(self._unsealed, count_max)):
            self._unsealed.pop(path, None)
            self.seal(path)

    def seal_all(self) -> None:
        """Seal the synced files that are not sealed yet."""
        self.seal_some(count_max=len(self._unsealed))

    def seal(self, path: str) -> None:
        """Write the checksums of the units that a file has got since the last call.

        A failure is ignored, because units without a checksum are only not compared. May run in any
        thread; a unit that is being written at the same time may get a wrong checksum.
        """
        with suppress(OSError):
            # A directory, which is synced for its new names, cannot be opened for writing.
            units = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                sums = self._open(path)
                try:
                    _seal(units, sums)
                finally:
                    os.close(sums)
            finally:
                os.close(units)

    def _open(self, path: str) -> int:
        """Return the descriptor of the checksums of a file, which exist from then on."""
        path, flags = self._path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return os.open(path, flags, 0o644)

    def changed(self, path: str, first: int, end: int, read: ReadBytes) -> list[int]:
        """Return the numbers of the changed blocks among those with the units `first` to `end`.

        Args:
            first, end: Indexes of units in the file.
            read: Reads bytes of a queue file.
        """
        low, high = first // BLOCK_UNITS, -(-end // BLOCK_UNITS)
        recorded_sums = b""
        with suppress(OSError):
            fd = os.open(self._path(path), os.O_RDONLY)
            try:
                recorded_sums = os.pread(fd, (high - low) * SUM.size, low * SUM.size)
            finally:
                os.close(fd)
        if not recorded_sums:
            return []
        data = read(path, (high - low) * BLOCK_BYTES, low * BLOCK_BYTES)
        blocks = (data[index : index + BLOCK_BYTES] for index in range(0, len(data), BLOCK_BYTES))
        sums = SUM.iter_unpack(recorded_sums[: len(recorded_sums) // SUM.size * SUM.size])
        return [
            low + index
            for index, (block, entry) in enumerate(zip(blocks, sums, strict=False))
            if not _matches(block, *entry)
        ]

    def renew(self, path: str, number: int, read: ReadBytes) -> None:
        """Write the checksum of a block that was compared with its records."""
        entry = _entry(read(path, BLOCK_BYTES, number * BLOCK_BYTES))
        with suppress(OSError):
            sums = os.open(self._path(path), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(sums, entry, number * SUM.size)
            finally:
                os.close(sums)

    def forget(self, path: str) -> None:
        """Remove the checksums of a file that is about to be removed."""
        self._unsealed.pop(path, None)
        with suppress(OSError):
            os.unlink(self._path(path))

    def move(self, topic: str, directory: Path) -> None:
        """Move the checksums of a removed topic into the directory that is erased with its queues.

        Checksums that stay are wrong for the units of a later topic of this name, and are renewed.
        """
        with suppress(OSError):
            os.rename(os.path.join(self._directory, topic), directory / "sums")


def _seal(units: int, sums: int) -> None:
    """Write the checksums of the units after the last complete block that has one.

    Args:
        units, sums: Descriptors of a queue file and of its checksums.
    """
    first = number = max(os.fstat(sums).st_size // SUM.size - 1, 0)
    last = os.pread(sums, SUM.size, first * SUM.size)
    entries = bytearray()
    while entry := _entry(block := os.pread(units, BLOCK_BYTES, number * BLOCK_BYTES)):
        if number == first and len(last) == SUM.size and not _matches(block, *SUM.unpack(last)):
            return  # the disk has changed it: it must not get a new checksum
        entries += entry
        number += 1
        if _unit_count(block) < BLOCK_UNITS:
            break
    os.pwrite(sums, entries, first * SUM.size)


def _entry(block: bytes) -> bytes:
    """Return the entry for the units of a block, empty without any."""
    count = _unit_count(block)
    return SUM.pack(count, crc32(block[: count * UNIT_BYTES])) if count else b""


def _unit_count(block: bytes) -> int:
    """Return the number of units of a block; the rest of a file is zero.

    The last unit may end with zeros, but not begin with them: its size is not 0.
    """
    return -(-len(block.rstrip(b"\0")) // UNIT_BYTES)


def _matches(block: bytes, count: int, crc: int) -> bool:
    return crc32(block[: min(count, BLOCK_UNITS) * UNIT_BYTES]) == crc
