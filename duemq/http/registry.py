"""Topics and consumer groups: lists, states, lag, resets of offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from duemq.client.admin.groups import EARLIEST, GroupInfo, GroupState, OffsetChange
from duemq.client.admin.topics import TopicInfo, TopicSettings, TopicState
from duemq.http.endpoints import Call, Endpoint, invalid
from duemq.http.sent import Topic

PAGE_MAX: Final = 10_000
QUEUES_MAX: Final = 1_024
MESSAGE_TYPE: Final = "message.type"


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
    """

    topics: list[TopicInfo]
    more: bool


class PageOfGroups(msgspec.Struct):
    """Consumer groups in order of their names.

    Attributes:
        more: Whether there are groups after them.
    """

    groups: list[GroupInfo]
    more: bool


class GroupDetails(msgspec.Struct):
    """Consumer group.

    Attributes:
        lag: Number of messages that are stored and not consumed, retries included.
    """

    group: GroupState
    lag: int


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
        lag: Their number, in all queues.
    """

    group: str
    lag: int
    queues: list[QueueLag]


class NewTopic(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Topic to create, or to change if it exists.

    Attributes:
        message_type: Type of message that v5 clients may send; null: unchanged.
    """

    name: Topic
    read_queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] = 8
    write_queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] = 8
    readable: bool = True
    writable: bool = True
    message_type: Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"] | None = None


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
    """Changed offsets, by queue."""

    changes: list[OffsetChange]


async def list_topics(call: Call) -> PageOfTopics:
    """Return a page of the topics."""
    query: NamesQuery = call.query or NamesQuery()
    rows = [each for each in await call.session.admin.topics() if query.selects(each.name)]
    return PageOfTopics(rows[: query.limit], len(rows) > query.limit)


async def show_topic(call: Call) -> TopicState:
    """Return a topic with its queues and the groups that read it."""
    return await call.session.admin.topic(call.path["name"])


async def create_topic(call: Call) -> TopicState:
    """Create or change a topic at all masters."""
    new: NewTopic = call.body
    settings = TopicSettings(
        read_queues=new.read_queues,
        write_queues=new.write_queues,
        readable=new.readable,
        writable=new.writable,
        attributes={MESSAGE_TYPE: new.message_type} if new.message_type else {},
    )
    await call.session.admin.create_topic(new.name, settings)
    return await call.session.admin.topic(new.name)


async def list_groups(call: Call) -> PageOfGroups:
    """Return a page of the consumer groups."""
    query: NamesQuery = call.query or NamesQuery()
    rows = [each for each in await call.session.admin.groups() if query.selects(each.name)]
    return PageOfGroups(rows[: query.limit], len(rows) > query.limit)


async def show_group(call: Call) -> GroupDetails:
    """Return a group with its members, subscriptions and offsets."""
    state = await call.session.admin.group(call.path["name"])
    return GroupDetails(state, state.lag)


async def show_lag(call: Call) -> LagOfGroup:
    """Return the lag of a group by queue."""
    state = await call.session.admin.group(call.path["name"])
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
        for each in state.queues
    ]
    return LagOfGroup(state.info.name, state.lag, queues)


async def reset_offsets(call: Call) -> OffsetChanges:
    """Set the offsets of a group in a topic."""
    body: OffsetReset = call.body
    if (body.since is None) == (body.to is None):
        raise invalid("give either since or to")
    changes = await call.session.admin.reset_offsets(
        call.path["name"], body.topic, body.since or body.to or EARLIEST, dry_run=body.dry_run
    )
    return OffsetChanges(changes)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
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
        result=TopicState,
    ),
    Endpoint(
        method="GET",
        path="/topics/{name}",
        handler=show_topic,
        summary="Show a topic, its queues and the groups that read it.",
        tag="topics",
        result=TopicState,
    ),
    Endpoint(
        method="GET",
        path="/groups",
        handler=list_groups,
        summary="List consumer groups.",
        tag="groups",
        query=NamesQuery,
        result=PageOfGroups,
    ),
    Endpoint(
        method="GET",
        path="/groups/{name}",
        handler=show_group,
        summary="Show a group, its members, subscriptions and offsets.",
        tag="groups",
        result=GroupDetails,
    ),
    Endpoint(
        method="GET",
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
