"""Permissions of ACL 1.0 that a request needs: on topics, and on the retry topics of groups.

DueMQ also checks codes that Apache's broker opens to every account. Batches and ends of
transactions require PUB on the topic, lite pulls, pops, acknowledgements and resets SUB on topic
and group, locks SUB on the group.

Source: PlainAccessValidator.parse of Apache 4.9.7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duemq.auth.accesses import acknowledged_names
from duemq.auth.model import is_retry_topic
from duemq.auth.plain_rules import PUB, SUB
from duemq.auth.request_bodies import HeartbeatBody, LockBody, decoded
from duemq.net.retry_topics import normal_topic
from duemq_common.request import Request
from duemq_common.topics import RETRY_PREFIX

Needed = Iterator[tuple[str | None, int]]
PlainPermission = Callable[[Request], Needed]
"""Yields pairs of a topic, or the retry topic of a group, and PUB or SUB; None: no such field.

Raises:
    ValueError: The body is malformed.
"""


def administrator(request: Request) -> Needed:
    """Yield nothing: the request requires an administrator."""
    return iter(())


def on_topic(permission: int, field: str = "topic") -> PlainPermission:
    """Return the permission on the topic in a header field."""
    return lambda request: iter([(request.fields.get(field), permission)])


def on_group(field: str) -> PlainPermission:
    """Return SUB on the group in a header field."""
    return lambda request: iter([(_retry_topic(request.fields.get(field)), SUB)])


def send(topic_field: str, group_field: str) -> PlainPermission:
    """Return PUB on a topic; for a retry topic, SUB on it and on the group."""

    def needed(request: Request) -> Needed:
        topic = request.fields.get(topic_field)
        if is_retry_topic(topic):
            yield _retry_topic(request.fields.get(group_field)), SUB
            yield topic, SUB
        else:
            yield topic, PUB

    return needed


def pull(request: Request) -> Needed:
    """Yield the topic and the group of a pull or a pop."""
    yield request.fields.get("topic"), SUB
    yield _retry_topic(request.fields.get("consumerGroup")), SUB


def acknowledge(request: Request) -> Needed:
    """Yield the group and the popped topic of an acknowledgement."""
    group, topic = (request.fields.get(name) or "" for name in ("consumerGroup", "topic"))
    return _acknowledged(group, topic)


def acknowledge_batch(request: Request) -> Needed:
    """Yield the groups and the popped topics of all acknowledgements."""
    for group, topic in acknowledged_names(request.body):
        yield from _acknowledged(group, topic)


def _acknowledged(group: str, topic: str) -> Needed:
    yield _retry_topic(group), SUB
    yield normal_topic(topic, group), SUB


def progress(group_field: str) -> PlainPermission:
    """Return SUB on the group in a header field, and on the topic."""

    def needed(request: Request) -> Needed:
        yield _retry_topic(request.fields.get(group_field)), SUB
        yield request.fields.get("topic"), SUB

    return needed


def lock(request: Request) -> Needed:
    """Yield the group that locks or unlocks queues."""
    yield _retry_topic(decoded(request.body, LockBody).group or ""), SUB


def heartbeat(request: Request) -> Needed:
    """Yield the groups of the consumers and the topics of their subscriptions."""
    for consumer in decoded(request.body, HeartbeatBody).consumers or ():
        yield _retry_topic(consumer.group or ""), SUB
        for subscription in consumer.subscriptions or ():
            yield subscription.topic or "", SUB


def _retry_topic(group: str | None) -> str | None:
    return None if group is None else RETRY_PREFIX + group.removeprefix(RETRY_PREFIX)
