"""Accesses of requests: the resources that a request names in its header or body, and the actions.

Client codes have individual functions, because a topic name may stand for a consumer group. All
other codes have a `Rule`: the action, and the header fields with topics, groups or clusters.

Source: DefaultAuthorizationContextBuilder and the RocketMQAction and RocketMQResource annotations
of Apache 5.3.3's request headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from msgspec import Struct

from duemq.auth.model import Action, Resource, ResourceType, is_retry_topic
from duemq.auth.request_bodies import (
    AckBody,
    AssignmentBody,
    DecisionBody,
    HeartbeatBody,
    LockBody,
    decoded,
)
from duemq.net.retry_topics import normal_topic
from duemq_common.recall_handle import HandleError, decode_handle

Fields = Mapping[str, str]
LIST_SEPARATOR: Final = ";"
ACCESSES_MAX: Final = 4_096  # per request, as the check blocks the event loop
HANDLES_MAX: Final = 10_000  # as the handlers of decisions
ACK_OBJECTS_MAX: Final = 16_384  # decoded before the permission check; the handler accepts 1,024
T = TypeVar("T")


class TooManyNames(ValueError):
    """A request has more topics and groups than ACCESSES_MAX, or handles than HANDLES_MAX."""


class Access(Struct, frozen=True):
    """Access to a resource; the account needs permission for any of the actions."""

    resource: Resource
    actions: tuple[Action, ...]


Permission = Callable[[Fields, bytes, str], Iterator[Access]]
"""Yields the accesses of a request with these header fields and this body; the third argument is
the name of the broker's cluster.

Raises:
    TooManyNames: There are too many resources.
    ValueError: The body is malformed.
