"""Timer store in its own directory, without a broker.

    put -> hook -> message store -> timer log and wheel -> (due time) -> the real topic's queue

It connects message store, put hook, timer store, service and checkpoints, as a broker does for its
plugins. The directory is a RocketMQ store, which a broker can open as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from delayed_delivery.pending import Decided
from delayed_delivery.quarantine import NO_HOST
from duemq_common.clock import Clock, SystemClock
from duemq_common.config import from_properties
from message_store.config import StoreConfig
from message_store.kernels.compilation import compile_and_load
from message_store.log.batch import PutBatch
from message_store.log.properties import encode_properties
from message_store.log.record import Record
from message_store.queues.consume_queues import is_topic_name
from message_store.queues.topic_table import QUEUES_MAX
from message_store.store import MessageStore
from timer_store.checkpoint.checkpoint_writer import CheckpointWriter
from timer_store.config import TimerConfig
from timer_store.enqueue.put_hook import TimerHook
from timer_store.layout import Offsets
from timer_store.pending.lookup import PendingTimers
from timer_store.store import TimerStore

log = logging.getLogger(__name__)
READ_UNITS = 1_000
KERNELS = ("timers",)


class TimerRefused(Exception):
    """Error: a message was refused; `code` is RocketMQ's response code, the text is the reason."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class TimerDirectory:
    """Timers in one directory, opened by `open_timers`. Belongs to the event loop's thread.

    Attributes:
        store: the `MessageStore`: its topics, queues and records.
        timers: the `TimerStore`: counts, near stage, wheel (`timers.units.wheel`), forecast.
        pending_timers: Lookup by log offset, key or topic; cancel, move and fire.
    """

    def __init__(self, store: MessageStore, clock: Clock, config: TimerConfig) -> None:
        self.store, self.clock = store, clock
        self.timers = TimerStore(store, clock, config)
        self.pending_timers = PendingTimers(self.timers)
        self._hook = TimerHook(
            store.topics,
            config,
            self.timers.units.wheel.num,
            pending_of=self.timers.counts.of_topic,
        )
        self._keeper = CheckpointWriter(self.timers)
        self._failure = ""

    def _failed(self, reason: str) -> None:
        self._failure = reason

    # -- messages in ----------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        body: bytes,
        due_ms: int,
        *,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> int:
        """Schedule one message for `due_ms`; return its id, the log offset of its record.

        A message that is due already is delivered at once. Use `put_batch` for many messages.

        Args:
            due_ms: ms since 1970.
            properties: Properties of the message, for instance KEYS or UNIQ_KEY for a lookup.

        Raises:
            ValueError: The topic or the queue id is invalid.
            TimerRefused: The time is too far ahead, or the slot, the quota or the disk is full.
        """
        if not is_topic_name(topic):
            raise ValueError(f"{topic!r} is not a valid topic name")
        if not 0 <= queue_id < QUEUES_MAX:
            raise ValueError(f"queue {queue_id} is not in 0..{QUEUES_MAX - 1}")
        batch = PutBatch(1)
        batch.add(
            topic_index=self.store.topics.add(topic),
            queue_id=queue_id,
            body=body,
            properties=encode_properties({**(properties or {}), "TIMER_DELIVER_MS": str(due_ms)}),
            born_ms=self.clock.now_ms(),
            born_host=NO_HOST,
            store_host=NO_HOST,
        )
        self.put_batch(batch)
        status = int(batch.rows[0]["status"])
        if status:
            raise TimerRefused(status, batch.remarks.get(0, self.store.refusal))
        return int(batch.rows[0]["phys_offset"])

    def put_batch(self, batch: PutBatch) -> None:
        """Store messages with or without TIMER_* properties; each row of the batch has its result.

        `batch.rows["status"]` is 0 for stored messages; `batch.remarks` has reasons of refusals.
        """
        self._hook(batch, self.clock.now_ms())
        self.store.put(batch)

    async def durable(self) -> bool:
        """Wait until all put messages are on the disk; return False if the disk is too slow."""
        return await self.store.wait_durable(self.store.max_offset)

    # -- decisions ------------------------------------------------------------------------------

    def cancel(self, offsets: Offsets) -> Decided:
        """Cancel timers. Args: (n,) i8 ids, each once; returns n verdicts."""
        return self.pending_timers.cancel(np.asarray(offsets, np.int64))

    def move(self, offsets: Offsets, due_ms: Offsets) -> Decided:
        """Move timers to other due times: (n,) i8 ids, (n,) i8 ms since 1970."""
        return self.timers.decisions.move(np.asarray(offsets, np.int64), due_ms)

    def fire(self, offsets: Offsets) -> Decided:
        """Deliver timers now. Args: (n,) i8 ids."""
        return self.pending_timers.fire(np.asarray(offsets, np.int64))

    # -- messages out ---------------------------------------------------------------------------

    def delivered(
        self, topic: str, queue_id: int = 0, offset: int = 0, count_max: int = READ_UNITS
    ) -> list[Record]:
        """Return records of a queue from a queue offset on, oldest first."""
        first, end = self.store.queue_bounds(topic, queue_id)
        offset = max(offset, first)
        if offset >= end:
            return []
        units = self.store.units(topic, queue_id, offset, min(count_max, end - offset))
        return [self.store.read_record(index) for index in units["phys_offset"].tolist()]

    @property
    def pending(self) -> dict[str, int]:
        """Number of pending timers, by topic."""
        return self.timers.counts.by_topic()

    def forecast(self, from_ms: int, width_ms: int, count: int) -> Offsets:
        """Return the number of timers due in each of `count` spans of `width_ms`."""
        return self.timers.units.wheel.forecast(from_ms, width_ms, count)

    @property
    def is_idle(self) -> bool:
        """Whether all work that is possible now is done."""
        return self.timers.is_idle

    # -- running --------------------------------------------------------------------------------

    async def checkpoint(self) -> bool:
        """Write a checkpoint, from which the next start recovers."""
        return await self._keeper.persist()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        await asyncio.to_thread(compile_and_load, *KERNELS)  # before a message is acknowledged
        self.timers.open(notice=self.store.notice)
        self.store.add_dispatcher(self.timers.on_put)
        await self._keeper.persist(last=True)
        stop = asyncio.Event()
        async with self.timers.running(on_failure=self._failed):
            checkpoints = asyncio.create_task(self._checkpoints(stop), name="timer checkpoints")
            try:
                yield
            finally:
                stop.set()
                await checkpoints
        await self._keeper.persist_last()
        self.timers.close()
        if self._failure:
            raise RuntimeError(f"the timer service failed: {self._failure}")

    async def _checkpoints(self, stop: asyncio.Event) -> None:
        step_ms = self.timers.config.flush_interval_ms
        while not stop.is_set():
            await self.clock.wait(stop, until_ms=self.clock.now_ms() + step_ms)
            await self._keeper.persist()


@asynccontextmanager
async def open_timers(
    directory: Path | str,
    *,
    clock: Clock | None = None,
    properties: Mapping[str, str] | None = None,
    notice: Callable[[str], None] = log.warning,
) -> AsyncIterator[TimerDirectory]:
    """Open a directory, recover, and deliver at the due millisecond while the block is open.

    Args:
        clock: Clock of the timers; the machine's clock by default.
        properties: Keys of broker.conf, as text: `flushDiskType`, `timerMaxDelaySec`, ...
        notice: Called with a line for the operator.

    Raises:
        ConfigError: A property is invalid.
        StoreLocked, StoreFull, CorruptStore: The directory cannot be opened.
        RuntimeError: On exit: delivery had stopped; nothing is lost, open it again.
    """
    clock = clock or SystemClock()
    given: dict[str, Any] = {**(properties or {}), "storePathRootDir": str(directory)}
    config = from_properties(TimerConfig, given)
    store_config = from_properties(StoreConfig, given)
    with MessageStore(store_config, clock, notice=notice) as store:
        opened = TimerDirectory(store, clock, config)
        async with opened._running():
            yield opened
