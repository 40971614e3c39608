"""Orderly pops: their stored table, and the resumption of long polls at blocked queues.

The file may be newer than the log, which can lose its end in a power cut or by a truncation. Lost
messages are removed from the pops: other messages get their queue offsets, and a late
acknowledgement would move the consumer offset past them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from duemq.pop.order_info import FILE_NAME, OrderTable
from duemq.pop.pop_offsets import GroupQueue
from duemq.pull.long_polls import LongPolls
from duemq.registry.config_file import ConfigFile
from duemq.registry.groups import GroupManager
from duemq.registry.topics import TopicManager
from duemq_common.clock import Clock, Signal

if TYPE_CHECKING:
    from message_store.store import MessageStore

log = logging.getLogger(__name__)
STALE_MAX: Final = 64  # heap entries with an outdated time
SAVE_MS: Final = 5_000  # flushConsumerOffsetInterval


class Orderly:
    """Order infos of one broker. A context manager: its task resumes pops and writes the file.

    Attributes:
        table: Order infos by queue.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        long_polls: LongPolls,
        clock: Clock,
    ) -> None:
        self._store, self._long_polls, self._clock = store, long_polls, clock
        self.table = OrderTable(
            ConfigFile(store.config_path(FILE_NAME)),
            lambda topic, group: topics.find(topic) is not None and groups.find(group) is not None,
        )
        self._free_ms: dict[GroupQueue, int] = {}  # end of the block, by blocked queue
        self._times: list[tuple[int, int, GroupQueue]] = []  # heap of (free time, serial, queue)
        self._serial = 0
        self._wake = Signal()
        self._stopping = False
        self._save_ms = 0

    def changed(self, queue: GroupQueue) -> None:
        """Resume pops of a queue when it is no longer blocked: now, or at its current free time."""
        now_ms = self._clock.now_ms()
        free_ms = self.table.free_ms(queue, now_ms)
        if free_ms <= now_ms:
            self._free_ms.pop(queue, None)
            self._continue(queue)
        elif self._free_ms.get(queue) != free_ms:
            self._free_ms[queue] = free_ms
            self._push(free_ms, queue)
            if len(self._times) > 2 * len(self._free_ms) + STALE_MAX:
                self._times.clear()
                for each, time_ms in self._free_ms.items():
                    self._push(time_ms, each)
            self._wake.set()

    def _push(self, free_ms: int, queue: GroupQueue) -> None:
        self._serial += 1
        heapq.heappush(self._times, (free_ms, self._serial, queue))

    def _continue(self, queue: GroupQueue) -> None:
        table = self._store.topics
        self._long_polls.resume_slot(
            table.slot(table.add(queue.topic), queue.queue_id, create=True)
        )

    def recover(self) -> None:
        """Load the file, without lost messages; call it before the first append."""
        self.table.load()
        truncations = self._store.truncations
        end = self._store.unchanged_end(truncations.followed(FILE_NAME))
        self.table.fit(lambda queue: self._store.queue_end_before(queue.topic, queue.queue_id, end))
        if truncations.followed(FILE_NAME) == truncations.generation:
            return
        try:
            self.table.rewrite()
            truncations.follow(FILE_NAME)
        except OSError as error:
            log.error("the next start compares the order infos with the log again: %s", error)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the task; on leaving, write the file."""
        self._resume_all()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run(), name="orderly pops")
            try:
                yield
            finally:
                self._stopping = True
                self._wake.set()
        await self._save()

    def _resume_all(self) -> None:
        """Resume pops of the queues that are not blocked, after a start or a step of the clock."""
        for group_queue, _ in list(self.table.group_queues()):
            self.changed(group_queue)

    async def forget_topic(self, topic: str) -> None:
        """Remove the last pops of a deleted topic, also from the file.

        A topic that is created again with the same name would be blocked by them after a kill.
        """
        self.table.forget_topic(topic)
        await self._save()

    async def run(self) -> None:
        """Resume pops when their queues are not blocked, and write the file, until stopped."""
        now_ms = 0
        while not self._stopping:
            self._wake.clear()
            before_ms, now_ms = now_ms, self._clock.now_ms()
            if now_ms < before_ms:  # the clock was set back
                self._resume_all()
            if not now_ms < self._save_ms <= now_ms + SAVE_MS:  # time to save, or the clock was set
                self._save_ms = now_ms + SAVE_MS
                self.table.clean(now_ms)
                await self._save()
            while self._times and self._times[0][0] <= now_ms:
                free_ms, _, group_queue = heapq.heappop(self._times)
                if self._free_ms.get(group_queue) == free_ms:
                    del self._free_ms[group_queue]
                    self._continue(group_queue)
            until_ms = min(self._save_ms, self._times[0][0] if self._times else self._save_ms)
            await self._clock.wait(self._wake, until_ms=until_ms)

    async def _save(self) -> None:
        try:
            await self.table.save()
        except OSError as error:
            log.error("order infos of the last seconds are not on disk: %s", error)
