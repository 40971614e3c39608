"""Offset reset of a consumer group (code 222, optionally 220 to the members).

The new offsets are stored as pending resets: offset queries return them, commits are ignored, and
the next pull of each queue is redirected to the new offset. No member needs to be connected. With
`useServerSideResetOffset=false` the broker also sends request 220 to each member, on which Apache's
Java client blocks for 10 s. AdminBrokerProcessor.resetOffset, Broker2Client.resetOffset
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from duemq.net import fields
from duemq.net.wire_json import QueueKey, encode, queue_table
from duemq.pull.long_polls import LongPolls
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupManager
from duemq.registry.internal_topics import check_group, check_readable
from duemq.registry.managers import Identity
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

VERSION_WITH_RESET = 28  # 3.0.7-SNAPSHOT
ALL_QUEUES = -1


class ResetProcessor:
    """Handler of code 222.

    Args:
        push: Returns whether members receive request 220 (`useServerSideResetOffset=false`).
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        clients: ClientTable,
        long_polls: LongPolls,
        identity: Identity,
        *,
        push: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._push = push
        self._offsets, self._clients = offsets, clients
        self._long_polls, self._identity = long_polls, identity

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, request: Request) -> Response:
        """Reset the offsets of a group to a time or an offset; return the new offsets.

        Raises:
            RequestError: Topic, group or queue does not exist, or the offset is out of range.
        """
        topic, group = self._topic_and_group(request)
        new_offsets = self._new_offsets(request, topic)
        for queue_id, offset in new_offsets.items():
            self._offsets.set_reset(group, topic.name, queue_id, offset)
            self._resume_pulls(topic.name, queue_id)
        if self._push():
            self._push_to_members(request, topic.name, group, new_offsets)
        return Response(body=encode({"offsetTable": self._table(topic.name, new_offsets)}))

    def _topic_and_group(self, request: Request) -> tuple[TopicConfig, str]:
        topic_name, group = (
            fields.text(request, "topic"),
            fields.text(request, "group"),
        )
        check_group(group)
        check_readable(topic_name)
        topic = self._topics.find(topic_name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic_name} does not exist")
        if self._groups.find(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
            )
        return topic, group

    def _new_offsets(self, request: Request, topic: TopicConfig) -> dict[int, int]:
        """Return the new offsets by queue id."""
        time_ms = fields.long(request, "timestamp")
        queue_id = fields.integer(request, "queueId", ALL_QUEUES)
        offset = fields.long(request, "offset", -1)
        queues = range(topic.read_queues) if queue_id < 0 else range(queue_id, queue_id + 1)
        if queue_id >= topic.read_queues or not queues:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"No queues to reset: topic {topic.name} has {topic.read_queues} read queues; "
                f"queue {queue_id} does not exist",
            )
        if queue_id >= 0 and offset != -1:
            return {queue_id: self._checked(topic.name, queue_id, offset)}
        return {queue: self._at_time(topic.name, queue, time_ms) for queue in queues}

    def _checked(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = self._store.readable_bounds(topic, queue_id)
        if not low <= offset <= high + 1:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{low}-{high}]",
            )
        return offset

    def _at_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        if time_ms < 0:
            return self._store.readable_bounds(topic, queue_id)[1]
        return self._store.search_offset(topic, queue_id, time_ms)

    def _resume_pulls(self, topic: str, queue_id: int) -> None:
        table = self._store.topics
        index = table.find(topic)
        slot = table.slot(index, queue_id) if index >= 0 else -1
        if slot >= 0:
            self._long_polls.resume_slot(slot)

    def _table(self, topic: str, new_offsets: Mapping[int, int]) -> object:
        broker = self._identity.broker_name
        return queue_table(
            {QueueKey(broker, queue, topic): position for queue, position in new_offsets.items()}
        )

    def _push_to_members(
        self, request: Request, topic: str, group: str, new_offsets: Mapping[int, int]
    ) -> None:
        members = self._clients.consumer_group(group)
        for channel in members.channels.values() if members else ():
            if channel.version < VERSION_WITH_RESET:
                continue
            channel.peer.send_oneway(
                Request(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    {
                        "topic": topic,
                        "group": group,
                        "timestamp": request.fields["timestamp"],
                        "isForce": request.fields.get("isForce", "true"),
                    },
                    self._body_for(channel.language, topic, new_offsets),
                    oneway=True,
                )
            )

    def _body_for(self, language: str, topic: str, new_offsets: Mapping[int, int]) -> bytes:
        if language != "CPP":
            return encode({"offsetTable": self._table(topic, new_offsets)})
        broker = self._identity.broker_name
        rows = [
            {"brokerName": broker, "offset": position, "queueId": queue, "topic": topic}
            for queue, position in new_offsets.items()
        ]
        return encode({"offsetTable": rows})
