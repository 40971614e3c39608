"""Checkpoint of the table of schedules, so that a start reads only the end of the log.

    config/duemq.schedules    one line of JSON: log offset, generation, rows, CRC | rows

The table changes while the file is written; the rows are those of the log offset.

A checkpoint is valid if the log before its offset has not changed since its generation. Without a
valid one, the log is read from the first record of the journal on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from duemq_common.clock import Clock
from duemq_common.topics import SCHEDULES_TOPIC
from recurring_schedules.names import JOURNAL_QUEUE
from recurring_schedules.snapshot import Bytes, RowSnapshot
from recurring_schedules.table import ROW, ScheduleTable

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
FILE_NAME: Final = "duemq.schedules"
EVERY_MS: Final = 10_000
PAUSE_FACTOR: Final = 50  # a pause is at least this many times as long as the write before it
HEAD_BYTES: Final = 128  # of the first line, which is written last
LOG_BYTES_MAX: Final = 256 << 20
"""Maximum bytes of the log after a checkpoint that the next start reads."""


class CheckpointHead(msgspec.Struct, frozen=True):
    """First line of the file."""

    log_offset: int
    generation: int
    count: int
    crc: int


def load_table(store: MessageStore) -> ScheduleTable:
    """Return the table of the checkpoint, or one that is empty before the first schedule."""
    table = read_checkpoint(store)
    if table is None:
        first, _ = store.queue_bounds(SCHEDULES_TOPIC, JOURNAL_QUEUE)
        units = store.units(SCHEDULES_TOPIC, JOURNAL_QUEUE, first, 1)
        start = int(units[0]["phys_offset"]) if units.size else store.max_offset
        table = ScheduleTable(log_offset=start)
    return table


def read_checkpoint(store: MessageStore) -> ScheduleTable | None:
    """Return the table of the checkpoint, None without a valid one."""
    try:
        data = store.config_path(FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    line, _, content = data.partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=CheckpointHead)
    except ValueError:
        head = None
    if head is None or zlib.crc32(content) != head.crc or len(content) != head.count * ROW.itemsize:
        log.error("%s is damaged: the schedules are read from the log", FILE_NAME)
        return None
    if head.log_offset > store.unchanged_end(head.generation):
        return None
    return ScheduleTable(np.frombuffer(content, ROW).copy(), head.log_offset)


async def write(path: Path, snapshot: RowSnapshot, log_offset: int, generation: int) -> None:
    """Replace the file atomically; the work on each piece is done in a thread.

    Raises:
        OSError: The file cannot be written; the former one is unchanged.
    """
    temporary, crc = path.with_name(path.name + ".tmp"), 0
    with await asyncio.to_thread(temporary.open, "wb") as file:
        await asyncio.to_thread(file.write, b"\n".rjust(HEAD_BYTES))
        for content in snapshot.pieces():
            crc = await asyncio.to_thread(_append, file, content, crc)
        head = CheckpointHead(log_offset, generation, snapshot.count, crc)
        await asyncio.to_thread(_complete, file, head)
    await asyncio.to_thread(os.replace, temporary, path)


def _append(file: BufferedWriter, content: Bytes, crc: int) -> int:
    """Write a piece; return the CRC of all pieces."""
    file.write(content.data)
    return zlib.crc32(content.data, crc)


def _complete(file: BufferedWriter, head: CheckpointHead) -> None:
    """Write the first line, and sync."""
    file.seek(0)
    file.write(msgspec.json.encode(head))
    file.flush()
    os.fsync(file.fileno())


class ScheduleCheckpoints:
    """Task that writes checkpoints of a table.

    Args:
        follows: Whether the store is that of a replica: the table is replayed before each one.
    """

    def __init__(
        self, store: MessageStore, table: ScheduleTable, clock: Clock, *, follows: bool = False
    ) -> None:
        self._store, self._table, self._clock, self._follows = store, table, clock, follows
        self._generation = store.generation
        self._written = (-1, -1)  # changes and log offset
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def run(self) -> None:
        """Write checkpoints until `stop`, and a last one."""
        pause_ms = EVERY_MS
        while not self._stop.is_set():
            await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + pause_ms)
            started_ms = self._clock.steady_ms()
            await self.persist()
            pause_ms = max(EVERY_MS, PAUSE_FACTOR * (self._clock.steady_ms() - started_ms))

    async def _replay(self, table: ScheduleTable) -> None:
        """Bring the table to the end of the log, which has nothing for it without a journal."""
        if not self._store.queue_bounds(SCHEDULES_TOPIC, JOURNAL_QUEUE)[1]:
            table.log_offset = self._store.max_offset
            return
        while True:
            if not table.replay_chunk(self._store, log.warning):
                break
            await asyncio.sleep(0)

    async def persist(self) -> None:
        """Write a checkpoint if the table or the log has changed enough."""
        store, table = self._store, self._table
        if self._follows:
            if self._generation != store.generation:  # the log was truncated
                self._table = table = load_table(store)
                self._generation = store.generation
            await self._replay(table)
        log_offset = table.log_offset if self._follows else store.max_offset
        changes, written_offset = self._written
        is_same = table.changes == changes or not table.count
        if is_same and log_offset - written_offset < (LOG_BYTES_MAX if table.count else 1 << 62):
            return
        changes, generation = table.changes, store.generation
        with table.snapshot() as snapshot:
            if not await store.wait_durable(log_offset):
                return
            try:
                await write(store.config_path(FILE_NAME), snapshot, log_offset, generation)
            except OSError as error:
                log.error("the schedules' checkpoint is not written; it is tried again: %s", error)
                return
        self._written = changes, log_offset
