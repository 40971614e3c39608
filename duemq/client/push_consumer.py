"""Push consumer: calls a handler for each message of its topics; a group shares the queues.

    Rebalance --queues--> QueuePulls --messages--> HandlerPool --> handler
        ^                                              |
        +------ offsets: committed every 5 s <-- done -+-- failed: retried later (36), or in place

A message is committed after its handler has returned, so each is delivered at least once.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import Final, Self, Unpack

from duemq.client.consumer_requests import ConsumerRequests
from duemq.client.errors import ClientError, NoRoute
from duemq.client.filters import Filter
from duemq.client.handlers import HandlerPool
from duemq.client.message import ReceivedMessage
from duemq.client.process_queue import FlowLimits, ProcessQueue
from duemq.client.pull_consumer import PullConsumer
from duemq.client.queue_offsets import BrokerOffsets, LocalOffsets, QueueOffsets
from duemq.client.rebalance import Rebalance
from duemq.client.role import ClientOptions, ClientRole
from duemq.client.subscriptions import (
    DEAD_LETTER,
    ConsumeFrom,
    ConsumerSettings,
    MessageHandler,
    Retry,
    TopicSubscription,
    subscription_of,
)
from duemq_common.codes import RequestCode
from duemq_common.topics import RETRY_PREFIX

log = logging.getLogger(__name__)
RETRIES: Final = 16
LOCAL_RETRY_S: Final = 5.0  # delay of a retry that the broker did not accept


class PushConsumer(ClientRole):
    """Consumer of topics; an async context manager.

    Args:
        namesrv, options: As in `ClientRole`.
        group: Consumer group; its consumers share the queues and have the same subscriptions.
        ordered: Whether each queue is handled in order, one message at a time.
        offsets_file: File of offsets; then this consumer gets all messages (broadcast), without
            retries.
        consume_from: First message of a new group: the first or last one, or a time with a zone.
        retries_max: Retries before a message goes to the dead letters; None: 16, without limit if
            `ordered`.
        handlers_max: Maximum number of handlers that run at the same time.
        settings: Further settings; then the five arguments before it are not used.
    """

    def __init__(
        self,
        namesrv: str = "",
        *,
        group: str,
        ordered: bool = False,
        offsets_file: Path | None = None,
        consume_from: ConsumeFrom | datetime = ConsumeFrom.LAST,
        retries_max: int | None = None,
        handlers_max: int = 32,
        settings: ConsumerSettings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        if not group:
            raise ValueError("the group is empty")
        super().__init__(namesrv, **options)
        self.group = group
        self.settings = settings or ConsumerSettings(
            ordered=ordered,
            offsets_file=offsets_file,
            consume_from=consume_from,
            retries_max=retries_max,
            handlers_max=handlers_max,
        )
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._topics: dict[str, TopicSubscription | None] = {}
        reader = PullConsumer(group=group, client=self.client)
        offsets: QueueOffsets = BrokerOffsets(reader)
        if self.settings.offsets_file is not None:
            offsets = LocalOffsets(self.settings.offsets_file)
        limits = self._limits = FlowLimits(self.settings)
        self._pool = HandlerPool(self.settings, self._subscriptions, limits, self._retry)
        self._rebalance = Rebalance(
            self.client, reader, self.settings, self._topics, offsets, limits, self._pool
        )
        self._requests = ConsumerRequests(
            self.client, self.group, self.settings, self._rebalance, self._pool, self._entry
        )
        self._tasks: list[asyncio.Task[object]] = []

    # Interface.

    def subscribe(
        self,
        topic: str,
        handler: MessageHandler,
        *,
        only: Filter | str = "",
        batch: int = 0,
    ) -> None:
        """Call a handler for each message of a topic.

        An exception of the handler retries the message later; `Retry` gives the delay level.

        Args:
            handler: Coroutine function that gets one ReceivedMessage; a plain function runs in a
                thread.
            only: Filter, or the expression of tags (`a || b`).
            batch: Maximum messages of one call, as a list; all of them are retried together. 0:
                one message, not in a list.
        Raises:
            ValueError: The topic is empty, or subscribed already.
        """
        if topic in self._subscriptions:
            raise ValueError(f"topic {topic} is subscribed already")
        subscription = subscription_of(topic, handler, only, self.client.clock.now_ms(), batch)
        self._subscriptions[topic] = self._topics[topic] = subscription
        self._rebalance.change()
        if self._tasks:
            self.client.run(self._beat(), f"heartbeat for {topic}")

    async def unsubscribe(self, topic: str) -> None:
        """Stop pulling a topic; commit what is handled, and let the group have its queues.

        Handlers that run end as usual. A later subscription continues with the first message that
        was not handled.

        Raises:
            ValueError: The topic is not subscribed.
        """
        if topic not in self._subscriptions:
            raise ValueError(f"topic {topic} is not subscribed")
        del self._subscriptions[topic], self._topics[topic]
        if self._tasks:
            await self._rebalance.leave_topic(topic)
            await self.client.heartbeats.send()

    @property
    def pending(self) -> int:
        """Number of messages that are pulled and not handled."""
        return self._limits.messages

    @property
    def queue_count(self) -> int:
        """Number of assigned queues of the subscribed topics."""
        return sum(queue.topic in self._subscriptions for queue in self._rebalance.queues)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Join the group and consume the subscribed topics; later subscriptions follow.

        Raises:
            ValueError: The client has a consumer of this group already.
        """
        if not self.settings.is_broadcast:
            self._topics[f"{RETRY_PREFIX}{self.group}"] = None
        self.client.heartbeats.add_consumer(self.group, self._entry)
        self._requests.register()
        self._pool.start()
        for work, name in (
            (self._rebalance.repeat(), "rebalance"),
            (self._rebalance.repeat_commits(), "commits"),
        ):
            self._tasks.append(self.client.run(work, f"{name} of {self.group}"))

    async def run(self) -> None:
        """Consume until the task is cancelled; then close."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def _end_work(self) -> None:
        """Stop pulls, let handlers finish, commit, unlock, and leave the group."""
        if not self._tasks:  # never started
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._rebalance.stop_pulls()
        try:
            await self._pool.close()
            await self._rebalance.close()
        finally:
            self._requests.unregister()
            await self.client.heartbeats.remove(consumer=self.group)

    # Failed messages.

    async def _retry(
        self, queue: ProcessQueue, messages: list[ReceivedMessage], retry: Retry
    ) -> None:
        """Retry messages whose handler failed: in place if ordered, else through the broker."""
        if self.settings.is_broadcast and not self.settings.ordered:
            log.warning("%d messages of a broadcast are not retried", len(messages))
            self._limits.done(queue, messages)
            return
        level = retry.level
        if self.settings.ordered:
            attempts = max(message.delivery_attempt for message in messages)
            limit = self.settings.retries_max
            if level != DEAD_LETTER and (limit is None or attempts <= limit):
                self._repeat(queue, messages, self.settings.retry_s)
                return
            level = DEAD_LETTER
        for message in messages:
            try:
                await self._send_back(queue, message, level)
            except (ClientError, OSError) as error:
                log.warning("%r is retried in this process: %s", message, error)
                self._repeat(queue, [message], LOCAL_RETRY_S)
            else:
                self._limits.done(queue, [message])

    def _repeat(self, queue: ProcessQueue, messages: list[ReceivedMessage], delay_s: float) -> None:
        """Handle messages once more after a delay; in order, nothing else of the queue before."""
        for message in messages:
            message.record.reconsume_times += 1
        if self.settings.ordered:
            queue.suspended = True
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._pool.put_back, queue, messages)

    async def _send_back(self, queue: ProcessQueue, message: ReceivedMessage, level: int) -> None:
        """Let the broker deliver a message again. consumerSendMessageBack

        Raises:
            ClientError: The broker did not accept it.
        """
        route = await self.client.route(queue.queue.topic)
        address = route.master(queue.queue.broker_name)
        if not address:
            raise NoRoute(f"broker {queue.queue.broker_name} has no master")
        retries_max = self.settings.retries_max
        fields = {
            "offset": message.record.phys_offset,
            "group": self.group,
            "delayLevel": level,
            "originMsgId": message.offset_message_id,
            "originTopic": message.topic,
            "unitMode": False,
            "maxReconsumeTimes": RETRIES if retries_max is None else retries_max,
        }
        await self.client.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    # Heartbeats.

    async def _beat(self) -> None:
        """Send the new subscriptions to the brokers."""
        await self.client.heartbeats.send()

    def _entry(self) -> dict[str, object]:
        """Return the consumer's entry in a heartbeat. ConsumerData"""
        first = self.settings.consume_from
        everything = Filter()
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "BROADCASTING" if self.settings.is_broadcast else "CLUSTERING",
            "consumeFromWhere": (
                first.value if isinstance(first, ConsumeFrom) else "CONSUME_FROM_TIMESTAMP"
            ),
            "unitMode": False,
            "subscriptionDataSet": [
                everything.subscription(topic, 0)
                if each is None
                else each.only.subscription(topic, each.version)
                for topic, each in self._topics.items()
            ],
        }
