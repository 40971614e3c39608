"""Required permissions of each request code: resources and actions.

A request is permitted if the account has permission for every access in the list. Client codes have
individual functions, because a topic name may stand for a consumer group. All other codes have a
rule: the action, and the header fields with topics, groups or clusters.

Some checks are DueMQ's: Apache's broker opens the codes of `OWN_RULES` to every authenticated user,
and for a retry topic checks only the group in the request, not the group that owns the topic.

Source: DefaultAuthorizationContextBuilder and the RocketMQAction and RocketMQResource annotations
of Apache 5.3.3's request headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

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


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a resource; the account needs permission for any of the actions."""

    resource: Resource
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class NamedField:
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


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of one request code: resources in header fields, or else the broker's cluster."""

    action: Action
    named: tuple[NamedField, ...] = ()
    cluster: bool = False

    def accesses(self, fields: Fields, cluster: str) -> Iterator[Access]:
        """Yield the accesses of a request with these header fields."""
        has_names = False
        for named in self.named:
            for resource in named.resources(fields):
                has_names = True
                yield Access(resource, (self.action,))
        if self.cluster and not has_names:
            yield Access(Resource(ResourceType.CLUSTER, cluster), (self.action,))


def _topic(field: str = "topic", separator: str = "") -> NamedField:
    return NamedField(ResourceType.TOPIC, field, separator)


def _group(field: str = "group", separator: str = "") -> NamedField:
    return NamedField(ResourceType.GROUP, field, separator)


def _cluster(field: str = "clusterName") -> NamedField:
    return NamedField(ResourceType.CLUSTER, field)


def _on_cluster(action: Action, *codes: int) -> dict[int, Rule]:
    return {code: Rule(action, cluster=True) for code in codes}


def _named(action: Action, *named: NamedField, codes: tuple[int, ...]) -> dict[int, Rule]:
    return {code: Rule(action, named) for code in codes}


DECISIONS: Final = (9011, 9012, 9013)
"""Cancel, move, fire: the resource is the topic in the body, or else the cluster."""
_CONSUMER: Final = _group("consumerGroup")
RULES: Final[Mapping[int, Rule]] = {
    **_named(Action.CREATE, _topic(), codes=(17,)),
    **_named(Action.DELETE, _topic(), codes=(215,)),
    **_named(Action.DELETE, _group("groupName"), codes=(207,)),
    **_named(Action.GET, _topic(), codes=(29, 30, 31, 32, 33, 202, 300, 351, 354)),
    **_named(Action.GET, _group(), codes=(343, 352)),
    **_named(Action.GET, _CONSUMER, codes=(203, 307)),
    **_named(Action.GET, _topic(), _group(), codes=(223, 303, 345)),
    **_named(Action.GET, _topic(), _CONSUMER, codes=(321, 200055)),
    **_named(Action.GET, _CONSUMER, _topic(), _topic("topicList", LIST_SEPARATOR), codes=(208,)),
    **_named(
        Action.GET, _group("filterGroups", ","), _group("compareGroup"), _topic(), codes=(308,)
    ),
    **_named(Action.GET, _cluster(), codes=(901,)),
    **_named(Action.PUB, _topic(), codes=(39,)),
    **_named(Action.SUB, _CONSUMER, codes=(40,)),
    **_named(Action.SUB, _group("producerGroup"), _topic(), codes=(326,)),
    **_named(Action.SUB, _CONSUMER, _topic(), codes=(309, 200050, 200052, 200054)),
    **_named(Action.UPDATE, _topic(), codes=(323,)),
    **_named(Action.UPDATE, _group(), _topic(), codes=(222, 353)),
    **_named(Action.UPDATE, _group("destGroup"), _topic(), codes=(314,)),
    **_on_cluster(Action.GET, 101, 204, 219, 315, 317, 328, 355, 1004, 3004, 3005, 3009, 3010),
    **_on_cluster(Action.UPDATE, 100, 102, 205, 217, 327, 902, 905, 906, 908, 1001, 1008),
    **_on_cluster(Action.UPDATE, 3001, 3002, 3003, 3006, 3007, 3008),
    **{code: Rule(Action.GET, (_cluster(),), cluster=True) for code in (322, 1012)},
    **{
        code: Rule(Action.UPDATE, (_cluster(),), cluster=True)
        for code in (103, 104, 216, 904, 1002, 1003, 1011, 1013)
    },
    903: Rule(Action.UPDATE, (_cluster("brokerClusterName"),), cluster=True),
}
"""Apache 5.3.3's rules; it has none for 18, 21 and 224, although their headers are annotated."""
OWN_RULES: Final[Mapping[int, Rule]] = {
    **_on_cluster(Action.CREATE, 18, 200, 225),
    **_on_cluster(Action.LIST, 21, 201, 206, 224, 304, 305, 311, 312, 313, 402),
    **_on_cluster(Action.GET, 26, 28, 43, 45, 60, 61, 106, 319, 907, 1007, 2003, 9001, 9002),
    **_on_cluster(Action.UPDATE, 25, 306, 316, 318, 329, 401, 513, 2001, 2002, 2004, 9014, 9015),
    **_on_cluster(Action.DELETE, 5002, 5003),
    **_on_cluster(Action.UPDATE, 5001, *range(200_070, 200_080)),
    **_on_cluster(Action.UPDATE, 200_056),
    **_on_cluster(Action.UPDATE, *DECISIONS),
    **_named(Action.PUB, _topic(), codes=(324,)),
    **_named(Action.PUB, _topic("b"), codes=(325,)),
}
"""DueMQ's rules for codes that Apache does not restrict."""
OPEN: Final = frozenset({46})
"""Codes without side effects or data: a check of a subscription."""
PLUGIN_RULE: Final = Rule(Action.UPDATE, cluster=True)
"""Rule of all other codes, such as those of plugins: they require an administrator."""


