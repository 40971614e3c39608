"""Handlers of peek (200052), notification (200054) and polling info (200055), which pop nothing.

Source: PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.dispatcher import Handler
from duemq.pop.names import REVIVE_QUEUES
from duemq.pop.order_info import OrderTable
from duemq.pop.pop_offsets import FROM_FIRST, GroupQueue, PopOffsets
from duemq.pop.pop_queues import PopQueues, PopTarget
from duemq.pop.queue_reader import QueueReader
from duemq.pull.long_polls import ResumeReason
from duemq.registry.subscriptions import Subscription
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

MESSAGES_MAX = 32


class PeekProcessor:
    """Handlers of 200052, 200054 and 200055."""

    def __init__(
        self,
        store: MessageStore,
        queues: PopQueues,
        offsets: PopOffsets,
        orders: OrderTable,
        clock: Clock,
        stats: BrokerStats,
    ) -> None:
        self._store, self._queues, self._offsets = store, queues, offsets
        self._orders, self._clock, self._stats = orders, clock, stats
        self._reader = QueueReader(store)
        self._peeks = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def peek(self, request: Request) -> Response:
        """Respond with the next messages, which stay visible.

        Raises:
            RequestError: The number of messages is out of range, or the topic or the queue does not
                exist.
        """
        count = fields.integer(request, "maxMsgNums")
        if not 0 < count <= MESSAGES_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"maxMsgNums is {count}; the valid range is 1 to {MESSAGES_MAX}",
            )
        target = self._queues.target(request)
        self._peeks += 1
        parts, rest = [], 0
        for topic, queue_id in self._queues.of(target, self._peeks):
            start, high = self._bounds(target, topic, queue_id)
            rest += max(high - start, 0)
            result = None
            if count > 0:
                result = self._reader.read(topic, queue_id, start, count, Subscription(topic))
            if result is not None and result.offsets:
                count -= len(result.offsets)
                parts.append(self._reader.records(result))
        if not parts:
            self._stats.got_nothing()
        return Response(
            0 if parts else ResponseCode.PULL_NOT_FOUND,
            "FOUND" if parts else "NO_MESSAGE_IN_QUEUE",
            {
                "popTime": str(self._clock.now_ms()),
                "invisibleTime": "0",
                "reviveQid": str(self._peeks % REVIVE_QUEUES),
                "restNum": str(rest),
            },
            b"".join(parts),
        )

    async def notify(self, request: Request) -> Response | None:
        """Respond when a message can be popped, or at the deadline of the request.

        An orderly pop (`order`) cannot pop from a queue that the pop of another attempt blocks.
        """
        until_ms = self._queues.until_ms(request)
        target = self._queues.target(request)
        attempt_id = request.fields.get("attemptId")
        is_orderly = fields.boolean(request, "order")
        may_pop = partial(self._may_pop, target.group, attempt_id, is_orderly)
        reason: ResumeReason | None = ResumeReason.ARRIVED
        while not self._has_messages(target, may_pop):
            reason = await self._queues.wait(
                request, target, Subscription(target.topic), until_ms, takes=False
            )
            if reason is ResumeReason.DROPPED:
                return None
            if reason is not ResumeReason.ARRIVED:
                break
        response = {"hasMsg": reason is ResumeReason.ARRIVED, "pollingFull": reason is None}
        return Response(fields={name: str(value).lower() for name, value in response.items()})

    def polling_info(self, request: Request) -> Response:
        """Respond with the number of long polls of a queue."""
        target = self._queues.target(request)
        return Response(fields={"pollingNum": str(self._queues.polling[target])})

    def _has_messages(self, target: PopTarget, may_pop: Callable[[str, int], bool]) -> bool:
        return any(
            start < high and may_pop(topic, queue_id)
            for topic, queue_id in self._queues.of(target, 0)
            for start, high in [self._bounds(target, topic, queue_id)]
        )

    def _may_pop(
        self, group: str, attempt_id: str | None, is_orderly: bool, topic: str, queue_id: int
    ) -> bool:
        group_queue = GroupQueue(group, topic, queue_id)
        now_ms = self._clock.now_ms()
        return not is_orderly or self._orders.blocked_until(group_queue, attempt_id, now_ms) is None

    def _bounds(self, target: PopTarget, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the queue offsets at which the next pop of a queue begins, and the queue ends."""
        low, high = self._store.readable_bounds(topic, queue_id)
        group_queue = GroupQueue(target.group, topic, queue_id)
        return max(self._offsets.peek(group_queue, FROM_FIRST), low), high
