"""Queues of a topic on all brokers, as the name servers know them.

Source: TopicRouteInfoManager, MQClientInstance.topicRouteData2TopicSubscribeInfo
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Final

from delivery.plugin import Request
from duemq.net import wire_json
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from duemq.net.notices import Notices
from duemq.pop.allocation import AssignedQueue
from duemq.ports import PERM_READ, Identity, Topics
from duemq.registry.config_file import JsonObject
from message_store.clock import Clock
from message_store.errors import PeerError

log = logging.getLogger(__name__)
ROUTE_MS: Final = 1_000  # lifetime of a cached route
ROUTES_MAX: Final = 1_024
QUEUES_MAX: Final = 65_536  # per topic
CALL_S: Final = 3.0


class TopicQueues:
    """Queues of topics on all brokers, or on this broker only if no name server responds.

    Args:
        addresses: Returns `host:port` of the name servers outside the process.
        local_route: Returns the route of a topic from the name server inside the process, which
            needs no account; None if there is none.
    """

    def __init__(
        self,
        topics: Topics,
        identity: Identity,
        clock: Clock,
        addresses: Callable[[], Sequence[str]],
        connect: Callable[[str], RemotingClient],
        local_route: Callable[[str], JsonObject | None] = lambda topic: None,
    ) -> None:
        self._topics, self._identity, self._clock = topics, identity, clock
        self._addresses, self._connect, self._local_route = addresses, connect, local_route
        self._routes: dict[str, tuple[int, list[AssignedQueue]]] = {}
        self._notice = Notices(log)

    async def of(self, topic: str) -> list[AssignedQueue]:
        """Return the queues that consumers may read, sorted; none if no broker has the topic."""
        now_ms = self._clock.now_ms()
        known_ms, queues = self._routes.get(topic, (0, []))
        if queues and 0 <= now_ms - known_ms < ROUTE_MS:
            return queues
        for address in self._addresses():
            try:
                found = await self._fetch(address, topic)
            except (OSError, PeerError, KeyError, TypeError, ValueError) as error:
                self._notice("name server %s: no route of %s: %s", address, topic, error)
                continue
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = now_ms, found
            return found
        try:
            if (route := self._local_route(topic)) is not None:
                return sorted(readable_queues(topic, route))
        except (KeyError, TypeError, ValueError) as error:
            self._notice("embedded name server: no route of %s: %s", topic, error)
        return queues or self._own_queues(topic)

    async def _fetch(self, address: str, topic: str) -> list[AssignedQueue]:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(self._connect(address))
            request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            response = await client.call(request, timeout_s=CALL_S)
            if response.code:
                raise PeerError(f"response code {response.code}: {response.remark}")
            route = wire_json.parse_object(bytes(response.body))  # type: ignore[arg-type]
            return sorted(readable_queues(topic, route))

    def _own_queues(self, name: str) -> list[AssignedQueue]:
        topic = self._topics.find(name)
        if topic is None or not topic.perm & PERM_READ:
            return []
        broker = self._identity.broker_name
        return [AssignedQueue(name, broker, queue_id) for queue_id in range(topic.read_queues)]


def readable_queues(topic: str, route: JsonObject) -> Iterator[AssignedQueue]:
    """Yield the queues in a route that consumers may read.

    Raises:
        KeyError, TypeError, ValueError: The route is malformed.
    """
    left = QUEUES_MAX
    for data in route["queueDatas"]:
        if int(data["perm"]) & PERM_READ:
            count = int(data["readQueueNums"])
            if not 0 <= count <= left:
                raise ValueError(f"a topic has at most {QUEUES_MAX} queues")
            left -= count
            yield from (AssignedQueue(topic, str(data["brokerName"]), n) for n in range(count))
