"""Requests about topics: create, change, delete, list, statistics. AdminBrokerProcessor

The responses to 17, 18 and 215 are sent after the file is written and the name servers are updated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from delayed_delivery.steps import collected
from duemq.admin.name_lists import names_in
from duemq.net import fields, wire_json
from duemq.net.wire_json import QueueKey
from duemq.pull.queue_times import store_ms_at
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.managers import Identity
from duemq.registry.topic_config import FILTER_TYPES, TopicConfig, parse_attribute_changes
from duemq.registry.topics import TopicManager
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.data_version import DataVersion
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response
from message_store.queues.deleted_topics import DELETIONS_MAX
from message_store.topic_removal import remove_topic_in_thread

if TYPE_CHECKING:
    from message_store.store import MessageStore

TOPICS_PER_REQUEST_MAX = 4_096
FULL_REMEDY = "wait until retention removes them, or lower fileReservedTime"


class TopicAdminProcessor:
    """Handler of codes 17, 18, 21, 202, 215, 300, 305, 351 and 5002.

    Args:
        groups_online: Returns the online groups that subscribe to a topic.
        put_tps: Returns the messages per second put into a topic.
        forget: Called with a deleted topic, before it can be created again.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        offsets: OffsetManager,
        identity: Identity,
        *,
        groups_online: Callable[[str], list[str]] = lambda topic: [],
        put_tps: Callable[[str], float] = lambda topic: 0.0,
        forget: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store, self._topics, self._offsets = store, topics, offsets
        self._identity = identity
        self._groups_online, self._put_tps = groups_online, put_tps
        self._forget = forget

    def handlers(self) -> dict[int, RequestHandler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.update_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.DELETE_TOPIC_IN_BROKER_LIST: self.delete_list,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topic,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    async def update(self, request: Request) -> Response:
        """Create or change one topic."""
        fields.text(request, "defaultTopic")
        fields.text(request, "order")
        filter_type = fields.text(request, "topicFilterType")
        if filter_type not in FILTER_TYPES:
            text = f"topicFilterType {filter_type!r} is not one of {', '.join(FILTER_TYPES)}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        try:
            attributes = parse_attribute_changes(request.fields.get("attributes", ""))
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        topic = TopicConfig(
            name=fields.text(request, "topic"),
            read_queues=fields.integer(request, "readQueueNums"),
            write_queues=fields.integer(request, "writeQueueNums"),
            perm=fields.integer(request, "perm"),
            filter_type=filter_type,
            sys_flag=fields.integer(request, "topicSysFlag", 0),
            order=fields.boolean(request, "order"),
            attributes=attributes,
        )
        await self._topics.update([topic])
        return Response()

    async def update_list(self, request: Request) -> Response:
        """Create or change several topics; all of them or none."""
        try:
            configs = wire_json.parse_object(request.body).get("topicConfigList")
            if not isinstance(configs, list) or len(configs) > TOPICS_PER_REQUEST_MAX:
                most = TOPICS_PER_REQUEST_MAX
                raise ValueError(f"topicConfigList must be a list of at most {most} topics")
            topics = [TopicConfig.from_json(each) for each in configs]
        except ValueError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        await self._topics.update(topics)
        return Response()

    async def delete(self, request: Request) -> Response:
        """Delete a topic, the consumer offsets of groups in it, and its queues.

        The name of a topic that does not exist changes nothing.
        """
        await self._delete(fields.text(request, "topic"))
        return Response()

    async def delete_list(self, request: Request) -> Response:
        """Delete topics one by one; an error names the topic that remains first."""
        for name in names_in(request, "topicList"):
            await self._delete(name)
        return Response()

    async def _delete(self, name: str) -> None:
        if self._store.queues.deletions.is_full:
            text = f"{DELETIONS_MAX} deleted topics still have records in the log: {FULL_REMEDY}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, text)
        async with self._topics.removal(name):
            try:
                await remove_topic_in_thread(self._store, name)
            except OSError as error:
                text = f"the queues of topic {name} cannot be deleted: {error}. Try again"
                raise RequestError(ResponseCode.SYSTEM_ERROR, text) from error
            self._offsets.restart_topic(name)
            await self._forget(name)

    async def all_topics(self, request: Request) -> Response:
        """Return all topics with the table's version, for slaves and tools."""
        table = {
            **await self._topics.encoded(),
            "mappingDataVersion": DataVersion().to_json(),
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        return Response(body=wire_json.encode(table))

    async def topic(self, request: Request) -> Response:
        """Return one topic; 17 if it does not exist."""
        return Response(body=wire_json.encode(self._find(request).to_json()))

    async def stats(self, request: Request) -> Response:
        """Return first offset, end offset and last store time of each queue of a topic."""
        topic = self._find(request)
        broker, name = self._identity.broker_name, topic.name
        rows = await collected(
            wire_json.queue_entry(
                QueueKey(broker, queue_id, name), self._queue_stats(name, queue_id)
            )
            for queue_id in range(max(topic.read_queues, topic.write_queues))
        )
        response = {"offsetTable": wire_json.table_of(rows), "topicPutTps": self._put_tps(name)}
        return Response(body=wire_json.encode(response))

    def _queue_stats(self, topic: str, queue_id: int) -> dict[str, int]:
        first, end = self._store.readable_bounds(topic, queue_id)
        last_ms = store_ms_at(self._store, topic, queue_id, end - 1) if end > 0 else 0
        return {"lastUpdateTimestamp": max(last_ms, 0), "maxOffset": end, "minOffset": first}

    async def consumed_by(self, request: Request) -> Response:
        """Return the groups that consume a topic: online groups, and groups with offsets."""
        name = fields.text(request, "topic")
        groups = {*self._groups_online(name), *self._offsets.groups_of(name)}
        return Response(body=wire_json.encode({"groupList": sorted(groups)}))

    async def system_topics(self, request: Request) -> Response:
        """Return the topics that belong to the system."""
        return Response(body=wire_json.encode({"topicList": self._topics.system_names()}))

    def _find(self, request: Request) -> TopicConfig:
        name = fields.text(request, "topic")
        topic = self._topics.find(name)
        if topic is None:
            text = f"No topic in this broker. topic: {name}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, text)
        return topic