def allow(access: Access) -> None:
    """Allow an access: the default of `accesses`."""


def accesses(
    code: int,
    fields: Fields,
    body: bytes,
    cluster: str,
    check: Callable[[Access], None] = allow,
) -> list[Access]:
    """Return the accesses that a request needs; empty: every authenticated account is permitted.

    Args:
        code: Request code.
        fields: Header fields as text.
        body: Body of the request, parsed for codes with groups and topics in it.
        cluster: Name of the broker's cluster.
        check: Called with each access when it is found; by raising, it ends the search, which may
            take long.

    Raises:
        TooManyNames: There are too many resources.
        ValueError: The body is malformed.
    """
    if code in DECISIONS:
        return distinct_accesses(_decisions(body, cluster), check)
    if (body_rule := _BODY_RULES.get(code)) is not None:
        return distinct_accesses(body_rule(body), check)
    own = OWN_RULES.get(code) or (None if is_known(code) else PLUGIN_RULE)
    client_rule = _CLIENT_RULES.get(code) if fields else None
    if client_rule is not None:
        return distinct_accesses(client_rule(fields, body), check)
    rule = (RULES.get(code) if fields else None) or own
    return distinct_accesses(rule.accesses(fields, cluster), check) if rule else []


def distinct_accesses(
    found: Iterator[Access], check: Callable[[Access], None] = allow
) -> list[Access]:
    """Return the distinct accesses, each after its check.

    Raises:
        TooManyNames: There are more than `ACCESSES_MAX`.
    """
    kept: dict[Access, None] = {}
    for access in found:
        if access in kept:
            continue
        kept[access] = None
        if len(kept) > ACCESSES_MAX:
            raise TooManyNames(f"the request has more than {ACCESSES_MAX} topics and groups")
        check(access)
    return list(kept)


def distinct(names: Iterable[T]) -> Iterator[T]:
    """Yield the distinct names in their order, before an access is made for each.

    A body of 16 MiB has room for half a million equal names.
    """
    seen: set[T] = set()
    for name in names:
        if name not in seen:
            seen.add(name)
            yield name


def is_known(code: int) -> bool:
    """Return whether a request code has a rule or is open."""
    return any(code in table for table in (RULES, OWN_RULES, _CLIENT_RULES, _BODY_RULES, OPEN))


def is_client_code(code: int) -> bool:
    """Return whether a code is a request of producers and consumers."""
    return code in _CLIENT_RULES


def _on_topic(name: str | None, *actions: Action) -> Access:
    return Access(Resource(ResourceType.TOPIC, name), actions)


def _on_group(name: str | None, *actions: Action) -> Access:
    return Access(Resource.group(name or ""), actions)


def _route(fields: Fields, body: bytes) -> Iterator[Access]:
    topic = fields.get("topic")
    if is_retry_topic(topic):
        yield _on_group(topic, Action.SUB, Action.GET)
    else:
        yield _on_topic(topic, Action.PUB, Action.SUB, Action.GET)


def _send(topic_field: str, group_field: str) -> Callable[[Fields, bytes], Iterator[Access]]:
    def accesses_of_send(fields: Fields, body: bytes) -> Iterator[Access]:
        topic = fields.get(topic_field)
        if is_retry_topic(topic):  # a retry message of a consumer: check its group
            group = fields.get(group_field)
            if group and group.strip():
                yield _on_group(group, Action.SUB)
            yield _on_group(topic, Action.SUB)
        else:
            yield _on_topic(topic, Action.PUB)

    return accesses_of_send


def _recall(fields: Fields, body: bytes) -> Iterator[Access]:
    yield _on_topic(fields.get("topic"), Action.PUB)


def _end_transaction(fields: Fields, body: bytes) -> Iterator[Access]:
    if (fields.get("topic") or "").strip():
        yield _on_topic(fields["topic"], Action.PUB)


