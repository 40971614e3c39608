"""Asynchronous ledger writer. Errors of the ledger never stop or slow down a migration.

    note(records) --> pending, one per key --one thread--> LedgerWorker.write: one transaction
                          |  full: samples are dropped first, then the oldest records
                          +-- error: kept, tried again later

Every time the ledger is opened, at the start and after trouble, it is first rebuilt from the fold
of the marks: so it does not matter what was dropped, or whether the file is a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from message_store.clock import Clock
from message_store.ledger.defaults import shown_text
from message_store.ledger.errors import LedgerError, LedgerNewer, LedgerOfAnotherStore
from migration.ledger.process import AnyLedgerWorker, LedgerPlace, LedgerWorker
from migration.ledger.records import (
    EventRecord,
    Fold,
    LevelRecord,
    MigrationRecord,
    Record,
    SampleRecord,
    VerificationRecord,
    renewed,
)

log = logging.getLogger(__name__)
WAITING_MAX: Final = 10_000
BATCH_RECORDS_MAX: Final = 1_000
LINGER_MS: Final = 1_000
"""How long a record waits for others before it is written."""
RETRY_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the ledger is.

    Attributes:
        trouble: what is wrong, "" if nothing is.
        since_ms: since when it is so.
        waiting: records not yet written.
        dropped: records that found no room; those of marks come again with the next rebuild.
    """

    trouble: str = ""
    since_ms: int = 0
    waiting: int = 0
    dropped: int = 0


class LedgerWriter:
    """Takes records on the event loop and has them written in a thread of its own.

    Args:
        fold: returns what the log says; called on the event loop, before the ledger is opened.
        worker: holder of the ledger; default: this process.
    """

    def __init__(
        self,
        place: LedgerPlace,
        *,
        clock: Clock,
        fold: Callable[[], Fold],
        worker: AnyLedgerWorker | None = None,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._where, self._clock, self._fold = shown_text(place.url), clock, fold
        self._worker: AnyLedgerWorker = worker or LedgerWorker(place)
        self._waiting_max = waiting_max
        self._waiting: dict[Hashable, Record] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._is_open = False
        self._incomplete = False  # something was dropped that the fold knows
        self._due, self._stop = asyncio.Event(), asyncio.Event()
        self._trouble, self._since_ms, self._dropped = "", clock.now_ms(), 0

    @property
    def health(self) -> Health:
        """How the ledger is now."""
        return Health(
            trouble=self._trouble,
            since_ms=self._since_ms,
            waiting=len(self._waiting),
            dropped=self._dropped,
        )

    def note(self, *records: Record) -> None:
        """Have records written soon; never waits, never fails."""
        for record in records:
            key = key_of(record)
            before = self._waiting.pop(key, None)  # what is newer is written last
            if len(self._waiting) >= self._waiting_max:
                self._drop_one()
            self._waiting[key] = record if before is None else renewed(before, record)
        if self._waiting:
            self._due.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Open the ledger and write while the block is open; leaving writes what waits, once.

        Raises:
            LedgerOfAnotherStore: It belongs to another store.
            LedgerNewer: A later DueMQ wrote it.
        """
        try:
            await self._refuse_or_open()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run(), name="ledger")
                try:
                    yield self
                finally:
                    self._stop.set()
                    self._due.set()
        finally:
            await self._in_thread(self._worker.end)
            self._thread.shutdown(wait=False)

    async def _refuse_or_open(self) -> None:
        try:
            await self._open()
        except (LedgerOfAnotherStore, LedgerNewer):
            raise
        except LedgerError as error:
            self._say(error)

    async def _run(self) -> None:
        stopping = False
        while not stopping:
            if not (self._trouble or self._stop.is_set()):  # a flush may have cleared the stop's
                await self._due.wait()
            pause_ms = RETRY_MS if self._trouble else LINGER_MS
            await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + pause_ms)
            stopping = self._stop.is_set()
            await self.flush()

    async def flush(self) -> bool:
        """Write what waits; return whether the ledger took all of it."""
        try:
            if not self._is_open or self._incomplete:
                await self._open()
            while self._waiting:
                await self._write_some()
        except LedgerError as error:
            self._say(error)
            await self._close()
            return False
        self._due.clear()
        self._well()
        return True

    async def _open(self) -> None:
        self._incomplete = self._is_open = False
        await self._in_thread(self._worker.open, self._fold(), self._clock.now_ms())
        self._is_open = True

    async def _write_some(self) -> None:
        batch = dict(list(self._waiting.items())[:BATCH_RECORDS_MAX])
        try:
            await self._in_thread(self._worker.write, list(batch.values()))
        except LedgerError as error:
            if type(error) is not LedgerError:
                raise
            log.error("%s: %d records are left out", error, len(batch))
            self._dropped += len(batch)
        for key, record in batch.items():
            if self._waiting.get(key) is record:  # none newer came meanwhile
                del self._waiting[key]

    async def _close(self) -> None:
        self._is_open = False
        await self._in_thread(self._worker.close)

    async def _in_thread(self, function: Callable[..., None], *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _drop_one(self) -> None:
        samples = (key for key, item in self._waiting.items() if isinstance(item, SampleRecord))
        dropped = self._waiting.pop(next(samples, next(iter(self._waiting))))
        self._incomplete |= not isinstance(dropped, SampleRecord)
        self._dropped += 1

    def _say(self, error: LedgerError) -> None:
        if self._trouble != str(error):
            log.warning("%s", error)
        if not self._trouble:
            self._since_ms = self._clock.now_ms()
        self._trouble = str(error)

    def _well(self) -> None:
        if self._trouble:
            log.info("ledger %s is written again", self._where)
            self._trouble, self._since_ms = "", self._clock.now_ms()


def key_of(record: Record) -> Hashable:
    """Return what tells a record from others; a later one with the same key replaces it."""
    match record:
        case MigrationRecord():
            return "migration", record.migration_id
        case LevelRecord():
            return "level", record.migration_id, record.level
        case EventRecord():
            return "event", record.key
        case VerificationRecord():
            return "verification", record.migration_id, record.level, record.at_ms
        case SampleRecord():
            return "sample", record.migration_id, record.at_ms
    return "plan", record.plan_id
