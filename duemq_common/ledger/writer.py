"""Writer of a broker's ledger; faults of the ledger neither stop nor delay the broker.

    write(records) --> queue, one record per key --one thread--> Worker.write: one transaction
                         |  full: samples are dropped first, then the oldest records
                         +-- error: the records stay queued, the next try is in 5 s

The ledger is opened with the first record. Each time it is opened, at the start and after an error,
it is first rebuilt from the log, which replaces dropped records and fills new files. A ledger of
another store or of a later version is refused and left unchanged: `opened` raises, so no migration
starts; running migrations continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVarTuple

from duemq_common.clock import Clock
from duemq_common.ledger.errors import LedgerError, LedgerNewer, LedgerOfAnotherStore
from duemq_common.ledger.location import shown_url
from duemq_common.ledger.records import LedgerRecord, LogSnapshot
from duemq_common.ledger.worker import Worker

log = logging.getLogger(__name__)
PENDING_MAX: Final = 10_000
BATCH_RECORDS_MAX: Final = 1_000
LINGER_MS: Final = 1_000
"""Time, in ms, during which records are collected before they are written."""
RETRY_MS: Final = 5_000
STOP_S: Final = 1.0
"""Maximum time, in s, for which a stop, or a change of role, waits for the last records."""
_Arguments = TypeVarTuple("_Arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """State of the ledger.

    Attributes:
        trouble: Current error, "" without one.
        since_ms: Time of the last change of `trouble`, in ms since the epoch.
        pending: Number of records not yet written.
        dropped: Number of records dropped from the full queue; the next rebuild restores them.
    """

    trouble: str = ""
    since_ms: int = 0
    pending: int = 0
    dropped: int = 0


class LedgerWriter:
    """Queue of records and the task that writes them. Belongs to the event loop's thread.

    Args:
        snapshot: Returns the records in the log; called before the ledger is opened.
        refusal: Reason why the ledger cannot be used at all, or empty.
    Attributes:
        where: URL for messages, without the password.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        clock: Clock,
        snapshot: Callable[[], LogSnapshot],
        pending_max: int = PENDING_MAX,
        refusal: str = "",
    ) -> None:
        self._worker, self._clock, self._snapshot = worker, clock, snapshot
        self.where = shown_url(worker.place.url)
        self._pending: dict[tuple[object, ...], LedgerRecord] = {}
        self._pending_max = pending_max
        self._refused = LedgerError(self.where, refusal, "") if refusal else None
        self._is_open = False
        self._incomplete = False  # a record that is also in the log was dropped
        self._needed, self._tried = asyncio.Event(), asyncio.Event()
        self._stop = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._trouble, self._since_ms, self._dropped = refusal, clock.now_ms(), 0
        self._limit: asyncio.TimerHandle | None = None

    @property
    def health(self) -> Health:
        """Current state of the ledger."""
        return Health(
            trouble=self._trouble,
            since_ms=self._since_ms,
            pending=len(self._pending),
            dropped=self._dropped,
        )

    def write(self, *records: LedgerRecord) -> None:
        """Queue records; return at once, in any state of the ledger."""
        if self._refused is not None:
            return
        for record in records:
            old = self._pending.pop(record.identity, None)  # the newer record is written last
            if len(self._pending) >= self._pending_max:
                self._drop_one()
            self._pending[record.identity] = record if old is None else record.replacing(old)
        if records:
            self._needed.set()

    async def opened(self) -> None:
        """Open the ledger, unless it was tried before.

        Raises:
            LedgerError: It belongs to another store, or a later DueMQ wrote it.
        """
        if self._refused is None:
            self._needed.set()
            await self._tried.wait()
        if self._refused is not None:
            reason, remedy = self._refused.why, self._refused.remedy
            next_step = f"{remedy}. Nothing was started" if remedy else "Nothing was started"
            raise LedgerError(self.where, reason, next_step) from self._refused

    def stop(self) -> None:
        """Make `run` write the queued records once and return, within `STOP_S`.

        What is not written then is in the log, except samples.
        """
        self._stop.set()
        self._needed.set()
        self._limit = asyncio.get_running_loop().call_later(STOP_S, self._worker.break_off)

    async def run(self) -> None:
        """Open the ledger when it is needed, and write it until `stop`."""
        await self._needed.wait()
        if self._refused is not None or (self._stop.is_set() and not self._pending):
            self._tried.set()
            return
        try:
            await self._open_first()
            stopping = self._refused is not None
            while not stopping:
                await self._next_turn()
                stopping = self._stop.is_set()  # the flush below includes the last records
                await self.flush()
        finally:
            await self._in_thread(self._worker.end)
            self._thread.shutdown(wait=False)
            if self._limit is not None:
                self._limit.cancel()

    async def _open_first(self) -> None:
        try:
            await self._open()
        except (LedgerOfAnotherStore, LedgerNewer) as error:
            log.error("%s. Work continues without it.", error)
            self._refused, self._trouble = error, str(error)
        except LedgerError as error:
            self._report(error)
        self._tried.set()

    async def _next_turn(self) -> None:
        """Wait for a record and others that follow it, or after an error for the next attempt."""
        if not (self._trouble or self._stop.is_set()):
            await self._needed.wait()
        pause_ms = RETRY_MS if self._trouble else LINGER_MS
        await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + pause_ms)

    async def flush(self) -> bool:
        """Write the queued records; return whether the ledger accepted all of them."""
        try:
            if not self._is_open or self._incomplete:
                await self._open()
            while self._pending:
                await self._write_batch()
        except LedgerError as error:
            self._report(error)
            self._is_open = False
            await self._in_thread(self._worker.close)
            return False
        if not self._stop.is_set():
            self._needed.clear()
        if self._trouble:
            log.info("ledger %s is written again", self.where)
            self._trouble, self._since_ms = "", self._clock.now_ms()
        return True

    async def _open(self) -> None:
        self._incomplete = self._is_open = False
        await self._in_thread(self._worker.open, self._snapshot(), self._clock.now_ms())
        self._is_open = True

    async def _write_batch(self) -> None:
        batch = dict(list(self._pending.items())[:BATCH_RECORDS_MAX])
        try:
            await self._in_thread(self._worker.write, list(batch.values()))
        except LedgerError as error:
            if type(error) is not LedgerError:
                raise
            log.error("%s: %d records are dropped", error, len(batch))
            self._dropped += len(batch)
        for key, record in batch.items():
            if self._pending.get(key) is record:  # no newer record was queued during the write
                del self._pending[key]

    async def _in_thread(
        self, function: Callable[[*_Arguments], None], *arguments: *_Arguments
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    def _drop_one(self) -> None:
        expendable = (key for key, record in self._pending.items() if record.EXPENDABLE)
        dropped = self._pending.pop(next(expendable, next(iter(self._pending))))
        self._incomplete |= not dropped.EXPENDABLE
        self._dropped += 1

    def _report(self, error: LedgerError) -> None:
        if self._trouble != str(error):
            log.warning("%s", error)
        if not self._trouble:
            self._since_ms = self._clock.now_ms()
        self._trouble = str(error)