def _send_back(fields: Fields, body: bytes) -> Iterator[Access]:
    yield _on_group(fields.get("group"), Action.SUB)


def _consume(*actions: Action) -> Callable[[Fields, bytes], Iterator[Access]]:
    def accesses_of_consumption(fields: Fields, body: bytes) -> Iterator[Access]:
        topic = fields.get("topic")
        if not is_retry_topic(topic):
            yield _on_topic(topic, *actions)
        yield _on_group(fields.get("consumerGroup"), *actions)
        if is_retry_topic(topic):
            yield _on_group(topic, *actions)

    return accesses_of_consumption


def _query(fields: Fields, body: bytes) -> Iterator[Access]:
    yield _on_topic(fields.get("topic"), Action.SUB, Action.GET)


def _heartbeat(fields: Fields, body: bytes) -> Iterator[Access]:
    for name, is_group in distinct(_heartbeat_names(body)):
        if is_group:
            yield _on_group(name, Action.SUB)
        elif not is_retry_topic(name):
            yield _on_topic(name, Action.SUB)


def _heartbeat_names(body: bytes) -> Iterator[tuple[str, bool]]:
    """Yield each group and each topic, and whether it is a group."""
    for consumer in decoded(body, HeartbeatBody).consumers:
        yield consumer.group, True
        for subscription in consumer.subscriptions:
            yield subscription.topic, False


def _unregister(fields: Fields, body: bytes) -> Iterator[Access]:
    if (fields.get("consumerGroup") or "").strip():
        yield _on_group(fields["consumerGroup"], Action.SUB)


def _members(fields: Fields, body: bytes) -> Iterator[Access]:
    yield _on_group(fields.get("consumerGroup"), Action.SUB, Action.GET)


def _lock(fields: Fields, body: bytes) -> Iterator[Access]:
    wanted = decoded(body, LockBody)
    yield _on_group(wanted.group, Action.SUB)
    for topic in distinct(queue.topic for queue in wanted.queues):
        if not is_retry_topic(topic):
            yield _on_topic(topic, Action.SUB)


def _ack(fields: Fields, body: bytes) -> Iterator[Access]:
    """Yield the group and the popped topic, or for a retry topic its original topic."""
    group, topic = fields.get("consumerGroup") or "", fields.get("topic") or ""
    yield _on_group(group, Action.SUB)
    yield Access(Resource.of_topic(normal_topic(topic, group)), (Action.SUB,))


def _batch_ack(body: bytes) -> Iterator[Access]:
    if body.count(b"{") > ACK_OBJECTS_MAX:
        raise TooManyNames(f"the request has more than {ACK_OBJECTS_MAX} acknowledgements")
    for group, topic in distinct(entry.names for entry in decoded(body, AckBody).entries):
        yield _on_group(group, Action.SUB)
        yield Access(Resource.of_topic(normal_topic(topic, group)), (Action.SUB,))


def _assignment(body: bytes) -> Iterator[Access]:
    wanted = decoded(body, AssignmentBody)
    yield _on_group(wanted.group, Action.SUB)
    if not is_retry_topic(wanted.topic):
        yield _on_topic(wanted.topic, Action.SUB)


_BODY_RULES: Final[Mapping[int, Callable[[bytes], Iterator[Access]]]] = {
    400: _assignment,
    200_151: _batch_ack,
}
"""Codes with groups and topics in the body; Apache permits them to every authenticated account."""
_CLIENT_RULES: Final[Mapping[int, Callable[[Fields, bytes], Iterator[Access]]]] = {
    10: _send("topic", "group"),
    310: _send("b", "a"),
    320: _send("b", "a"),
    11: _consume(Action.SUB),
    361: _consume(Action.SUB),
    14: _consume(Action.SUB, Action.GET),
    15: _consume(Action.SUB, Action.UPDATE),
    12: _query,
    34: _heartbeat,
    35: _unregister,
    36: _send_back,
    37: _end_transaction,
    38: _members,
    41: _lock,
    42: _lock,
    105: _route,
    370: _recall,
    200_051: _ack,
    200_053: _ack,
}


def _decisions(body: bytes, cluster: str) -> Iterator[Access]:
    """Yield the topics that a body selects, or the cluster if it has none."""
    wanted = decoded(body, DecisionBody)
    if wanted.topic:
        yield Access(Resource.of_topic(wanted.topic), (Action.UPDATE,))
    elif wanted.names_messages or not wanted.handles:
        yield Access(Resource(ResourceType.CLUSTER, cluster), (Action.UPDATE,))
    if len(wanted.handles) > HANDLES_MAX:
        raise TooManyNames(f"the request has more than {HANDLES_MAX} handles")
    for handle in wanted.handles:
        with suppress(HandleError):  # an invalid handle selects nothing
            yield Access(Resource.of_topic(decode_handle(handle).topic), (Action.UPDATE,))
