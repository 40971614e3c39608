"""Topics and consumer groups: lists, states, lag, resets of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from duemq.client.admin.cluster import BrokerMember
from duemq.client.admin.groups import (
    EARLIEST,
    GroupInfo,
    GroupSettings,
    GroupState,
    OffsetChange,
    combined_group,
)
from duemq.client.admin.topics import QueueState, TopicInfo, TopicSettings, TopicState
from duemq.http.broker_states import (
    BrokerState,
    UnknownPart,
    check_known,
    of_masters,
    unasked,
    unknown_of,
    values_of,
)
from duemq.http.endpoints import Call, Endpoint, invalid
from duemq.http.problems import Problem
from duemq.http.sent import Topic
from duemq.http.sessions import AccountSession
from duemq.registry.topic_config import MESSAGE_TYPE

PAGE_MAX: Final = 10_000
QUEUES_MAX: Final = 1_024


class NamesQuery(msgspec.Struct, kw_only=True):
    """Page of names.

    Attributes:
        prefix: Beginning of the names.
        after: Last name of the page before; empty: the first page.
    """

    prefix: Annotated[str, Meta(max_length=255)] = ""
    after: Annotated[str, Meta(max_length=255)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 1_000

    def selects(self, name: str) -> bool:
        """Return whether a name is on this page or a later one."""
        return name.startswith(self.prefix) and name > self.after


class PageOfTopics(msgspec.Struct):
    """Topics in order of their names.

    Attributes:
        more: Whether there are topics after them.
        unknown: Brokers whose topics are missing.
    """

    topics: list[TopicInfo]
    more: bool
    unknown: list[UnknownPart]


class PageOfGroups(msgspec.Struct):
    """Consumer groups in order of their names.

    Attributes:
        more: Whether there are groups after them.
        unknown: Brokers whose groups are missing.
    """

    groups: list[GroupInfo]
    more: bool
    unknown: list[UnknownPart]


class TopicDetails(msgspec.Struct):
    """Topic with its queues and the groups that read it.

    Attributes:
        unknown: Brokers whose queues are missing.
    """

    info: TopicInfo
    queues: list[QueueState]
    groups: list[str]
    unknown: list[UnknownPart]


class GroupDetails(msgspec.Struct):
    """Consumer group.

    Attributes:
        lag: Number of messages that are stored and not consumed, retries included; null: a part is
            unknown.
        unknown: Brokers whose part is missing.
    """

    group: GroupState
    lag: int | None
    unknown: list[UnknownPart]


class QueueLag(msgspec.Struct):
    """Progress of a group in a queue."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    max_offset: int
    lag: int
    last_consumed_at: datetime | None


class LagOfGroup(msgspec.Struct):
    """Messages that a group has not consumed.

    Attributes:
        lag: Their number, in all queues; null: a part is unknown.
        unknown: Brokers whose queues are missing.
    """

    group: str
    lag: int | None
    queues: list[QueueLag]
    unknown: list[UnknownPart]


