"""Offset requests: consumer offsets (codes 14, 15), bounds of a queue (29 to 32).

Source: ConsumerManageProcessor, AdminBrokerProcessor
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duemq.net import fields
from duemq.net.dispatcher import Handler
from duemq.pull.pull_plan import PullLimits, StoreLimits
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.internal_topics import check_group, check_readable
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


class OffsetProcessor:
    """Handler of codes 14, 15 and 29 to 32."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        limits: Callable[[], PullLimits] | None = None,
    ) -> None:
        self._store, self._topics = store, topics
        self._groups, self._offsets = groups, offsets
        self._limits = limits or StoreLimits(store)

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, request: Request) -> Response:
        """Return the offset of a group, or a pending reset.

        A group without an offset gets 0 for a new queue, otherwise QUERY_NOT_FOUND.
        """
        group = fields.text(request, "consumerGroup")
        topic, queue_id = _queue(request)
        reset = self._offsets.pending_reset(group, topic, queue_id)
        offset = self._offsets.query(group, topic, queue_id) if reset is None else reset
        if offset is not None and offset >= 0:
            return _offset(offset)
        set_zero = request.fields.get("setZeroIfNotFound")
        if set_zero is not None and set_zero.lower() == "false":
            return Response(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, {})
        if self._starts_at_zero(topic, queue_id):
            return _offset(0)
        return Response(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, {})

    def update(self, request: Request) -> Response:
        """Store the offset of a group; ignore it while a reset is pending."""
        group = fields.text(request, "consumerGroup")
        topic, queue_id = _queue(request)
        offset = fields.long(request, "commitOffset")
        check_group(group)
        check_readable(topic)
        if self._groups.find(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!"
            )
        if self._topics.find(topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if self._offsets.pending_reset(group, topic, queue_id) is not None:
            return Response(remark="Offset has been previously reset", fields={})
        self._offsets.commit(group, topic, queue_id, offset)
        return Response(fields={})

    def max_offset(self, request: Request) -> Response:
        """Return the offset after the last message that consumers may read.

        Source: DefaultMessageStore.getMaxOffsetInQueue; its queues end at the confirm offset
        """
        return _offset(self._store.readable_bounds(*_queue(request))[1])

    def min_offset(self, request: Request) -> Response:
        """Return the offset of the queue's first message."""
        return _offset(self._store.queue_bounds(*_queue(request))[0])

    async def search(self, request: Request) -> Response:
        """Return the offset of a message by store time.

        The result is the first message at or after the time, or, with boundary type UPPER, the
        last message at or before it.
        """
        topic, queue_id = _queue(request)
        time_ms = fields.long(request, "timestamp")
        upper = request.fields.get("boundaryType", "").upper() == "UPPER"
        return _offset(self._store.search_offset(topic, queue_id, time_ms, upper=upper))

    async def earliest(self, request: Request) -> Response:
        """Return the store time of the queue's first message in ms; -1 if the queue is empty."""
        time_ms = self._store.earliest_store_ms(*_queue(request))
        return Response(fields={"timestamp": str(time_ms)})

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Return whether a group without an offset starts at 0.

        The first message must exist, in the part of the log that is considered in memory.
        """
        low, _ = self._store.queue_bounds(topic, queue_id)
        units = self._store.units(topic, queue_id, 0, 1) if low <= 0 else None
        if units is None or units.size == 0:
            return False
        distance_bytes = self._store.max_offset - int(units[0]["phys_offset"])
        return distance_bytes <= self._limits().memory_span_bytes


def _queue(request: Request) -> tuple[str, int]:
    return fields.text(request, "topic"), fields.integer(request, "queueId")


def _offset(value: int) -> Response:
    return Response(fields={"offset": str(value)})