"""


class NamedField(Struct, frozen=True):
    """Header field with names of resources, separated by `separator` if given."""

    type: ResourceType
    field: str
    separator: str = ""

    def resources(self, fields: Fields) -> Iterator[Resource]:
        """Yield the resources in the field, if it is present."""
        if (text := fields.get(self.field)) is None:
            return
        names = text.split(self.separator) if self.separator else [text]
        for name in distinct(name for name in names if name or not self.separator):
            is_topic = self.type is ResourceType.TOPIC
            yield Resource.of_topic(name) if is_topic else Resource(self.type, name)


class Rule(Struct, frozen=True):
    """Permission of one action on the resources in header fields, or else the broker's cluster."""

    action: Action
    named: tuple[NamedField, ...] = ()
    cluster: bool = False

    def __call__(self, fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
        """Yield the accesses of a request with these header fields."""
        has_names = False
        for named in self.named:
            for resource in named.resources(fields):
                has_names = True
                yield Access(resource, (self.action,))
        if self.cluster and not has_names:
            yield Access(Resource(ResourceType.CLUSTER, cluster), (self.action,))


def distinct(names: Iterable[T]) -> Iterator[T]:
    """Yield the distinct names in their order, before an access is made for each.

    A body of 16 MiB has room for half a million equal names.
    """
    seen: set[T] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def _on_topic(name: str | None, *actions: Action) -> Access:
    return Access(Resource(ResourceType.TOPIC, name), actions)


def _on_group(name: str | None, *actions: Action) -> Access:
    return Access(Resource.group(name or ""), actions)


def on_topic(*actions: Action) -> Permission:
    """Return the permission of any of the actions on the topic of a request."""

    def accesses_of_topic(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
        yield _on_topic(fields.get("topic"), *actions)

    return accesses_of_topic


def on_group(field: str, *actions: Action) -> Permission:
    """Return the permission of any of the actions on the group in a header field."""

    def accesses_of_group(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
        yield _on_group(fields.get(field), *actions)

    return accesses_of_group


def route(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the topic whose route is requested, or the group of a retry topic."""
    topic = fields.get("topic")
    if is_retry_topic(topic):
        yield _on_group(topic, Action.SUB, Action.GET)
    else:
        yield _on_topic(topic, Action.PUB, Action.SUB, Action.GET)


def send(topic_field: str, group_field: str) -> Permission:
    """Return the permission to send to a topic; to a retry topic, that of its group."""

    def accesses_of_send(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
        topic = fields.get(topic_field)
        if is_retry_topic(topic):  # a retry message of a consumer: check its group
            group = fields.get(group_field)
            if group and group.strip():
                yield _on_group(group, Action.SUB)
            yield _on_group(topic, Action.SUB)
        else:
            yield _on_topic(topic, Action.PUB)

    return accesses_of_send


def end_transaction(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the topic of a transaction, if the request names it."""
    if (fields.get("topic") or "").strip():
        yield _on_topic(fields["topic"], Action.PUB)


def consume(*actions: Action) -> Permission:
    """Return the permission of any of the actions on the topic and the group of a consumer."""

    def accesses_of_consumption(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
        topic = fields.get("topic")
        if not is_retry_topic(topic):
            yield _on_topic(topic, *actions)
        yield _on_group(fields.get("consumerGroup"), *actions)
        if is_retry_topic(topic):
            yield _on_group(topic, *actions)

    return accesses_of_consumption


def heartbeat(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the groups of the consumers and the topics of their subscriptions."""
    for name, is_group in distinct(_heartbeat_names(body)):
        if is_group:
            yield _on_group(name, Action.SUB)
        elif not is_retry_topic(name):
            yield _on_topic(name, Action.SUB)


def _heartbeat_names(body: bytes) -> Iterator[tuple[str, bool]]:
    """Yield each group and each topic, and whether it is a group."""
    for consumer in decoded(body, HeartbeatBody).consumers or ():
        yield consumer.group or "", True
        for subscription in consumer.subscriptions or ():
            yield subscription.topic or "", False


def unregister(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the group of a consumer, if the client is one."""
    if (fields.get("consumerGroup") or "").strip():
        yield _on_group(fields["consumerGroup"], Action.SUB)


def lock(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the group and the topics of the queues that it locks or unlocks."""
    locks = decoded(body, LockBody)
    yield _on_group(locks.group, Action.SUB)
    for topic in distinct(queue.topic or "" for queue in locks.queues or ()):
        if not is_retry_topic(topic):
            yield _on_topic(topic, Action.SUB)


def acknowledge(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the group and the popped topic, or for a retry topic its original topic."""
    group, topic = fields.get("consumerGroup") or "", fields.get("topic") or ""
    yield _on_group(group, Action.SUB)
    yield Access(Resource.of_topic(normal_topic(topic, group)), (Action.SUB,))


def acknowledge_batch(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the groups and the popped topics of all acknowledgements."""
    for group, topic in acknowledged_names(body):
        yield _on_group(group, Action.SUB)
        yield Access(Resource.of_topic(normal_topic(topic, group)), (Action.SUB,))


def acknowledged_names(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield each group and popped topic of a batch of acknowledgements.

    Raises:
        TooManyNames: There are more than `ACK_OBJECTS_MAX` acknowledgements.
        ValueError: The body is malformed.
    """
    if body.count(b"{") > ACK_OBJECTS_MAX:
        raise TooManyNames(f"the request has more than {ACK_OBJECTS_MAX} acknowledgements")
    yield from distinct(ack.names for ack in decoded(body, AckBody).acks or ())


def assign(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the group and the topic whose queues are assigned."""
    assignment = decoded(body, AssignmentBody)
    yield _on_group(assignment.group, Action.SUB)
    if not is_retry_topic(assignment.topic):
        yield _on_topic(assignment.topic or "", Action.SUB)


def decide_hits(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the topic of a bulk decision, or the cluster if it has none."""
    topic = fields.get("topic")
    resource = (
        Resource(ResourceType.CLUSTER, cluster) if topic is None else Resource.of_topic(topic)
    )
    yield Access(resource, (Action.UPDATE,))


def decide(fields: Fields, body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the topics that a body selects, or the cluster if it has none."""
    selection = decoded(body, DecisionBody)
    handles = selection.handles or []
    if selection.topic:
        yield Access(Resource.of_topic(selection.topic), (Action.UPDATE,))
    elif selection.names_messages or not handles:
        yield Access(Resource(ResourceType.CLUSTER, cluster), (Action.UPDATE,))
    if len(handles) > HANDLES_MAX:
        raise TooManyNames(f"the request has more than {HANDLES_MAX} handles")
    for handle in handles:
        with suppress(HandleError):  # an invalid handle selects nothing
            yield Access(Resource.of_topic(decode_handle(handle).topic), (Action.UPDATE,))
