"""Writer of delayOffset.json: at an interval and at shutdown, never ahead of the disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec.structs import replace

from duemq_common.clock import Clock
from duemq_common.json_dialect import write_config
from message_store.store import MessageStore
from schedule_service.delivery import LevelService
from schedule_service.recovery import OFFSETS_FILE, Saved, encode_saved, saved_of

log = logging.getLogger(__name__)


class DelayOffsetWriter:
    """Writer of one store's delayOffset.json.

    It is created after recovery, so that nothing is written before the table is loaded.

    Args:
        saved: Table that recovery started from.
    Attributes:
        durable: Level to queue offset: every delivery before it is on the disk.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        service: LevelService,
        saved: Saved,
        *,
        version_step: int,
    ) -> None:
        self._store, self._clock, self._service = store, clock, service
        self._saved, self._version_step = saved, version_step
        self._path = store.config_path(OFFSETS_FILE)
        self._written: Saved | None = None
        self.durable: Mapping[int, int] = saved.offsets
        self._one_at_a_time = asyncio.Lock()
        self._first_counter = saved.counter

    def current(self) -> Saved:
        """Return the current table with its data version."""
        cursors = [level.cursor for level in self._service.levels.values()]
        now = saved_of(
            cursors,
            self._store.max_offset,
            self._saved,
            self._service.transfers.floors,
            generation=self._store.generation,
            last_record=self._store.record_identity(self._store.last_record),
        )
        delivered = sum(level.stats.delivered for level in self._service.levels.values())
        counter = self._first_counter + delivered // self._version_step
        if counter != self._saved.counter:
            now = replace(now, counter=counter, timestamp_ms=self._clock.now_ms())
        self._saved = now
        return now

    async def persist(self) -> bool:
        """Write the current table after the log that it describes is synced.

        Returns False if the disk did not sync in time; the next call tries again. Also returns
        False after a failure of the service: a table of its cursors would be ahead of deliveries
        that it lacks, and the next start finds these in the log after the last table.
        """
        async with self._one_at_a_time:
            if self._service.has_failed:
                return False
            now = self.current()
            if now == self._written:
                return True
            assert now.log_offset is not None
            if not await self._store.wait_durable(now.log_offset):
                log.warning("%s is not written: the log is not on the disk yet", self._path)
                return False
            self.durable = now.offsets
            try:
                await asyncio.to_thread(write_config, self._path, encode_saved(now))
            except OSError as error:
                log.warning("%s is not written: %s; it is tried again", self._path, error)
                return False
            self._written = now
            return True

    def text(self) -> str:
        """Return the table for a replica (request 45); Apache's replicas ignore DueMQ's members."""
        return encode_saved(self.current())
