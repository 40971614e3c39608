"""Handlers of QueryRoute and QueryAssignment.

Source: RouteActivity
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from duemq.registry.groups import GroupConfig
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topic_routes import BrokerQueues
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.cluster import V5Cluster
from duemq.v5.context import CallContext
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.status import V5Error, status
from duemq.v5.topic_types import MIXED, accepted_types
from duemq_common.codes import RequestCode
from duemq_common.topics import PERM_READ, PERM_WRITE

ANY_QUEUE: Final = -1  # a pop from this queue id reads all queues
_PERMISSIONS: Final = {
    PERM_READ | PERM_WRITE: v2.READ_WRITE,
    PERM_READ: v2.READ,
    PERM_WRITE: v2.WRITE,
    0: v2.NONE,
}


class RouteCalls:
    """Handlers of QueryRoute and QueryAssignment."""

    def __init__(
        self,
        requests: BrokerRequests,
        find_topic: Callable[[str], TopicConfig | None],
        find_group: Callable[[str], GroupConfig | None],
        cluster: V5Cluster,
    ) -> None:
        self._requests, self._find_topic, self._find_group = requests, find_topic, find_group
        self._cluster = cluster

    async def query_route(
        self, context: CallContext, client: V5Client, request: api.QueryRouteRequest
    ) -> api.QueryRouteResponse:
        """Return the queues of a topic."""
        name = checks.topic_of(request.topic)
        self._requests.check(context, client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        topic = self._find_topic(name)
        # The broker that stores a message checks its type as well.
        types = MIXED if topic is None else accepted_types(topic.attributes)
        response = api.QueryRouteResponse(status=status(v2.OK))
        for each in await self._cluster.brokers_of(name, topic, request.endpoints):
            for queue_id, permission in enumerate(_queues(each.queues)):
                response.message_queues.add(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    broker=each.broker,
                    accept_message_types=types,
                )
        return response

    async def query_assignment(
        self, context: CallContext, client: V5Client, request: api.QueryAssignmentRequest
    ) -> api.QueryAssignmentResponse:
        """Return the assignments of a consumer: each broker's queues as one, or each if orderly."""
        name, group_name = checks.topic_of(request.topic), checks.group_of(request.group)
        body = msgspec.json.encode({"consumerGroup": group_name, "topic": name})
        self._requests.check(context, client, RequestCode.QUERY_ASSIGNMENT, {}, body)
        group, topic = self._find_group(group_name), self._find_topic(name)
        is_orderly = group is not None and group.orderly
        response = api.QueryAssignmentResponse(status=status(v2.OK))
        for each in await self._cluster.brokers_of(name, topic, request.endpoints):
            perm, count = each.queues.perm, each.queues.read_queues
            if not perm & PERM_READ or not count:
                continue
            for queue_id in range(count) if is_orderly else (ANY_QUEUE,):
                queue = v2.MessageQueue(
                    topic=request.topic,
                    id=queue_id,
                    broker=each.broker,
                    permission=_permission(perm),
                )
                response.assignments.add(message_queue=queue)
        if not response.assignments:
            raise V5Error(v2.FORBIDDEN, f"no readable queue: topic {name}")
        return response


def _permission(perm: int) -> v2.Permission:
    return _PERMISSIONS[perm & (PERM_READ | PERM_WRITE)]


def _queues(queues: BrokerQueues) -> Iterator[v2.Permission]:
    """Yield the permission of each queue: read-only, then write-only, then both.

    Clients number the queues of a broker in this order.
    """
    read = queues.read_queues if queues.perm & PERM_READ else 0
    write = queues.write_queues if queues.perm & PERM_WRITE else 0
    both = min(read, write)
    yield from [v2.READ] * (read - both)
    yield from [v2.WRITE] * (write - both)
    yield from [v2.READ_WRITE] * both
    if not read and not write:
        yield from [v2.NONE] * max(queues.read_queues, queues.write_queues, 1)
