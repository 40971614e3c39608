"""Writer of a ledger; faults of the ledger neither stop nor delay the broker.

    write(records) --> queue, one record per key --daemon thread--> Ledger.write: one transaction
                         |  full: samples are dropped first, then the oldest records
                         +-- error: the records stay queued, the next try is in 5 s

The ledger is opened with the first record. Each time it is opened, at the start and after an error,
it is first rebuilt from the log, which replaces dropped records and fills new files. A ledger of
another store or of a later version is refused and left unchanged: `opened` raises, so no migration
starts; running migrations continue.

One thread runs the calls, one at a time; the event loop does not wait for a thread to start before
each call. A stop abandons a call that hangs: the thread is not joined, not even at the end of the
process, and the log has its records.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVarTuple

from msgspec import Struct

from duemq_common.clock import Clock
from duemq_common.ledger.errors import (
    LedgerError,
    LedgerNewer,
    LedgerOfAnotherStore,
    LedgerUnavailable,
)
from duemq_common.ledger.location import LedgerLocation, shown_url
from duemq_common.ledger.records import LedgerRecord, LogSnapshot

if TYPE_CHECKING:
    from duemq_common.ledger.ledger import Ledger

log = logging.getLogger(__name__)
PENDING_MAX: Final = 10_000
BATCH_RECORDS_MAX: Final = 1_000
LINGER_MS: Final = 1_000
"""Time, in ms, during which records are collected before they are written."""
RETRY_MS: Final = 5_000
RESPONSE_S: Final = 60.0
"""Time, in s, after which a call that has not returned is reported."""
_Arguments = TypeVarTuple("_Arguments")


class Health(Struct, frozen=True, kw_only=True):
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
        location: LedgerLocation,
        *,
        clock: Clock,
        snapshot: Callable[[], LogSnapshot],
        pending_max: int = PENDING_MAX,
        refusal: str = "",
    ) -> None:
        self._location, self._clock, self._snapshot = location, clock, snapshot
        self.where = shown_url(location.url)
        self._pending: dict[tuple[object, ...], LedgerRecord] = {}
        self._pending_max = pending_max
        self._refused = LedgerError(self.where, refusal, "") if refusal else None
        self._ledger: Ledger | None = None
        self._incomplete = False  # a record that is also in the log was dropped
        self._needed, self._tried = asyncio.Event(), asyncio.Event()
        self._stop = asyncio.Event()
        self._call: asyncio.Future[None] | None = None
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None ends the thread
        self._has_thread = self._is_abandoned = False
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
            reason, remedy = self._refused.reason, self._refused.remedy
            next_step = f"{remedy}. Nothing was started" if remedy else "Nothing was started"
            raise LedgerError(self.where, reason, next_step) from self._refused

    def stop(self, within_s: float) -> None:
        """Make `run` write the queued records once and return.

        What is not written then is in the log, except samples.

        Args:
            within_s: Time, in s, after which `run` abandons a call that hangs.
        """
        self._stop.set()
        self._needed.set()
        self._limit = asyncio.get_running_loop().call_later(within_s, self._abandon)

    async def run(self) -> None:
        """Open the ledger when it is needed, and write it until `stop`."""
        try:
            await self._needed.wait()
            if self._refused is None and (self._pending or not self._stop.is_set()):
                await self._write_until_stop()
            else:
                self._tried.set()
        finally:
            if self._limit is not None:
                self._limit.cancel()
            self._calls.put(None)

    async def _write_until_stop(self) -> None:
        await self._open_first()
        stopping = self._refused is not None
        while not stopping:
            await self._next_turn()
            stopping = self._stop.is_set()  # the flush below includes the last records
            await self.flush()

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
            if self._ledger is None or self._incomplete:
                await self._open()
            while self._pending:
                await self._write_batch()
        except LedgerError as error:
            self._report(error)
            self._ledger = None
            return False
        if not self._stop.is_set():
            self._needed.clear()
        if self._trouble:
            log.info("ledger %s is written again", self.where)
            self._trouble, self._since_ms = "", self._clock.now_ms()
        return True

    async def _open(self) -> None:
        self._incomplete, self._ledger = False, None
        await self._in_thread(self._open_rebuilt, self._snapshot(), self._clock.now_ms())

    def _open_rebuilt(self, snapshot: LogSnapshot, now_ms: int) -> None:
        """Open the ledger, creating or upgrading it if necessary, and rebuild it from the log."""
        ledger = _load().open(self._location, now_ms=now_ms)
        ledger.rebuild(snapshot)
        self._ledger = ledger

    async def _write_batch(self) -> None:
        batch = dict(list(self._pending.items())[:BATCH_RECORDS_MAX])
        try:
            await self._in_thread(self._write_now, list(batch.values()))
        except LedgerError as error:
            if type(error) is not LedgerError:
                raise
            log.error("%s: %d records are dropped", error, len(batch))
            self._dropped += len(batch)
        for key, record in batch.items():
            if self._pending.get(key) is record:  # no newer record was queued during the write
                del self._pending[key]

    def _write_now(self, records: Sequence[LedgerRecord]) -> None:
        assert self._ledger is not None, "it is open"
        self._ledger.write(records)

    async def _in_thread(
        self, function: Callable[[*_Arguments], None], *arguments: *_Arguments
    ) -> None:
        """Call a function in a thread; return, at the latest, when a stop abandons the call.

        Raises:
            LedgerError: The call failed or was abandoned.
        """
        if self._is_abandoned:
            raise self._abandonment()
        loop = asyncio.get_running_loop()
        self._call = call = loop.create_future()

        def run() -> None:
            error: LedgerError | None = None
            try:
                function(*arguments)
            except LedgerError as failure:
                error = failure
            except Exception as failure:  # a fault of a ledger must not stop the broker
                reason = f"{type(failure).__name__}: {failure}"
                error = LedgerError(self.where, reason, "Please report this")
            with suppress(RuntimeError):  # the loop of an abandoned call is closed
                loop.call_soon_threadsafe(_settle, call, error)

        self._start_thread()
        self._calls.put(run)
        report = loop.call_later(RESPONSE_S, self._report, self._silence())
        try:
            await call
        finally:
            report.cancel()

    def _start_thread(self) -> None:
        if self._has_thread:
            return
        try:
            Thread(target=self._run_calls, name="ledger", daemon=True).start()
        except RuntimeError as error:
            reason = f"no thread can be started to write it ({error})"
            raise LedgerUnavailable(self.where, reason, "The broker tries again") from error
        self._has_thread = True

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _abandon(self) -> None:
        self._is_abandoned = True
        if self._call is not None:
            _settle(self._call, self._abandonment())

    def _abandonment(self) -> LedgerUnavailable:
        reason = "the broker stops, or changes its role, and does not wait for it"
        return LedgerUnavailable(self.where, reason, "The log has what it lacks")

    def _silence(self) -> LedgerUnavailable:
        reason = f"it has not responded for {RESPONSE_S:.0f} s"
        return LedgerUnavailable(self.where, reason, "Work continues without it")

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


def _settle(call: asyncio.Future[None], error: LedgerError | None) -> None:
    if call.done():  # abandoned
        return
    if error is None:
        call.set_result(None)
    else:
        call.set_exception(error)


def _load() -> type[Ledger]:
    """Load SQLAlchemy and Alembic without collections, which would stop the event loop."""
    is_loaded, was_enabled = "duemq_common.ledger.ledger" in sys.modules, gc.isenabled()
    gc.disable()
    try:
        from duemq_common.ledger.ledger import Ledger

        if not is_loaded:
            gc.freeze()  # a later collection does not visit the modules
    finally:
        if was_enabled:
            gc.enable()
    return Ledger
