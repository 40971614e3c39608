"""Process queue: messages of one queue that are pulled and not handled yet.

pull --> backlog --> handler --> done
          `------ pending ------'      the lowest pending offset is committed
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from duemq.client.filters import Filter
from duemq.client.message import MessageQueue, ReceivedMessage
from duemq.client.subscriptions import ConsumerSettings, TopicSubscription


class ProcessQueue:
    """Progress of one assigned queue. ProcessQueue

    Args:
        subscription: Subscription of the topic; None: a retry topic, whose messages name theirs.
        next_offset: Offset of the first pull.
        committed: Committed offset; None: there is none.
    Attributes:
        backlog: Messages that no handler has got.
        pending: Size in bytes by offset of all messages that are not handled, in order.
        stopped: Whether the queue is not pulled any more, and no handler starts.
        dropped: Whether messages that are handled no longer count.
        running: Number of handlers that run.
        locked_until_s: Loop time at which the lock of the queue expires.
        suspended: Whether an ordered message is to be retried first, after a delay.
        is_ready: Whether the queue is among the ready ones of the handlers.
        broker_id: Member of the broker group to pull from.
    """

    def __init__(
        self,
        queue: MessageQueue,
        subscription: TopicSubscription | None,
        next_offset: int,
        committed: int | None,
    ) -> None:
        self.queue, self.subscription = queue, subscription
        self.next_offset, self.committed = next_offset, committed
        self.backlog: deque[ReceivedMessage] = deque()
        self.pending: dict[int, int] = {}
        self.pending_bytes = 0
        self.stopped = self.dropped = False
        self.running = 0
        self.locked_until_s = float("inf")
        self.is_ready = self.suspended = False
        self.broker_id = 0
        self.failure = ""
        self.pulling: asyncio.Task[object] | None = None
        self._room: asyncio.Future[None] | None = None
        self._idle: asyncio.Event | None = None  # there is one while `idle` waits

    @property
    def only(self) -> Filter:
        """Filter of the messages; all of a retry topic."""
        return self.subscription.only if self.subscription is not None else Filter()

    def lowest(self) -> int:
        """Return the lowest offset that is not handled: the one to commit."""
        return next(iter(self.pending), self.next_offset)

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> int:
        """Add pulled messages; return their size in bytes."""
        sizes = {each.record.queue_offset: each.record.total_size for each in messages}
        self.pending.update(sizes)
        self.backlog.extend(messages)
        self.next_offset = next_offset
        size = sum(sizes.values())
        self.pending_bytes += size
        return size

    def done(self, offset: int) -> int:
        """Remove a handled message; return its size in bytes."""
        size = self.pending.pop(offset, 0)
        self.pending_bytes -= size
        return size

    def ended(self) -> None:
        """Note the end of a handler."""
        self.running -= 1
        if self._idle is not None and not self.running:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no handler runs."""
        while self.running:
            self._idle = self._idle or asyncio.Event()
            self._idle.clear()
            await self._idle.wait()

    def stop(self) -> None:
        """Pull no more, and start no handler; running handlers still end normally."""
        self.stopped = True
        self.backlog.clear()
        if self.pulling is not None and self.pulling is not asyncio.current_task():
            self.pulling.cancel()

    async def wait_for_room(self) -> None:
        """Wait until `make_room` is called."""
        self._room = asyncio.get_running_loop().create_future()
        await self._room

    @property
    def is_waiting(self) -> bool:
        """Whether pulls wait for room."""
        return self._room is not None and not self._room.done()

    def make_room(self) -> None:
        """Resume pulls that wait for room."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


class FlowLimits:
    """Limits of pulled messages that are not handled, of each queue and of all."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.messages = self.bytes = 0
        self._waiters: set[ProcessQueue] = set()

    def add(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage], offset: int) -> None:
        """Add pulled messages to a queue."""
        self.bytes += queue.add(messages, offset)
        self.messages += len(messages)

    def done(self, queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Remove handled messages of a queue; resume pulls that have room again."""
        if queue.dropped:
            return
        for message in messages:
            self.bytes -= queue.done(message.record.queue_offset)
        self.messages -= len(messages)
        if queue.is_waiting and not self._is_full() and not self._is_queue_full(queue):
            queue.make_room()
        if self._waiters and not self._is_full():
            self._resume()

    def drop(self, queue: ProcessQueue) -> None:
        """Stop a queue and forget the messages that are not handled."""
        self.messages -= len(queue.pending)
        self.bytes -= queue.pending_bytes
        queue.pending.clear()
        queue.pending_bytes = 0
        queue.dropped = True
        queue.stop()
        self._resume()

    async def room(self, queue: ProcessQueue) -> None:
        """Wait until a queue may be pulled."""
        while True:
            if self._is_queue_full(queue):
                await queue.wait_for_room()
            elif self._is_full():
                self._waiters.add(queue)
                try:
                    await queue.wait_for_room()
                finally:
                    self._waiters.discard(queue)
            else:
                return

    def _is_full(self) -> bool:
        settings = self._settings
        return self.messages >= settings.messages_max or self.bytes >= settings.bytes_max

    def _is_queue_full(self, queue: ProcessQueue) -> bool:
        settings = self._settings
        return (
            len(queue.pending) >= settings.queue_messages_max
            or queue.pending_bytes >= settings.queue_bytes_max
        )

    def _resume(self) -> None:
        for queue in self._waiters:
            queue.make_room()
