"""Apache's checkpoint file, and DueMQ's recovery mark: the progress of queues in the log."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from duemq_common.existence import exists
from message_store.layout import CHECKPOINT, CHECKPOINT_BYTES, packer
from message_store.log.page_guard import GuardedMap

logger = logging.getLogger(__name__)
TIMES = packer(CHECKPOINT)
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_BYTES = 36
MIN_TIMESTAMP_SLACK_MS = 3_000


class Checkpoint:
    """`<root>/checkpoint`: store times up to which log, queues and index are on the disk."""

    def __init__(self, path: Path, values: tuple[int, ...]) -> None:
        self.path = path
        self.physic_ms, self.logics_ms, self.index_ms, self.flushed = values[:4]
        self.confirm = max(values[4], 0)
        self._has_offset = any(values[5:])

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file; a missing, short or unreadable file counts as zeros."""
        try:
            data = path.read_bytes() if exists(path) else b""
        except OSError as error:
            logger.warning("%s cannot be read and is rebuilt: %s", path, error.strerror)
            path.unlink(missing_ok=True)
            data = b""
        return cls(path, TIMES.unpack_from(data.ljust(CHECKPOINT_BYTES, b"\0")))

    @property
    def min_timestamp_ms(self) -> int:
        """Store time after which records must be dispatched again after a crash."""
        return max(0, min(self.physic_ms, self.logics_ms) - MIN_TIMESTAMP_SLACK_MS)

    def truncate(self, offset: int, store_ms: int) -> None:
        """Lower all fields to a log offset and the store time of the record before it.

        Raises:
            OSError: The disk refused it; the old times remain.
        """
        self.flushed, self.confirm = min(self.flushed, offset), min(self.confirm, offset)
        self.update(
            physic_ms=min(self.physic_ms, store_ms),
            logics_ms=min(self.logics_ms, store_ms),
            index_ms=min(self.index_ms, store_ms),
        )

    def clear_offset(self) -> None:
        """Clear Apache's log offset before the first append, if the file has one; see `update`.

        Raises:
            OSError: The disk refused it.
        """
        if self._has_offset:
            self.update(physic_ms=self.physic_ms, logics_ms=self.logics_ms, index_ms=self.index_ms)
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def update(self, *, physic_ms: int, logics_ms: int, index_ms: int) -> None:
        """Write new times in place: one write of 48 bytes, never a shorter file.

        The log offset at which Apache 5.4 and later start after a crash is cleared: an old value
        can be behind a truncated log, and without one the times count.

        Raises:
            OSError: The disk refused it; the old times remain.
        """
        self.physic_ms, self.logics_ms, self.index_ms = physic_ms, logics_ms, index_ms
        fields = (physic_ms, logics_ms, index_ms, self.flushed, self.confirm, 0)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < CHECKPOINT_BYTES:
                os.ftruncate(fd, CHECKPOINT_BYTES)
            os.pwrite(fd, TIMES.pack(*fields), 0)
            self._has_offset = False
        finally:
            os.close(fd)


class Marks(NamedTuple):
    """Log offsets up to which queues are written (dispatched) and on the disk (durable).

    `units` is the sum of all queues' ends at that time. If a start finds fewer, queues were lost.
    """

    dispatched: int = 0
    last_record: int = -1
    durable: int = 0
    durable_record: int = -1
    units: int = 0
    durable_units: int = 0


class Point(NamedTuple):
    """Log offset up to which all queues were complete; `units` is the sum of their ends.

    `record` is the log offset of the last record before it, -1 without one.
    """

    offset: int
    record: int
    units: int


NO_MARKS = Marks()
BODY = struct.Struct(f"=7q{BOOT_ID_BYTES}s")
_CRC_BYTES = 4
SLOT_BYTES = 128
_FILE_BYTES = 4_096


def newest_marks(data: bytes) -> tuple[int, Marks | None, bytes]:
    """Return (sequence, marks, boot id) from the bytes of a `duemq.mark`; marks None: invalid."""
    best: tuple[int, Marks | None, bytes] = (0, None, b"")
    for body, crc in _slots(data):
        if len(body) < BODY.size or _crc(body) != crc:
            continue
        sequence, *marks, boot_id = BODY.unpack(body)
        if sequence > best[0]:
            best = (sequence, Marks(*marks), boot_id)
    return best


def has_damage(data: bytes) -> bool:
    """Return whether either slot of a `duemq.mark` is damaged."""
    if any(any(body + crc) and _crc(body) != crc for body, crc in _slots(data)):
        return True
    used = BODY.size + _CRC_BYTES
    return any(data[used:SLOT_BYTES]) or any(data[SLOT_BYTES + used :])


