"""Consumer groups of a cluster: list, describe, create, change, delete, reset of offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import msgspec

from duemq.client.admin.cluster import BrokerMember, parsed, queue_name, time_or_none
from duemq.client.admin.topics import TopicsAdmin
from duemq.client.errors import NoRoute, Refused
from duemq.client.message import MessageQueue, milliseconds
from duemq.client.routes import json_object
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from duemq_common.topics import DLQ_PREFIX, RETRY_PREFIX

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
EARLIEST_MS, LATEST_MS = 0, -1
"""Times that stand for the first message and the end of a queue. resetOffsetByTimestamp"""
ResetTo = datetime | Literal["earliest", "latest"]
NOT_AT_THE_BROKER: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
"""Refusals of brokers before 5.0, which reset groups by their members only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a consumer group at one broker.

    Attributes:
        enabled: Whether the group may read.
        broadcast: Whether its members may read all messages each.
        from_first: Whether a new group begins with the first message where the broker decides.
        ordered: Whether v5 clients get the messages in order.
        retries: Deliveries after the first one, before a message is a dead letter.
        retry_queues: Queues of the retry topic.
    """

    enabled: bool = True
    broadcast: bool = True
    from_first: bool = True
    ordered: bool = False
    retries: int = 16
    retry_queues: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Consumer group, and its settings by broker name."""

    name: str
    settings: Mapping[str, GroupSettings]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """Connected member of a group.

    Attributes:
        version: Version number of the client. MQVersion
    """

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """Subscription of the members of a group."""

    topic: str
    expression: str
    kind: str


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """Committed offset of a group in a queue.

    Attributes:
        offset: Offset of the next message; 0: none is committed.
        max_offset: Offset after the last message of the queue.
        last_consumed_at: Store time of the message before `offset`.
    """

    queue: MessageQueue
    offset: int
    max_offset: int
    last_consumed_at: datetime | None

    @property
    def lag(self) -> int:
        """Number of messages that are stored and not consumed."""
        return max(self.max_offset - max(self.offset, 0), 0)


@dataclass(frozen=True, slots=True)
class GroupState:
    """Consumer group with its members, subscriptions and offsets.

    Attributes:
        consume_type, message_model: As the members report them; empty without members.
        rate: Messages per second that the group consumes.
    """

    info: GroupInfo
    members: Sequence[ConsumerMember]
    subscriptions: Sequence[GroupSubscription]
    queues: Sequence[GroupProgress]
    consume_type: str
    message_model: str
    rate: float

    @property
    def lag(self) -> int:
        """Number of messages that are stored and not consumed, retries included."""
        return sum(queue.lag for queue in self.queues)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """Reset of a group in one queue.

    Attributes:
        former: Committed offset before; None: none.
        offset: New offset.
    """

    queue: MessageQueue
    former: int | None
    offset: int


class _GroupBody(msgspec.Struct, rename="camel"):
    """Settings in a body. SubscriptionGroupConfig"""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    attributes: dict[str, str] | None = None

    def settings(self) -> GroupSettings:
        return GroupSettings(
            enabled=self.consume_enable,
            broadcast=self.consume_broadcast_enable,
            from_first=self.consume_from_min_enable,
            ordered=self.consume_message_orderly,
            retries=self.retry_max_times,
            retry_queues=self.retry_queue_nums,
            attributes=self.attributes or {},
        )


class _GroupTable(msgspec.Struct, rename="camel"):
    """Settings of all groups. SubscriptionGroupWrapper"""

    subscription_group_table: dict[str, dict[str, object]] = {}


class _ConnectionBody(msgspec.Struct, rename="camel"):
    """Member in a body. Connection"""

    client_id: str = ""
    client_addr: str = ""
    language: str = ""
    version: int = 0


class _SubscriptionBody(msgspec.Struct, rename="camel"):
    """Subscription in a body. SubscriptionData"""

    topic: str = ""
    sub_string: str = ""
    expression_type: str = "TAG"


class _MembersBody(msgspec.Struct, rename="camel"):
    """Members of a group at one broker. ConsumerConnection"""

    connection_set: list[_ConnectionBody] = []
    subscription_table: dict[str, _SubscriptionBody] = {}
    consume_type: str | None = None
    message_model: str | None = None


class _ProgressBody(msgspec.Struct, rename="camel"):
    """Offsets of a group in a queue. OffsetWrapper"""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0


class _ProgressTable(msgspec.Struct, rename="camel"):
    """Offsets of a group at one broker. ConsumeStats"""

    offset_table: dict[str, _ProgressBody] = {}
    consume_tps: float = 0.0


