"""Handlers of a push consumer: a bounded number of workers run them.

    ready queues --> worker: takes messages of the first queue --> handler --> done, or retried
          ^------------- queue has more messages -------------'

A worker that takes a message wakes another one, so a handler that does not wait costs no turn of
the event loop, and one that waits does not delay the next message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from duemq.client.message import ReceivedMessage
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.subscriptions import ConsumerSettings, Retry, TopicSubscription

log = logging.getLogger(__name__)
TURN_MESSAGES: Final = 128  # messages of one worker before other tasks run
UNEXPECTED_S: Final = 5.0  # delay of a retry that failed in an unexpected way

RetryLater = Callable[[ProcessQueue, list[ReceivedMessage], Retry], Awaitable[None]]
"""Retries messages later; they are not handled until it has called `FlowLimits.done`."""


class HandlerPool:
    """Workers that run the handlers of a consumer.

    Args:
        subscriptions: Subscriptions by topic.
        retry: Called with messages whose handler failed.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, TopicSubscription],
        limits: FlowLimits,
        retry: RetryLater,
    ) -> None:
        self._settings, self._subscriptions = settings, subscriptions
        self._limits, self._retry = limits, retry
        self._ready: deque[ProcessQueue] = deque()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._workers: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._is_closing = False

    def start(self) -> None:
        """Start the workers."""
        for number in range(self._settings.handlers_max):
            self._workers.append(asyncio.create_task(self._work(), name=f"handler {number}"))

    async def close(self) -> None:
        """Let the running handlers finish; cancel those that take too long."""
        self._is_closing = True
        while self._sleepers:
            self._wake()
        if self._workers:
            _, late = await asyncio.wait(self._workers, timeout=self._settings.close_s)
            for worker in late:
                worker.cancel()
            await asyncio.gather(*late, return_exceptions=True)
            if late:
                log.warning(
                    "%d handlers did not finish; their messages are not committed", len(late)
                )
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def schedule(self, queue: ProcessQueue) -> None:
        """Handle the messages of a queue."""
        if queue.is_ready or queue.suspended or not queue.backlog:
            return
        if self._settings.ordered and queue.running:
            return  # its worker schedules the queue again
        queue.is_ready = True
        self._ready.append(queue)
        if self._sleepers:
            self._wake()

    def put_back(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Handle messages of a queue once more, before its other messages."""
        queue.suspended = False
        if not queue.stopped:
            queue.backlog.extendleft(reversed(messages))
            self.schedule(queue)

    async def run_handler(
        self, messages: list[ReceivedMessage], subscription: TopicSubscription | None
    ) -> Retry | None:
        """Run the handler of messages; return why they are to be retried, None if they are not.

        Args:
            subscription: Subscription of the messages; None: that of the topic of the first one.
        """
        subscription = subscription or self._subscriptions.get(messages[0].topic)
        if subscription is None:
            log.warning("no handler for %r", messages[0])
            return Retry()
        argument = messages if subscription.batch else messages[0]
        try:
            if subscription.is_async:
                await subscription.handler(argument)  # type: ignore[misc]
            else:
                await self._run_in_thread(subscription, argument)
        except Retry as retry:
            return retry
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Retry()
        except Exception:
            log.exception("the handler of %r failed", messages[0])
            return Retry()
        return None

    async def _run_in_thread(self, subscription: TopicSubscription, argument: object) -> None:
        if self._threads is None:
            count = self._settings.handlers_max
            self._threads = ThreadPoolExecutor(count, thread_name_prefix="duemq handler")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, subscription.handler, argument)

    def _wake(self) -> None:
        sleeper = self._sleepers.popleft()
        if not sleeper.done():
            sleeper.set_result(None)

    async def _work(self) -> None:
        turn, loop = 0, asyncio.get_running_loop()
        while not self._is_closing:
            if not self._ready:
                sleeper = loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                turn = 0
                continue
            queue = self._ready.popleft()
            queue.is_ready = False
            messages = self._take(queue)
            if not messages:
                continue
            queue.running += 1
            if self._sleepers and self._ready:
                self._wake()
            try:
                await self._handle(queue, messages)
            finally:
                queue.ended()
            if self._settings.ordered:
                self.schedule(queue)
            turn += 1
            if turn >= TURN_MESSAGES:
                turn = 0
                await asyncio.sleep(0)

    def _take(self, queue: ProcessQueue) -> list[ReceivedMessage]:
        """Return the next messages of a queue; schedule the queue if it has more."""
        backlog, settings = queue.backlog, self._settings
        if not backlog:
            return []
        if settings.has_locks and asyncio.get_running_loop().time() >= queue.locked_until_s:
            return []  # scheduled again when the lock is renewed
        subscription = queue.subscription
        messages = [backlog.popleft()]
        if subscription is not None and subscription.batch > 1:
            while backlog and len(messages) < subscription.batch:
                messages.append(backlog.popleft())
        if backlog and not settings.ordered:
            queue.is_ready = True
            self._ready.append(queue)
        return messages

    async def _handle(self, queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        retry = await self.run_handler(messages, queue.subscription)
        if retry is None:
            self._limits.done(queue, messages)
        elif not queue.dropped:
            try:
                await self._retry(queue, messages, retry)
            except Exception:
                log.exception("%d messages are retried in this process", len(messages))
                loop = asyncio.get_running_loop()
                loop.call_later(UNEXPECTED_S, self.put_back, queue, messages)
