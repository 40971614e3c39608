"""Offset resets of a consumer group: 222, and 220 to members if configured.

The broker keeps the new offsets as pending resets: offset queries return them, commits are ignored,
and the next pull of each queue is answered with the new offset. That needs no online member. With
`useServerSideResetOffset=false` each member gets request 220 as well; Apache's Java client then
blocks for 10 s before it resumes. AdminBrokerProcessor.resetOffset, Broker2Client.resetOffset
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from delivery.plugin import Request, RequestHandler, Response
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.wire_json import QueueKey, encode, queue_table
from duemq.ports import Groups, Identity, Offsets, Topics, TopicView
from duemq.pull.held_pulls import HeldPulls
from duemq.registry.clients import ClientTable
from duemq.registry.internal_topics import check_group, check_readable
from message_store.errors import RequestError

if TYPE_CHECKING:
    from message_store.store import MessageStore

VERSION_WITH_RESET = 28  # 3.0.7-SNAPSHOT
ALL_QUEUES = -1


class ResetProcessor:
    """Handler of request 222.

    Args:
        push: Returns whether members get request 220 (`useServerSideResetOffset` is false).
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        clients: ClientTable,
        held: HeldPulls,
        identity: Identity,
        *,
        push: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._push = push
        self._offsets, self._clients = offsets, clients
        self._held, self._identity = held, identity

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, request: Request) -> Response:
        """Set a group's offsets by time or to a given offset; answer the new offsets."""
        topic, group = self._named(request)
        wanted = self._wanted(request, topic)
        for queue_id, offset in wanted.items():
            self._offsets.set_reset(group, topic.name, queue_id, offset)
            self._wake(topic.name, queue_id)
        if self._push():
            self._push_to_members(request, topic.name, group, wanted)
        return Response(body=encode({"offsetTable": self._table(topic.name, wanted)}))

    def _named(self, request: Request) -> tuple[TopicView, str]:
        topic_name, group = (
            fields.text(request, "topic"),
            fields.text(request, "group"),
        )
        check_group(group)
        check_readable(topic_name)
        topic = self._topics.find(topic_name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic_name} does not exist")
        if self._groups.known(group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
            )
        return topic, group

    def _wanted(self, request: Request, topic: TopicView) -> dict[int, int]:
        time_ms = fields.long(request, "timestamp")
        queue_id = fields.integer(request, "queueId", ALL_QUEUES)
        offset = fields.long(request, "offset", -1)
        queues = range(topic.read_queues) if queue_id < 0 else range(queue_id, queue_id + 1)
        if queue_id >= topic.read_queues or not queues:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"No queues to reset: queue {queue_id} of {topic.name}, which has "
                f"{topic.read_queues}",
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

    def _wake(self, topic: str, queue_id: int) -> None:
        table = self._store.topics
        index = table.find(topic)
        slot = table.slot(index, queue_id) if index >= 0 else -1
        if slot >= 0:
            self._held.wake_slot(slot)

    def _table(self, topic: str, wanted: Mapping[int, int]) -> object:
        broker = self._identity.broker_name
        return queue_table({QueueKey(broker, queue, topic): at for queue, at in wanted.items()})

    def _push_to_members(
        self, request: Request, topic: str, group: str, wanted: Mapping[int, int]
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
                    self._body_for(channel.language, topic, wanted),
                    oneway=True,
                )
            )

    def _body_for(self, language: str, topic: str, wanted: Mapping[int, int]) -> bytes:
        if language != "CPP":
            return encode({"offsetTable": self._table(topic, wanted)})
        broker = self._identity.broker_name
        rows = [
            {"brokerName": broker, "offset": at, "queueId": queue, "topic": topic}
            for queue, at in wanted.items()
        ]
        return encode({"offsetTable": rows})