class NewTopic(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Topic to create, or to change if it exists.

    A setting that is null stays as it is at a broker that has the topic: messages in queues beyond
    a smaller number are not read. A new topic has 8 queues, and clients may read and write it.

    Attributes:
        message_type: Type of message that v5 clients may send.
    """

    name: Topic
    read_queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] | None = None
    write_queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] | None = None
    readable: bool | None = None
    writable: bool | None = None
    message_type: Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"] | None = (
        None
    )

    def applied_to(self, former: TopicSettings) -> TopicSettings:
        """Return settings with the given values."""
        given = {
            name: value
            for name in ("read_queues", "write_queues", "readable", "writable")
            if (value := getattr(self, name)) is not None
        }
        kind = {MESSAGE_TYPE: self.message_type} if self.message_type else {}
        return replace(former, **given, attributes={**former.attributes, **kind})


class OffsetReset(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Reset of the offsets of a group in a topic: either `since` or `to`.

    Attributes:
        since: Store time of the first message to consume.
        to: `earliest` or `latest`.
        dry_run: Whether to report the effect without changing anything.
    """

    topic: Topic
    since: Annotated[datetime, Meta(tz=True)] | None = None
    to: Literal["earliest", "latest"] | None = None
    dry_run: bool = False


class OffsetChanges(msgspec.Struct):
    """Changed offsets, by queue.

    Attributes:
        unknown: Brokers that are not registered: their offsets were not changed.
    """

    changes: list[OffsetChange]
    unknown: list[UnknownPart]


async def list_topics(call: Call) -> PageOfTopics:
    """Return a page of the topics."""
    query, admin = call.query or NamesQuery(), call.session.admin
    states = await of_masters(call.session, lambda one: admin.topics(brokers=[one.name]))
    topics: dict[str, TopicInfo] = {}
    for part in values_of(states):
        for topic in part:
            topics[topic.name] = merged_topic([*filter(None, [topics.get(topic.name)]), topic])
    names, more = _page_of_names(query, topics)
    return PageOfTopics([topics[name] for name in names], more, unknown_of(states))


def _page_of_names(query: NamesQuery, names: Iterable[str]) -> tuple[list[str], bool]:
    """Return the names of a page, and whether there are more."""
    rest = sorted(filter(query.selects, names))
    return rest[: query.limit], len(rest) > query.limit


async def show_topic(call: Call) -> TopicDetails:
    """Return a topic with its queues and the groups that read it."""
    return await _topic_details(call, call.path["name"])


async def _topic_details(call: Call, name: str) -> TopicDetails:
    admin = call.session.admin

    async def part(member: BrokerMember) -> list[TopicState]:
        if await admin.topic_settings(member.address, name) is None:
            return []
        return [await admin.topic(name, brokers=[member.name])]

    states = await of_masters(call.session, part)
    parts: list[TopicState] = [topic for topics in values_of(states) for topic in topics]
    unknown = unknown_of(states)
    if not parts:
        check_known(unknown, name)
        raise Problem(404, "no-topic", "There is no such topic", name)
    info = merged_topic([one.info for one in parts])
    queues = [queue for one in parts for queue in one.queues]
    groups = sorted({group for one in parts for group in one.groups})
    return TopicDetails(info, queues, groups, unknown)


def merged_topic(parts: Sequence[TopicInfo]) -> TopicInfo:
    """Return a topic from its parts at several brokers."""
    settings = {broker: each for part in parts for broker, each in part.settings.items()}
    return TopicInfo(parts[0].name, parts[0].kind, settings)


async def create_topic(call: Call) -> TopicDetails:
    """Create or change a topic at all masters."""
    new: NewTopic = call.body
    admin = call.session.admin
    masters = await admin.masters()
    former = [await admin.topic_settings(master.address, new.name) for master in masters]
    for master, settings in zip(masters, former, strict=True):
        changed = new.applied_to(settings or TopicSettings())
        if changed != settings:
            await admin.create_topic(new.name, changed, brokers=[master.name])
    return await _topic_details(call, new.name)


async def list_groups(call: Call) -> PageOfGroups:
    """Return a page of the consumer groups."""
    query, admin = call.query or NamesQuery(), call.session.admin
    states = await of_masters(call.session, lambda one: admin.groups(brokers=[one.name]))
    settings: dict[str, dict[str, GroupSettings]] = {}
    for part in values_of(states):
        for group in part:
            settings.setdefault(group.name, {}).update(group.settings)
    names, more = _page_of_names(query, settings)
    groups = [GroupInfo(name, settings[name]) for name in names]
    return PageOfGroups(groups, more, unknown_of(states))


async def show_group(call: Call) -> GroupDetails:
    """Return a group with its members, subscriptions and offsets."""
    name = call.path["name"]
    states = await states_of_group(call.session, name)
    parts: list[GroupState] = [group for groups in values_of(states) for group in groups]
    unknown = unknown_of(states)
    if not parts:
        check_known(unknown, name)
        raise Problem(404, "no-group", "There is no such consumer group", name)
    state = combined_group(name, parts)
    return GroupDetails(state, None if unknown else state.lag, unknown)


async def states_of_group(session: AccountSession, name: str) -> list[BrokerState]:
    """Return the state of a group at each broker, in a list; without a state if it has none."""
    admin = session.admin

    async def part(member: BrokerMember) -> list[GroupState]:
        infos = await admin.groups(brokers=[member.name])
        return [await admin.group_state(info) for info in infos if info.name == name]

    return await of_masters(session, part)


async def show_lag(call: Call) -> LagOfGroup:
    """Return the lag of a group by queue."""
    details = await show_group(call)
    queues = [
        QueueLag(
            each.queue.topic,
            each.queue.broker_name,
            each.queue.queue_id,
            each.offset,
            each.max_offset,
            each.lag,
            each.last_consumed_at,
        )
        for each in details.group.queues
    ]
    return LagOfGroup(details.group.info.name, details.lag, queues, details.unknown)


async def reset_offsets(call: Call) -> OffsetChanges:
    """Set the offsets of a group in a topic."""
    body: OffsetReset = call.body
    if (body.since is None) == (body.to is None):
        raise invalid("give either since or to")
    changes = await call.session.admin.reset_offsets(
        call.path["name"], body.topic, body.since or body.to or EARLIEST, dry_run=body.dry_run
    )
    return OffsetChanges(changes, await unasked(call.session))


ENDPOINTS: Final = (
    Endpoint(
        path="/topics",
        handler=list_topics,
        summary="List topics.",
        tag="topics",
        query=NamesQuery,
        result=PageOfTopics,
    ),
    Endpoint(
        method="POST",
        path="/topics",
        handler=create_topic,
        summary="Create a topic at all masters, or change it there.",
        tag="topics",
        body=NewTopic,
        result=TopicDetails,
    ),
    Endpoint(
        path="/topics/{name}",
        handler=show_topic,
        summary="Show a topic, its queues and the groups that read it.",
        tag="topics",
        result=TopicDetails,
    ),
    Endpoint(
        path="/groups",
        handler=list_groups,
        summary="List consumer groups.",
        tag="groups",
        query=NamesQuery,
        result=PageOfGroups,
    ),
    Endpoint(
        path="/groups/{name}",
        handler=show_group,
        summary="Show a group, its members, subscriptions and offsets.",
        tag="groups",
        result=GroupDetails,
    ),
    Endpoint(
        path="/groups/{name}/lag",
        handler=show_lag,
        summary="Show how many messages a group has not consumed.",
        tag="groups",
        result=LagOfGroup,
    ),
    Endpoint(
        method="POST",
        path="/groups/{name}/offsets",
        handler=reset_offsets,
        summary="Set the offsets of a group in a topic.",
        tag="groups",
        body=OffsetReset,
        result=OffsetChanges,
    ),
)
