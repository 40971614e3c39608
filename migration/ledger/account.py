"""Ledger of a running broker, opened with the first record; no migration waits for it.

A task of its own holds it: it opens when the first record comes, or at the start when there were
migrations before. One that belongs to another store, or that a later DueMQ wrote, is left alone and
told of: nothing new is started then, and what is under way goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from message_store.clock import Clock
from message_store.ledger.defaults import shown_text
from message_store.ledger.errors import LedgerError
from migration.ledger.process import AnyLedgerWorker, LedgerPlace, LedgerWorker
from migration.ledger.records import Fold, Record
from migration.ledger.writer import Health, LedgerWriter

log = logging.getLogger(__name__)


class Account:
    """Tells one ledger. Belongs to the event loop's thread.

    Args:
        worker: creates the holder of the ledger: `LedgerWorker`, or `LedgerProcess` in a broker.
    Attributes:
        refusal: why the ledger cannot be used at all, empty if it can.
    """

    def __init__(
        self,
        place: LedgerPlace,
        *,
        clock: Clock,
        fold: Callable[[], Fold],
        worker: Callable[[LedgerPlace], AnyLedgerWorker] = LedgerWorker,
    ) -> None:
        self.place, self._clock, self._fold, self._worker = place, clock, fold, worker
        self.refusal = ""
        self._wanted, self._looked, self._stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._writer: LedgerWriter | None = None

    def tell(self, *records: Record) -> None:
        """Have records written soon; never waits, never fails."""
        if not records or self.refusal:
            return
        self._hold().note(*records)
        self._wanted.set()

    async def opened(self) -> None:
        """Have it opened.

        Raises:
            LedgerError: It is not this store's, or of a later version.
        """
        if not self.refusal:
            self._hold()
            self._wanted.set()
            await self._looked.wait()
        if self.refusal:
            raise LedgerError(self.place.url, self.refusal, "Nothing was started")

    def _hold(self) -> LedgerWriter:
        if self._writer is None:
            worker = self._worker(self.place)
            self._writer = LedgerWriter(
                self.place, clock=self._clock, fold=self._fold, worker=worker
            )
        return self._writer

    @property
    def shown_url(self) -> str:
        """The ledger's URL without a password."""
        return shown_text(self.place.url)

    @property
    def health(self) -> Health:
        """How the ledger is."""
        if self.refusal or self._writer is None:
            return Health(trouble=self.refusal)
        return self._writer.health

    def stop(self) -> None:
        """Have `run` write what waits, and return."""
        self._stop.set()
        self._wanted.set()

    async def run(self) -> None:
        """Hold the ledger until `stop`."""
        await self._wanted.wait()
        if self._writer is None:
            return
        try:
            async with self._writer.running():
                self._looked.set()
                await self._stop.wait()
        except LedgerError as error:
            self.refusal = str(error)
            log.error("%s The migration goes on without it.", error)
            self._looked.set()
