"""Topics of a cluster: list, describe, create, change, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import msgspec

from duemq.client.admin.cluster import (
    BrokerMember,
    ClusterAdmin,
    parsed,
    queue_name,
    time_or_none,
)
from duemq.client.client import FIRST_VERSION_5
from duemq.client.errors import NoRoute, Unsupported
from duemq.client.message import MessageQueue
from duemq.client.routes import READ, WRITE
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.topics import DLQ_PREFIX, RETRY_PREFIX, TEMPLATE_TOPIC

QUEUES: Final = 8  # of a new topic. mqadmin updateTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Settings of a topic at one broker.

    Attributes:
        readable, writable: Whether clients may read the topic and send to it.
        ordered: Mark of a topic whose messages are ordered; brokers do not use it.
        attributes: Attributes of RocketMQ 5, such as `message.type`.
    """

    read_queues: int = QUEUES
    write_queues: int = QUEUES
    readable: bool = True
    writable: bool = True
    ordered: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def permission(self) -> str:
        """`RW`, `R`, `W` or `-`."""
        return ("R" * self.readable + "W" * self.writable) or "-"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Topic, and its settings by broker name.

    Attributes:
        kind: `normal`, `retry` or `dead letters` of a group, or `internal`.
    """

    name: str
    kind: str
    settings: Mapping[str, TopicSettings]


@dataclass(frozen=True, slots=True)
class QueueState:
    """Stored messages of a queue.

    Attributes:
        min_offset, max_offset: Offset of the first message, and after the last one.
        last_stored_at: Time of the last message.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_at: datetime | None

    @property
    def messages(self) -> int:
        """Number of stored messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicState:
    """Topic with its queues and the groups that read it."""

    info: TopicInfo
    queues: Sequence[QueueState]
    groups: Sequence[str]

    @property
    def messages(self) -> int:
        """Number of stored messages."""
        return sum(queue.messages for queue in self.queues)


class _TopicBody(msgspec.Struct, rename="camel"):
    """Settings in a body. TopicConfig"""

    topic_name: str
    read_queue_nums: int = QUEUES
    write_queue_nums: int = QUEUES
    perm: int = READ | WRITE
    order: bool = False
    attributes: dict[str, str] | None = None

    def settings(self) -> TopicSettings:
        return TopicSettings(
            read_queues=self.read_queue_nums,
            write_queues=self.write_queue_nums,
            readable=bool(self.perm & READ),
            writable=bool(self.perm & WRITE),
            ordered=self.order,
            attributes=self.attributes or {},
        )


class _TopicTable(msgspec.Struct, rename="camel"):
    """Settings of all topics. TopicConfigSerializeWrapper"""

    topic_config_table: dict[str, _TopicBody] = {}


class _TopicNames(msgspec.Struct, rename="camel"):
    """Names of topics. TopicList"""

    topic_list: list[str] = []


class _GroupNames(msgspec.Struct, rename="camel"):
    """Names of groups. GroupList"""

    group_list: list[str] = []


class _OffsetRange(msgspec.Struct, rename="camel"):
    """Offsets of a queue. TopicOffset"""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class _QueueRanges(msgspec.Struct, rename="camel"):
    """Offsets of the queues of a topic. TopicStatsTable"""

    offset_table: dict[str, _OffsetRange] = {}


class TopicsAdmin(ClusterAdmin):
    """Requests about topics."""

    async def topics(self, *, brokers: Sequence[str] = ()) -> list[TopicInfo]:
        """Return all topics of masters, by name.

        Args:
            brokers: Broker names; none: all.
        Raises:
            Refused: A broker refused the request.
            Unreachable: A broker does not respond.
        """
        settings: dict[str, dict[str, TopicSettings]] = {}
        internal: set[str] = set()
        for master in await self.masters(brokers):
            for name, value in (await self._all_settings(master.address)).items():
                settings.setdefault(name, {})[master.name] = value
            internal |= await self._internal_topics(master)
        return [
            TopicInfo(name, _kind(name, internal), by_broker)
            for name, by_broker in sorted(settings.items())
        ]

    async def topic(self, name: str, *, brokers: Sequence[str] = ()) -> TopicState:
        """Return a topic with its queues and the groups that read it.

        Args:
            brokers: Broker names; none: all.
        Raises:
            NoRoute: No master has the topic.
        """
        settings: dict[str, TopicSettings] = {}
        internal: set[str] = set()
        queues: list[QueueState] = []
        groups: set[str] = set()
        for master in await self.masters(brokers):
            value = await self.topic_settings(master.address, name)
            if value is None:
                continue
            settings[master.name] = value
            queues += await self.queue_states(master, name)
            groups |= await self._groups_of(master, name)
            internal |= await self._internal_topics(master)
        if not settings:
            raise NoRoute(f"topic {name} does not exist")
        return TopicState(TopicInfo(name, _kind(name, internal), settings), queues, sorted(groups))

    async def topic_settings(self, address: str, name: str) -> TopicSettings | None:
        """Return the settings of a topic at one broker; None: the broker does not have it."""
        code = RequestCode.GET_TOPIC_CONFIG
        response = await self.client.call(address, code, {"topic": name})
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # before 5.0
            return (await self._all_settings(address)).get(name)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        return parsed(response, _TopicBody).settings()

    async def create_topic(
        self, name: str, settings: TopicSettings | None = None, *, brokers: Sequence[str] = ()
    ) -> None:
        """Create a topic at masters, or change it there.

        Args:
            settings: Settings; attributes that exist and are not given stay. None: those that the
                broker has, or those of a new topic.
            brokers: Broker names; none: all.
        Raises:
            Unsupported: A broker before 5.0 has no attributes of topics.
            Refused: A broker refused the name or a value.
        """
        masters = await self.masters(brokers)
        if settings is not None and settings.attributes:
            for master in masters:
                if await self.client.version(master.address) < FIRST_VERSION_5:
                    raise Unsupported(
                        f"broker {master.name} has no attributes of topics: it is "
                        "older than RocketMQ 5.0"
                    )
        for master in masters:
            value = settings or await self._settings_to_keep(master.address, name)
            fields = {
                "topic": name,
                "defaultTopic": TEMPLATE_TOPIC,
                "readQueueNums": value.read_queues,
                "writeQueueNums": value.write_queues,
                "perm": READ * value.readable | WRITE * value.writable,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": value.ordered,
                "attributes": ",".join(f"+{key}={text}" for key, text in value.attributes.items()),
            }
            await self.client.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def _settings_to_keep(self, address: str, name: str) -> TopicSettings:
        """Return the settings of a topic at one broker, without attributes: they stay."""
        settings = await self.topic_settings(address, name)
        return replace(settings, attributes={}) if settings else TopicSettings()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages and offsets at all masters and name servers.

        Raises:
            NoRoute: No master has the topic.
            Refused: A broker refused to delete it.
        """
        holders = [
            master
            for master in await self.masters()
            if await self.topic_settings(master.address, name) is not None
        ]
        if not holders:
            raise NoRoute(f"topic {name} does not exist")
        await self.delete_topic_at(name, holders)

    async def delete_topic_at(self, name: str, holders: Sequence[BrokerMember]) -> None:
        """Delete a topic at some masters and at all name servers."""
        for master in holders:
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            await self.client.ask(master.address, code, {"topic": name})
        for address in list(self.client.namesrvs):
            code = RequestCode.DELETE_TOPIC_IN_NAMESRV
            await self.client.ask(address, code, {"topic": name})

    async def _all_settings(self, address: str) -> dict[str, TopicSettings]:
        response = await self.client.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        table = parsed(response, _TopicTable).topic_config_table
        return {name: body.settings() for name, body in table.items()}

    async def _internal_topics(self, master: BrokerMember) -> set[str]:
        code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
        response = await self.client.call(master.address, code)
        if response.code != ResponseCode.SUCCESS:
            return set()
        return set(parsed(response, _TopicNames).topic_list)

    async def queue_states(self, master: BrokerMember, topic: str) -> list[QueueState]:
        """Return the queues of a topic at one master."""
        code = RequestCode.GET_TOPIC_STATS_INFO
        response = await self.client.ask(master.address, code, {"topic": topic})
        table = parsed(response, _QueueRanges).offset_table
        states = [
            QueueState(
                MessageQueue(topic, master.name, queue_name(key).queue_id),
                max(row.min_offset, 0),
                max(row.max_offset, 0),
                time_or_none(row.last_update_timestamp),
            )
            for key, row in table.items()
        ]
        return sorted(states, key=lambda state: state.queue.queue_id)

    async def _groups_of(self, master: BrokerMember, topic: str) -> set[str]:
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        response = await self.client.call(master.address, code, {"topic": topic})
        if response.code != ResponseCode.SUCCESS:
            return set()
        return set(parsed(response, _GroupNames).group_list)


def _kind(name: str, internal: set[str]) -> str:
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead letters"
    return "internal" if name in internal else "normal"
