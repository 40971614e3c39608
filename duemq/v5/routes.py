"""Handlers of QueryRoute and QueryAssignment.

Source: RouteActivity
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from duemq.net.codes import RequestCode
from duemq.ports import PERM_READ, PERM_WRITE, Identity
from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.config import V5Config
from duemq.v5.context import CallContext
from duemq.v5.permissions import check_readable
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error, status
from duemq.v5.topic_types import accepted_types

ANY_QUEUE: Final = -1  # a pop from this queue id reads all queues
_PERMISSIONS: Final = {
    PERM_READ | PERM_WRITE: v2.READ_WRITE, PERM_READ: v2.READ, PERM_WRITE: v2.WRITE, 0: v2.NONE,
}  # fmt: skip


class RouteCalls:
    """Handlers of QueryRoute and QueryAssignment."""

    def __init__(
        self,
        requests: BrokerRequests,
        find_topic: Callable[[str], TopicConfig | None],
        find_group: Callable[[str], GroupConfig | None],
        identity: Identity,
        config: Callable[[], V5Config],
    ) -> None:
        self._requests, self._find_topic, self._find_group = requests, find_topic, find_group
        self._identity, self._config = identity, config

    async def query_route(
        self, context: CallContext, client: V5Client, request: api.QueryRouteRequest
    ) -> api.QueryRouteResponse:
        """Return the queues of a topic."""
        name = checks.topic_of(request.topic)
        self._requests.check(context, client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        topic = self._topic(name)
        types, broker = accepted_types(topic.attributes), self._broker(request.endpoints)
        response = api.QueryRouteResponse(status=status(v2.OK))
        for queue_id, permission in enumerate(_queues(topic, self._config().permission)):
            response.message_queues.add(
                topic=request.topic, id=queue_id, permission=permission, broker=broker,
                accept_message_types=types,
            )  # fmt: skip
        return response

    async def query_assignment(
        self, context: CallContext, client: V5Client, request: api.QueryAssignmentRequest
    ) -> api.QueryAssignmentResponse:
        """Return the assignments of a consumer: all queues as one, or each queue if orderly."""
        name, group_name = checks.topic_of(request.topic), checks.group_of(request.group)
        body = msgspec.json.encode({"consumerGroup": group_name, "topic": name})
        self._requests.check(context, client, RequestCode.QUERY_ASSIGNMENT, {}, body)
        group, topic = self._find_group(group_name), self._topic(name)
        perm = topic.perm & self._config().permission
        check_readable(topic, self._config().permission)
        is_orderly = group is not None and group.orderly
        queues = range(topic.read_queues) if is_orderly else (ANY_QUEUE,)
        response = api.QueryAssignmentResponse(status=status(v2.OK))
        broker = self._broker(request.endpoints)
        for queue_id in queues:
            queue = v2.MessageQueue(
                topic=request.topic, id=queue_id, broker=broker, permission=_permission(perm)
            )
            response.assignments.add(message_queue=queue)
        return response

    def _topic(self, name: str) -> TopicConfig:
        topic = self._find_topic(name)
        if topic is None:
            text = f"No topic route info in name server for the topic: {name}"
            raise V5Error(v2.TOPIC_NOT_FOUND, text)
        return topic

    def _broker(self, requested: v2.Endpoints) -> v2.Broker:
        """Return this broker with the configured host, or the host of the client's request."""
        config = self._config()
        endpoints = v2.Endpoints()
        if config.host:
            _add_address(endpoints, config.host, config.port)
        else:
            endpoints.scheme = requested.scheme
            for each in requested.addresses[:1]:
                endpoints.addresses.add(host=each.host, port=each.port)
        return v2.Broker(name=self._identity.broker_name, id=0, endpoints=endpoints)


def _add_address(endpoints: v2.Endpoints, host: str, port: int) -> None:
    try:
        version = ipaddress.ip_address(host).version
        endpoints.scheme = v2.IPv4 if version == 4 else v2.IPv6
    except ValueError:
        endpoints.scheme = v2.DOMAIN_NAME
    endpoints.addresses.add(host=host, port=port)


def _permission(perm: int) -> v2.Permission:
    return _PERMISSIONS[perm & (PERM_READ | PERM_WRITE)]


def _queues(topic: TopicConfig, broker_perm: int) -> Iterator[v2.Permission]:
    """Yield the permission of each queue: read-only, then write-only, then both.

    Clients number the queues of a topic in this order.
    """
    perm = topic.perm & broker_perm
    read = topic.read_queues if perm & PERM_READ else 0
    write = topic.write_queues if perm & PERM_WRITE else 0
    both = min(read, write)
    yield from [v2.READ] * (read - both)
    yield from [v2.WRITE] * (write - both)
    yield from [v2.READ_WRITE] * both
    if not read and not write:
        yield from [v2.NONE] * max(topic.read_queues, topic.write_queues, 1)