class GroupsAdmin(TopicsAdmin):
    """Requests about consumer groups."""

    async def groups(self, *, brokers: Sequence[str] = ()) -> list[GroupInfo]:
        """Return all consumer groups of masters, by name.

        Args:
            brokers: Broker names; none: all.
        Raises:
            Refused: A broker refused the request.
            Unreachable: A broker does not respond.
        """
        settings: dict[str, dict[str, GroupSettings]] = {}
        for master in await self.masters(brokers):
            for name, value in (await self._all_groups(master.address)).items():
                settings.setdefault(name, {})[master.name] = value
        return [GroupInfo(name, by_broker) for name, by_broker in sorted(settings.items())]

    async def group(self, name: str) -> GroupState:
        """Return a group with its members, subscriptions and lag.

        Raises:
            NoRoute: No master has the group.
        """
        for info in await self.groups():
            if info.name == name:
                return await self.group_state(info)
        raise NoRoute(f"group {name} does not exist")

    async def group_state(self, info: GroupInfo) -> GroupState:
        """Return the members, subscriptions and lag of a group."""
        masters = await self.masters(list(info.settings))
        parts = [await self._state_at(master, info) for master in masters]
        return combined_group(info.name, parts)

    async def _state_at(self, master: BrokerMember, info: GroupInfo) -> GroupState:
        """Return the part of a group's state that one broker has."""
        report = await self._members_at(master, info.name) or _MembersBody()
        progress, rate = await self._progress_at(master, info.name)
        return GroupState(
            GroupInfo(info.name, {master.name: info.settings[master.name]}),
            [_member(each) for each in report.connection_set],
            [
                GroupSubscription(topic, each.sub_string, each.expression_type)
                for topic, each in report.subscription_table.items()
            ],
            progress,
            report.consume_type or "",
            report.message_model or "",
            rate,
        )

    async def group_settings(self, address: str, name: str) -> GroupSettings | None:
        """Return the settings of a group at one broker; None: the broker does not have it."""
        return (await self._all_groups(address)).get(name)

    async def create_group(
        self, name: str, settings: GroupSettings | None = None, *, brokers: Sequence[str] = ()
    ) -> None:
        """Create a consumer group at masters, or change it there.

        Settings of a group that `GroupSettings` does not have stay as they are.

        Args:
            settings: Settings. None: those of a new group; a broker that has the group does not
                change it.
            brokers: Broker names; none: all.
        Raises:
            Refused: A broker refused the name or a value.
        """
        value = settings or GroupSettings()
        for master in await self.masters(brokers):
            body = (await self._group_bodies(master.address)).get(name, {})
            if body and settings is None:
                continue
            body = body | {
                "groupName": name,
                "consumeEnable": value.enabled,
                "consumeFromMinEnable": value.from_first,
                "consumeBroadcastEnable": value.broadcast,
                "consumeMessageOrderly": value.ordered,
                "retryQueueNums": value.retry_queues,
                "retryMaxTimes": value.retries,
                "attributes": {},  # no change of them
                "brokerId": body.get("brokerId", 0),
                "whichBrokerWhenConsumeSlowly": body.get("whichBrokerWhenConsumeSlowly", 1),
                "notifyConsumerIdsChangedEnable": body.get("notifyConsumerIdsChangedEnable", True),
            }
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self.client.ask(master.address, code, body=json.dumps(body).encode())

    async def delete_group(self, name: str, *, dead_letters: bool = False) -> None:
        """Delete a group with its offsets and its retry topic at all masters.

        Args:
            dead_letters: Whether to delete the topic of its dead letters, too.
        Raises:
            NoRoute: No master has the group.
            Refused: A broker refused to delete it.
        """
        masters = await self.masters()
        holders = [
            each for each in masters if await self.group_settings(each.address, name) is not None
        ]
        if not holders:
            raise NoRoute(f"group {name} does not exist")
        fields = {"groupName": name, "cleanOffset": True, "removeOffset": True}
        for master in holders:
            await self.client.ask(master.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        prefixes = (RETRY_PREFIX, DLQ_PREFIX) if dead_letters else (RETRY_PREFIX,)
        for prefix in prefixes:
            topic = prefix + name
            if topic_holders := [
                each for each in masters if await self.topic_settings(each.address, topic)
            ]:
                await self.delete_topic_at(topic, topic_holders)

    async def reset_offsets(
        self, group: str, topic: str, to: ResetTo, *, dry_run: bool = False
    ) -> list[OffsetChange]:
        """Set the offsets of a group in a topic, of groups without members too.

        A message that a member has in memory may be consumed nevertheless.

        Args:
            to: Store time of the first message to consume, `earliest` or `latest`.
            dry_run: Whether to return the effect without any change.
        Raises:
            NoRoute: No master has the topic, or none has the group.
            Refused: A broker refused the request.
            ValueError: The time has no zone.
        """
        time_ms = _reset_ms(to)
        holders: list[tuple[BrokerMember, int]] = []
        has_group = False
        for master in await self.masters():
            settings = await self.topic_settings(master.address, topic)
            if settings is not None:
                holders.append((master, settings.read_queues))
            has_group = has_group or await self.group_settings(master.address, group) is not None
        if not holders:
            raise NoRoute(f"topic {topic} does not exist")
        if not has_group:
            raise NoRoute(f"group {group} does not exist")
        changes: list[OffsetChange] = []
        for master, queue_count in holders:
            planned = [
                await self._planned(master.address, group, topic, queue_id, time_ms, master.name)
                for queue_id in range(queue_count)
            ]
            changes += planned if dry_run else await self._reset_at(master, group, planned, time_ms)
        return changes

    async def _planned(
        self, address: str, group: str, topic: str, queue_id: int, time_ms: int, broker_name: str
    ) -> OffsetChange:
        fields = {"topic": topic, "queueId": queue_id, "consumerGroup": group}
        if time_ms == LATEST_MS:
            code = RequestCode.GET_MAX_OFFSET
        elif time_ms == EARLIEST_MS:
            code = RequestCode.GET_MIN_OFFSET
        else:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        target = await self.client.ask(address, code, {**fields, "timestamp": time_ms})
        code = RequestCode.QUERY_CONSUMER_OFFSET
        former = await self.client.call(address, code, fields)
        if former.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            raise self.client.refusal(former, address, code)
        offset = None if former.code == ResponseCode.QUERY_NOT_FOUND else _offset(former)
        queue = MessageQueue(topic, broker_name, queue_id)
        return OffsetChange(queue, offset, _offset(target))

    async def _reset_at(
        self, master: BrokerMember, group: str, planned: Sequence[OffsetChange], time_ms: int
    ) -> list[OffsetChange]:
        """Reset by the broker, or, if it resets groups with members only, by commits."""
        topic = planned[0].queue.topic if planned else ""
        fields = {"topic": topic, "group": group, "timestamp": time_ms, "isForce": True}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        response = await self.client.call(master.address, code, fields)
        if response.code == ResponseCode.SUCCESS:
            return list(_reset_offsets(response, planned))
        if response.code not in NOT_AT_THE_BROKER or await self._members_at(master, group):
            raise self.client.refusal(response, master.address, code)
        for change in planned:
            commit = {
                "consumerGroup": group,
                "topic": topic,
                "queueId": change.queue.queue_id,
                "commitOffset": change.offset,
            }
            await self.client.ask(master.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        return list(planned)

    async def _all_groups(self, address: str) -> dict[str, GroupSettings]:
        """Return all groups of a broker; request 352 for one would create it."""
        bodies = await self._group_bodies(address)
        return {name: msgspec.convert(body, _GroupBody).settings() for name, body in bodies.items()}

    async def _group_bodies(self, address: str) -> dict[str, dict[str, object]]:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        return parsed(await self.client.ask(address, code), _GroupTable).subscription_group_table

    async def _members_at(self, master: BrokerMember, group: str) -> _MembersBody | None:
        """Return the members of a group at a broker; None: there are none."""
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        response = await self.client.call(master.address, code, {"consumerGroup": group})
        if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, master.address, code)
        return parsed(response, _MembersBody)

    async def _progress_at(
        self, master: BrokerMember, group: str
    ) -> tuple[list[GroupProgress], float]:
        code = RequestCode.GET_CONSUME_STATS
        response = await self.client.ask(master.address, code, {"consumerGroup": group})
        table = parsed(response, _ProgressTable)
        progress = []
        for key, row in table.offset_table.items():
            name = queue_name(key)
            queue = MessageQueue(name.topic, master.name, name.queue_id)
            time = time_or_none(row.last_timestamp)
            progress.append(GroupProgress(queue, row.consumer_offset, row.broker_offset, time))
        progress.sort(key=lambda each: (each.queue.topic, each.queue.queue_id))
        return progress, table.consume_tps


def combined_group(name: str, parts: Sequence[GroupState]) -> GroupState:
    """Return the state of a group from its parts at several brokers."""
    settings = {broker: each for part in parts for broker, each in part.info.settings.items()}
    members = {each.client_id: each for part in parts for each in part.members}
    subscriptions = {each.topic: each for part in parts for each in part.subscriptions}
    return GroupState(
        GroupInfo(name, settings),
        [members[client_id] for client_id in sorted(members)],
        [subscriptions[topic] for topic in sorted(subscriptions)],
        [queue for part in parts for queue in part.queues],
        next((part.consume_type for part in parts if part.consume_type), ""),
        next((part.message_model for part in parts if part.message_model), ""),
        sum(part.rate for part in parts),
    )


def _member(body: _ConnectionBody) -> ConsumerMember:
    return ConsumerMember(body.client_id, body.client_addr, body.language, body.version)


def _offset(response: Response) -> int:
    try:
        return int((response.fields or {})["offset"])
    except (KeyError, ValueError):
        raise Refused(response.code, "the response has no offset") from None


def _reset_offsets(response: Response, planned: Iterable[OffsetChange]) -> Iterable[OffsetChange]:
    """Yield the changes with the offsets of a broker's response."""
    table: dict[str, int] = json_object(response).get("offsetTable", {})
    offsets = {queue_name(key).queue_id: int(offset) for key, offset in table.items()}
    for change in planned:
        offset = offsets.get(change.queue.queue_id, change.offset)
        yield OffsetChange(change.queue, change.former, offset)


def _reset_ms(to: ResetTo) -> int:
    if isinstance(to, datetime):
        return max(milliseconds(to), 1)
    if to not in (EARLIEST, LATEST):
        raise ValueError(f"{to!r} is neither a time, nor earliest, nor latest")
    return EARLIEST_MS if to == EARLIEST else LATEST_MS
