"""Requests about consumer groups: configuration, offsets, lag. AdminBrokerProcessor"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from delayed_delivery.steps import collected
from duemq.admin.name_lists import names_in
from duemq.net import fields, wire_json
from duemq.net.wire_json import QueueKey
from duemq.pull.queue_times import store_ms_at
from duemq.registry.clients import ClientTable
from duemq.registry.consumer_offsets import OffsetManager
from duemq.registry.groups import GroupConfig, GroupManager
from duemq.registry.internal_topics import TopicAccess, check_group, check_readable, client_access
from duemq.registry.managers import Identity
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topics import TopicManager
from duemq_common import json_dialect
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, RequestHandler, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

GROUPS_PER_REQUEST_MAX = 4_096
GROUP_BYTES_MAX = 1 << 18  # body of a request about one group


class GroupAdminProcessor:
    """Handler of codes 43, 200, 201, 207, 208, 225, 303, 314, 343, 345, 352 and 5003.

    Args:
        consume_tps: Returns the messages per second that a group consumes (topic, group).
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: OffsetManager,
        clients: ClientTable,
        identity: Identity,
        clock: Clock,
        *,
        consume_tps: Callable[[str, str], float] = lambda topic, group: 0.0,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._clients, self._identity = offsets, clients, identity
        self._clock, self._consume_tps = clock, consume_tps

    def handlers(self) -> dict[int, RequestHandler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.group,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: self.delete_list,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    # -- configuration ------------------------------------------------------------------------

    async def update(self, request: Request) -> Response:
        """Create or change one group."""
        if len(request.body) > GROUP_BYTES_MAX:
            text = f"the body has {len(request.body)} bytes; the limit is {GROUP_BYTES_MAX}"
            raise RequestError(ResponseCode.INVALID_PARAMETER, text)
        await self._groups.update([_group(_object(request))])
        return Response()

    async def update_list(self, request: Request) -> Response:
        """Create or change several groups, all or none."""
        configs = _object(request).get("groupConfigList")
        if not isinstance(configs, list) or len(configs) > GROUPS_PER_REQUEST_MAX:
            text = f"groupConfigList must be a list of at most {GROUPS_PER_REQUEST_MAX} groups"
            raise RequestError(ResponseCode.INVALID_PARAMETER, text)
        await self._groups.update([_group(each) for each in configs])
        return Response()

    async def delete(self, request: Request) -> Response:
        """Delete a group and, with `cleanOffset`, its offsets."""
        clean = fields.boolean(request, "cleanOffset") or fields.boolean(request, "removeOffset")
        await self._delete(fields.text(request, "groupName"), clean=clean)
        return Response()

    async def delete_list(self, request: Request) -> Response:
        """Delete groups and, with `cleanOffset`, their offsets, one by one."""
        names = names_in(request, "groupNameList")
        clean = _object(request).get("cleanOffset") is True
        for name in names:
            check_group(name)
        for name in names:
            await self._delete(name, clean=clean)
        return Response()

    async def _delete(self, name: str, *, clean: bool) -> None:
        check_group(name)
        await self._groups.delete(name)
        if clean:
            self._offsets.remove_group(name)

    async def all_groups(self, request: Request) -> Response:
        """Return all groups with the version of the table, for slaves and tools."""
        return Response(body=wire_json.encode(await self._groups.encoded()))

    async def group(self, request: Request) -> Response:
        """Return one group, created if allowed: a proxy requests it before the first heartbeat."""
        name = fields.text(request, "group")
        config = self._groups.find_or_create(name)
        if config is None:
            text = f"No group in this broker. group: {name}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        return Response(body=wire_json.encode(config.to_json()))

    # -- offsets ------------------------------------------------------------------------------

    async def all_offsets(self, request: Request) -> Response:
        """Return the offsets of all groups, for slaves."""
        text = json_dialect.dumps_compact(await self._offsets.encoded())
        # encoded rows have line ends between values; those in names are escaped
        return Response(body=text.replace("\n", "").replace("\t", "").encode())

    async def consume_stats(self, request: Request) -> Response:
        """Return the lag of a group, queue by queue."""
        group = fields.text(request, "consumerGroup")
        topics = {topic.name: topic for topic in self._requested_topics(request, group)}
        tps = sum(await collected(self._consume_tps(name, group) for name in topics))
        rows = await collected(
            self._lag(group, name, queue_id)
            for name, topic in topics.items()
            for queue_id in range(topic.read_queues)
        )
        response = {"consumeTps": float(tps), "offsetTable": wire_json.table_of(rows)}
        return Response(body=wire_json.encode(response))

    def _requested_topics(self, request: Request, group: str) -> list[TopicConfig]:
        """Return the topics of 208: the topics in `topicList`, else the subscribed topics."""
        online = self._clients.topics_of(group)
        topic_name = request.fields.get("topic", "")
        listed = [name for name in request.fields.get("topicList", "").split(";") if name.strip()]
        names = listed or (
            [topic_name] if topic_name else sorted({*self._offsets.topics_of(group), *online})
        )
        return [
            topic
            for name in names
            if (topic := self._topics.find(name)) is not None
            and (listed or not online or name in online)
        ]

    def _lag(self, group: str, topic: str, queue_id: int) -> bytes:
        """Return the entry of a queue in the table of 208."""
        end = self._store.readable_bounds(topic, queue_id)[1]
        consumed = max(self._offsets.query(group, topic, queue_id) or 0, 0)
        pulled = self._offsets.query_pull(group, topic, queue_id) or 0
        last_ms = store_ms_at(self._store, topic, queue_id, consumed - 1)
        lag = {
            "brokerOffset": end,
            "consumerOffset": consumed,
            "lastTimestamp": max(last_ms, 0),
            "pullOffset": max(pulled, consumed),
        }
        return wire_json.queue_entry(QueueKey(self._identity.broker_name, queue_id, topic), lag)

    async def time_span(self, request: Request) -> Response:
        """Return the store times and the delay of a group in each queue of a topic."""
        name, group = fields.text(request, "topic"), fields.text(request, "group")
        topic = self._topics.find(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        queues = range(topic.write_queues)
        spans = await collected(self._span(group, name, queue_id) for queue_id in queues)
        return Response(body=wire_json.encode({"consumeTimeSpanSet": spans}))

    def _span(self, group: str, topic: str, queue_id: int) -> dict[str, object]:
        end = self._store.readable_bounds(topic, queue_id)[1]
        first_ms = self._store.earliest_store_ms(topic, queue_id)
        consumed = max(self._offsets.query(group, topic, queue_id) or 0, 0)
        next_ms = store_ms_at(self._store, topic, queue_id, consumed) if consumed < end else -1
        return {
            "consumeTimeStamp": store_ms_at(self._store, topic, queue_id, consumed - 1)
            if consumed > 0
            else first_ms,
            "delayTime": max(self._clock.now_ms() - next_ms, 0) if next_ms >= 0 else 0,
            "maxTimeStamp": store_ms_at(self._store, topic, queue_id, end - 1),
            "messageQueue": QueueKey(self._identity.broker_name, queue_id, topic).to_json(),
            "minTimeStamp": first_ms,
        }

    async def clone(self, request: Request) -> Response:
        """Copy the offsets of one group to another."""
        source, target = (
            fields.text(request, "srcGroup"),
            fields.text(request, "destGroup"),
        )
        topic_name = request.fields.get("topic", "")
        check_group(target)
        if topic_name:
            check_readable(topic_name)
        if topic_name and self._topics.find(topic_name) is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic_name} does not exist")
        online = [] if fields.boolean(request, "offline") else self._clients.topics_of(source)
        for name in [topic_name] if topic_name else self._offsets.topics_of(source):
            is_open = self._topics.find(name) is not None and client_access(name) & TopicAccess.READ
            if is_open and (not online or name in online):
                self._offsets.clone(source, target, name)
        return Response()

    # -- consumers of groups and topics --

    async def topics_of(self, request: Request) -> Response:
        """Return the topics in which a group has offsets."""
        names = self._offsets.topics_of(fields.text(request, "group"))
        return Response(body=wire_json.encode({"topicList": names}))

    async def subscription(self, request: Request) -> Response:
        """Return the subscriptions of a group's members to a topic."""
        group, topic = fields.text(request, "group"), fields.text(request, "topic")
        response: dict[str, object] = {"group": group, "topic": topic}
        data = self._clients.subscription(group, topic)
        if data is not None:
            response["subscriptionData"] = data.to_json()
        return Response(body=wire_json.encode(response))


def _object(request: Request) -> dict[str, object]:
    try:
        return wire_json.parse_object(request.body)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not JSON: {error}") from error


def _group(data: object) -> GroupConfig:
    try:
        return GroupConfig.from_json(data)
    except ValueError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
