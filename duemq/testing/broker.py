"""Broker with a name server in a thread, on free ports, with a temporary store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from duemq.broker.broker import Broker
from duemq.client.blocking import LoopThread
from duemq.client.client import Client
from duemq.client.decisions import PendingDecisions
from duemq.client.errors import NoRoute
from duemq.client.message import MILLISECOND, ReceivedMessage
from duemq.client.pull_consumer import PullConsumer
from duemq.net.view_names import LEVELS_VIEW, TIMERS_VIEW
from duemq.testing.clock import AdvancedClock
from duemq_common.codes import RequestCode
from duemq_common.request import bytes_of

SETTLE_S: Final = 30.0  # real time for the delivery of what is due
START_S: Final = 300.0  # a first start compiles kernels
CALL_S: Final = 30.0  # for a response, on a machine that stalls
GROUP: Final = "duemq_testing"
VIEWS: Final = (TIMERS_VIEW, LEVELS_VIEW)
PROPERTIES: Final = {
    "brokerName": "test",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "vipChannelEnable": "false",
    "embeddedNamesrvEnable": "true",
    "embeddedNamesrvPort": "0",
    "metricsExporterType": "DISABLE",
    "flushDiskType": "ASYNC_FLUSH",
    "defaultTopicQueueNums": "1",
    "recallMessageEnable": "true",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
Result = TypeVar("Result")


class LocalBroker:
    """Broker for tests; a context manager. Its methods block, and may be called from any thread.

    Args:
        properties: Keys of broker.conf in addition to those of a small broker on loopback.
    Attributes:
        address: `host:port` of the broker.
        namesrv: `host:port` of its name server.
    """

    def __init__(self, **properties: str) -> None:
        self._properties = properties
        self._thread = LoopThread("duemq-test-broker")
        self._stack = AsyncExitStack()
        self.address = self.namesrv = ""

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._start(), timeout_s=START_S)
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._thread.run(self._stack.aclose())
        finally:
            self._thread.close()

    async def _start(self) -> None:
        root = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="duemq-test-"))
        self._clock = AdvancedClock()
        properties = PROPERTIES | {"storePathRootDir": str(Path(root) / "store")}
        broker = Broker(properties | self._properties, clock=self._clock)
        self._broker = await self._stack.enter_async_context(broker)
        self.address = broker.address
        assert broker.namesrv is not None
        self.namesrv = f"127.0.0.1:{broker.namesrv.port}"
        client = Client(broker=self.address, timeout_s=CALL_S)
        self._client = await self._stack.enter_async_context(client)
        self._consumer = PullConsumer(client=self._client, group=GROUP)

    def _run(self, work: Coroutine[object, object, Result]) -> Result:
        return self._thread.run(work)

    @property
    def now(self) -> datetime:
        """Time of the broker."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)

    def advance(
        self,
        step: timedelta = timedelta(0),
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Advance the broker's clock, and return when all that is due then is delivered.

        The clock stops at each due time on the way, so messages are delivered in their order.

        Raises:
            ValueError: The time is negative.
            TimeoutError: The broker has not delivered what is due.
        """
        step += timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        if step < timedelta(0):
            raise ValueError(f"the clock cannot go back by {-step}")
        self._run(self._advance(-(-step // MILLISECOND)))

    async def _advance(self, step_ms: int) -> None:
        end_ms = self._clock.now_ms() + step_ms
        async with asyncio.timeout(SETTLE_S):
            while True:
                due_ms = await self._next_due_ms()
                now_ms = self._clock.now_ms()
                if due_ms is not None and due_ms <= now_ms:
                    await asyncio.sleep(0)  # being delivered
                elif due_ms is not None and due_ms <= end_ms:
                    self._clock.advance(due_ms - now_ms)
                elif now_ms < end_ms:
                    self._clock.advance(end_ms - now_ms)
                elif (pop := self._broker.parts.pop) is not None and not pop.reviver.is_idle:
                    await asyncio.sleep(0)
                else:
                    return

    async def _next_due_ms(self) -> int | None:
        """Return the earliest due time of a pending message, or of one that is being delivered."""
        times: list[int] = []
        for name in VIEWS:
            response = await self._client.ask(self.address, RequestCode.GET_VIEW, {"view": name})
            view = msgspec.json.decode(bytes_of(response))
            parts = view.get("levels", [view])
            times += [part["next_due_ms"] for part in parts if part["next_due_ms"] is not None]
            if view.get("enqueue", {}).get("lag_units"):
                times.append(0)  # the due times of these timers are not known yet
        return min(times, default=None)

    def cancel(self, recall_handle: str) -> bool:
        """Cancel a pending message; return whether it was pending."""
        return self._run(self._cancel(recall_handle))

    async def _cancel(self, recall_handle: str) -> bool:
        async with PendingDecisions(client=self._client) as pending:
            [result] = await pending.cancel(handles=[recall_handle])
        return result.verdict == "done"

    def messages(self, topic: str) -> list[ReceivedMessage]:
        """Return all delivered messages of a topic, by queue and in order.

        A topic that does not exist has none.
        """
        return self._run(self._messages(topic))

    async def _messages(self, topic: str) -> list[ReceivedMessage]:
        try:
            queues = await self._consumer.queues(topic)
        except NoRoute:
            return []
        messages: list[ReceivedMessage] = []
        for queue in queues:
            offset, end = 0, await self._consumer.max_offset(queue)
            while offset < end:
                pulled = await self._consumer.pull(queue, offset)
                messages += pulled.messages
                offset = pulled.next_offset
        return messages