def _slots(data: bytes) -> list[tuple[bytes, bytes]]:
    """Return body and CRC of both slots."""
    return [
        (
            data[position : position + BODY.size],
            data[position + BODY.size : position + BODY.size + _CRC_BYTES],
        )
        for position in (0, SLOT_BYTES)
    ]


def _crc(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


class RecoveryMark:
    """`config/duemq.mark`: two slots written in turn, each with a sequence and a CRC.

    If one slot is damaged, the other has the previous mark. The file is mapped, so that an update
    needs no system call; its block is allocated first, because a mapped write on a full disk would
    end the process. If that fails, or the block cannot be read, the mark is kept in memory only.
    """

    def __init__(self, path: Path) -> None:
        self._boot_id = _boot_id()
        self._lock = threading.Lock()
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._map, self._pages = _mapped(path, fd)
        finally:
            os.close(fd)
        data = self._map[:_FILE_BYTES]
        if has_damage(data):
            logger.warning("%s is damaged: its undamaged slot is used", path)
        self._sequence, self._marks, self._found_boot_id = newest_marks(data)
        boot_id = self._found_boot_id.rstrip(b"\0")
        self.same_boot = bool(self._boot_id) and boot_id == self._boot_id

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the file.

        Raises:
            OSError: It cannot be opened.
        """
        return cls(path)

    def read(self) -> Marks | None:
        """Return the marks, None if the file has none."""
        return self._marks

    def point(self, *, clean: bool = True) -> Point | None:
        """Return the point at which recovery may start.

        Args:
            clean: Whether the last run ended cleanly; then all written data are valid on the same
                boot. Otherwise a sync may have failed, and only synced data are valid.
        """
        marks = self._marks
        if marks is None:
            return None
        if self.same_boot and clean:
            return Point(marks.dispatched, marks.last_record, marks.units)
        return Point(marks.durable, marks.durable_record, marks.durable_units)

    def update(self, **changes: int) -> None:
        """Replace fields of the marks and write them. Any thread may call it."""
        with self._lock:
            self._write((self._marks or NO_MARKS)._replace(**changes), self._boot_id)

    def truncate(self, offset: int, record: int, units: int) -> None:
        """Lower the marks to a log offset, the last record before it and the sum of queues' ends.

        The boot id does not change, because an earlier crash may have been a power cut.
        """
        marks = self._marks
        if marks is None:
            return
        if marks.dispatched > offset:
            marks = marks._replace(dispatched=offset, last_record=record, units=units)
        if marks.durable > offset:
            marks = marks._replace(durable=offset, durable_record=record, durable_units=units)
        self._write(marks, self._found_boot_id)

    def _write(self, marks: Marks, boot_id: bytes) -> None:
        self._marks = marks
        self._sequence += 1
        body = BODY.pack(self._sequence, *marks, boot_id)
        position = (self._sequence & 1) * SLOT_BYTES
        data = body + _crc(body)
        self._map[position : position + len(data)] = data

    def sync(self) -> None:
        """Wait until the newest mark is on the disk.

        Raises:
            OSError: The disk refused it.
        """
        self._map.flush()

    def close(self) -> None:
        """Close the file."""
        if self._pages is not None:
            self._pages.close()
        self._map.close()


def _boot_id() -> bytes:
    return BOOT_ID_PATH.read_bytes().strip()[:BOOT_ID_BYTES] if exists(BOOT_ID_PATH) else b""


def _mapped(path: Path, fd: int) -> tuple[mmap.mmap, GuardedMap | None]:
    """Map the file's block; on a full or unreadable disk return a copy in memory."""
    try:
        os.posix_fallocate(fd, 0, _FILE_BYTES)
        _readable(path, fd)
    except OSError as error:
        logger.warning(
            "%s is kept in memory only, so recovery after a crash takes longer: %s", path, error
        )
        memory = mmap.mmap(-1, _FILE_BYTES)
        with suppress(OSError):
            memory.write(os.pread(fd, _FILE_BYTES, 0))
        return memory, None
    pages = GuardedMap(path, fd, _FILE_BYTES, writable=True)
    pages.forget_file()
    return pages.map, pages


def _readable(path: Path, fd: int) -> None:
    """Overwrite the block if the disk cannot read it, so that the disk remaps the sector.

    Raises:
        OSError: The disk cannot write it either.
    """
    try:
        os.pread(fd, _FILE_BYTES, 0)
    except OSError as error:
        os.pwrite(fd, bytes(_FILE_BYTES), 0)
        os.pread(fd, _FILE_BYTES, 0)
        logger.warning("%s could not be read and is rebuilt: %s", path, error.strerror)
