"""Checkpoints of a replica's timers, so that its promotion has little to replay.

A replica copies the log, and its timers are a projection of the log: enqueued from the queue,
settled by origins. Every few seconds they are brought to the end of the log by the recovery of a
start, timers in slots that have passed are rolled, a checkpoint is written, and the files are
closed again. A promotion is therefore a start from a checkpoint of a few seconds ago, and uses the
same recovery as any other start. Without the rolls, a promotion after weeks would roll each timer
through each window of these weeks.

Nothing is delivered, and nothing is appended: the store of a replica takes no messages. While the
queue has a record that its master has not yet put into quarantine, the last checkpoint stays.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from duemq_common.clock import Clock
from duemq_common.errors import StoreError
from message_store.kernels import registry
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.store import TimerStore

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
EVERY_MS: Final = 10_000
PAUSE_FACTOR: Final = 50  # a pause is at least this many times as long as the work before it
LOADED_MAX: Final = 16_384  # timers of passed slots, which the master delivers soon
KERNELS: Final = "timers"


class Standby:
    """Task that writes checkpoints while the store copies a master's log.

    Attributes:
        written: Number of checkpoints.
    """

    def __init__(self, store: MessageStore, clock: Clock, config: TimerConfig) -> None:
        self._store, self._clock = store, clock
        self._config = replace(config, stage_records_max=min(config.stage_records_max, LOADED_MAX))
        self._stop = asyncio.Event()
        self._log_end = -1  # of the last checkpoint
        self._is_useless = False
        self._preparing: asyncio.Task[bool] | None = None
        self.written = 0

    def stop(self) -> None:
        """Make `run` return, after the checkpoint in progress if one is being written."""
        self._stop.set()
        if self._preparing is not None:
            self._preparing.cancel()

    async def run(self) -> None:
        """Write checkpoints until `stop`; after a failure, end: a promotion then takes longer."""
        pause_ms = EVERY_MS
        while not self._is_useless:
            await self._clock.wait(self._stop, until_ms=self._clock.now_ms() + pause_ms)
            if self._stop.is_set():
                return
            began_ms = self._clock.now_ms()
            try:
                await self.refresh()
            except (StoreError, OSError) as error:
                log.error("timers of this replica are recovered when it is promoted: %s", error)
                return
            pause_ms = max(EVERY_MS, PAUSE_FACTOR * (self._clock.now_ms() - began_ms))

    async def refresh(self) -> bool:
        """Write a checkpoint of the log as it is now; return whether it is on the disk.

        Raises:
            StoreError: The timers' files cannot be part of this store.
            OSError: The disk refused a write.
        """
        store = self._store
        if store.max_offset == self._log_end:
            return False
        if not await self._is_prepared():
            return False
        log_end = store.max_offset
        timers = TimerStore(store, self._clock, self._config)
        try:
            timers.open(notice=self._on_notice)
            timers.dequeue.load(self._clock.now_ms())  # no await: the log must not grow meanwhile
            done = await CheckpointWriter(timers).persist()
        finally:
            timers.close()
        if done:
            self._log_end = log_end
            self.written += 1
        return done

    async def _is_prepared(self) -> bool:
        """Wait for kernels and disk; return False at once if `stop` is called.

        On a busy machine, kernels are loaded in half a minute, without a master meanwhile.
        """
        self._preparing = asyncio.create_task(self._prepare(), name="kernels of timers")
        try:
            return await self._preparing
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            return False
        finally:
            self._preparing = None

    async def _prepare(self) -> bool:
        """Load the kernels and sync the log, which the recovery would sync in this thread."""
        await asyncio.to_thread(registry.load, KERNELS)
        return await self._store.wait_durable(self._store.max_offset)

    def _on_notice(self, text: str) -> None:
        """Log a line of the recovery; end after the second rebuild: the master is Apache's.

        Its deliveries name no origins, so its next delivery invalidates the checkpoint.
        """
        log.info("timers of this replica: %s", text)
        self._is_useless = self.written > 0
