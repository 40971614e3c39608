"""Client for programs without asyncio: an event loop in a thread runs the asyncio client.

    from duemq.client.blocking import BlockingProducer

    with BlockingProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"..."))

Other classes of the client run on a `LoopThread`:

    with LoopThread() as thread:
        admin = thread.open(lambda: Admin("127.0.0.1:9876"))
        topics = thread.run(admin.topics())
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from duemq.client.errors import Closed
from duemq.client.filters import Filter
from duemq.client.message import Message, MessageQueue
from duemq.client.producer import Producer, ProducerOptions, SendResult
from duemq.client.pull_consumer import PULL_COUNT, PullConsumer, Pulled
from duemq.client.role import ClientOptions

Result = TypeVar("Result")
AnyRole = TypeVar("AnyRole")
JOIN_S: Final = 30.0
CANCEL_S: Final = 5.0  # for tasks of other threads at the end


class LoopThread:
    """Event loop in a thread of its own; a context manager.

    A process that forks, like a prefork worker, creates it after the fork.
    """

    def __init__(self, name: str = "duemq-client") -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(_cancel_others())  # threads may wait for their results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, work: Coroutine[Any, Any, Result], *, timeout_s: float | None = None) -> Result:
        """Run a coroutine on the loop and return its result.

        Raises:
            Closed: The loop was closed, also meanwhile, or belongs to the process that this one was
                forked from.
            TimeoutError: The coroutine took longer than `timeout_s`; it is cancelled.
        """
        if self._process != os.getpid() or not self._thread.is_alive():
            work.close()
            forked = self._process != os.getpid()
            raise Closed(
                "the client was created before the process forked: create it in the child"
                if forked
                else "the client is closed"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except CancelledError as error:
            raise Closed("the client is closed") from error
        except BaseException:
            future.cancel()
            raise

    def open(self, make: Callable[[], AbstractAsyncContextManager[Result]]) -> Result:
        """Create and enter an asyncio context manager on the loop; `close` leaves it."""

        async def enter() -> Result:
            return await self._stack.enter_async_context(make())

        return self.run(enter())

    def close(self) -> None:
        """Leave what was opened, in reverse order, and end the thread."""
        if self._process != os.getpid() or not self._thread.is_alive():
            return
        try:
            self.run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_S)
            self._loop.close()


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, and let them end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_S)


class _BlockingRole(Generic[AnyRole]):
    """Role of an application on an event loop of its own; a context manager."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[AnyRole]]) -> None:
        self._thread = LoopThread()
        try:
            self._role = self._thread.open(make)
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the sends in flight, then close the connections."""
        self._thread.close()


class BlockingProducer(_BlockingRole[Producer]):
    """`Producer` for programs without asyncio; a context manager, usable from several threads."""

    def __init__(self, namesrv: str = "", **options: Unpack[ProducerOptions]) -> None:
        super().__init__(lambda: Producer(namesrv, **options))

    def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message; see `Producer.send`."""
        return self._thread.run(self._role.send(message, queue=queue))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in one request; see `Producer.send_batch`."""
        return self._thread.run(self._role.send_batch(messages, queue=queue))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without a response; see `Producer.send_oneway`."""
        self._thread.run(self._role.send_oneway(message, queue=queue))


class BlockingPullConsumer(_BlockingRole[PullConsumer]):
    """`PullConsumer` for programs without asyncio; a context manager."""

    def __init__(self, namesrv: str = "", *, group: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(lambda: PullConsumer(namesrv, group=group, **options))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of a topic; see `PullConsumer.queues`."""
        return self._thread.run(self._role.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count: int = PULL_COUNT,
        wait_s: float = 0,
        only: Filter | str = "",
    ) -> Pulled:
        """Return messages of a queue from an offset on; see `PullConsumer.pull`."""
        work = self._role.pull(queue, offset, count=count, wait_s=wait_s, only=only)
        return self._thread.run(work)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None: there is none."""
        return self._thread.run(self._role.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of the next message that the group will read."""
        self._thread.run(self._role.commit(queue, offset))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message of a queue."""
        return self._thread.run(self._role.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message of a queue."""
        return self._thread.run(self._role.max_offset(queue))

    def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at or after a time."""
        return self._thread.run(self._role.offset_at(queue, when))
