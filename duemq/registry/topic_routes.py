"""Routes of topics: their queues on all brokers, as the name servers know them.

A broker registers the address of its port for v5 clients as an entry of `filterServerList`. All
name servers return that list with the route; clients do not read it, unless they filter by class.

    "filterServerTable": {"10.0.0.1:10911": ["grpc://10.0.0.1:8081"]}

Source: TopicRouteInfoManager, RouteInfoManager.pickupTopicRouteData
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from duemq.net import wire_json
from duemq.net.client import RemotingClient
from duemq.net.notices import Notices
from duemq.registry.config_file import JsonObject
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import PeerError
from duemq_common.host_port import split_address
from duemq_common.request import Request

log = logging.getLogger(__name__)
ROUTE_MS: Final = 1_000  # lifetime of a cached route
ROUTES_MAX: Final = 1_024
QUEUES_MAX: Final = 65_536  # per topic
CALL_S: Final = 1.0  # a v5 client waits 3 s for a route
RETRY_MS: Final = 5_000  # pause after no name server responded
GRPC: Final = "grpc://"
MASTER: Final = "0"
MALFORMED: Final = (AttributeError, KeyError, TypeError, ValueError)


class BrokerQueues(Struct, frozen=True):
    """Queues of a topic on one broker.

    Attributes:
        address: `host:port` of the master for remoting requests; empty: there is no master.
        grpc: `host:port` of the master for v5 clients; empty: it does not serve them.
        perm: Permission: 2 write, 4 read.
    """

    broker_name: str
    address: str
    grpc: str
    read_queues: int
    write_queues: int
    perm: int


class TopicRoutes:
    """Cached routes of topics.

    A route remains while no name server responds.

    Args:
        addresses: Returns `host:port` of the name servers outside the process.
        local_route: Returns the route of a topic from the name server inside the process, which
            needs no account; None if there is none.
    """

    def __init__(
        self,
        clock: Clock,
        addresses: Callable[[], Sequence[str]],
        connect: Callable[[str], RemotingClient],
        local_route: Callable[[str], JsonObject | None],
    ) -> None:
        self._clock, self._addresses, self._connect = clock, addresses, connect
        self._local_route = local_route
        self._routes: dict[str, tuple[int, list[BrokerQueues]]] = {}
        self._fetching = asyncio.Lock()
        self._first = ""  # the name server that responded last
        self._retry_ms = 0
        self._notice = Notices(log)

    async def find(self, topic: str, own: str = "") -> list[BrokerQueues]:
        """Return the brokers of a topic, sorted by name; none if no name server knows the topic.

        Args:
            own: Name of this broker if it has registered the topic; a route without it comes from a
                name server that has restarted, and is not used.
        """
        route = self._fresh(topic)
        if route is None:
            async with self._fetching:
                route = self._fresh(topic)
                if route is None:
                    route = await self._update(topic, own)
        return route

    def _fresh(self, topic: str) -> list[BrokerQueues] | None:
        fetched_ms, route = self._routes.get(topic, (0, None))
        return route if 0 <= self._clock.steady_ms() - fetched_ms < ROUTE_MS else None

    async def _update(self, topic: str, own: str) -> list[BrokerQueues]:
        fetched, (_, former) = await self._fetch(topic, own), self._routes.get(topic, (0, []))
        local = self._local(topic)
        queues = [*local, *fetched] if fetched is not None else [*former, *local]
        brokers = {each.broker_name: each for each in queues}
        route = [brokers[name] for name in sorted(brokers)]
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = self._clock.steady_ms(), route
        return route

    def _local(self, topic: str) -> list[BrokerQueues]:
        try:
            return brokers_of(self._local_route(topic) or {})
        except MALFORMED as error:
            self._notice("embedded name server: no route of %s: %s", topic, error)
            return []

    async def _fetch(self, topic: str, own: str) -> list[BrokerQueues] | None:
        """Return the route from the first name server that has it; None if none responds."""
        addresses = sorted(self._addresses(), key=lambda each: each != self._first)
        if not addresses:
            return []
        if self._clock.steady_ms() < self._retry_ms:
            return None
        self._retry_ms = self._clock.steady_ms() + RETRY_MS
        route: list[BrokerQueues] | None = None
        for address in addresses:
            try:
                brokers = await self._call(address, topic)
            except (OSError, PeerError, *MALFORMED) as error:
                self._notice("name server %s: no route of %s: %s", address, topic, error)
                continue
            self._first, self._retry_ms = address, 0
            if brokers and (not own or own in {each.broker_name for each in brokers}):
                return brokers
            route = None if own else brokers
        return route

    async def _call(self, address: str, topic: str) -> list[BrokerQueues]:
        request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        async with self._connect(address) as client, asyncio.timeout(CALL_S):
            response = await client.call(request, timeout_s=CALL_S)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        if response.code:
            raise PeerError(f"response code {response.code}: {response.remark}")
        return brokers_of(wire_json.parse_object(bytes(response.body)))  # type: ignore[arg-type]


def brokers_of(route: JsonObject) -> list[BrokerQueues]:
    """Return the brokers in a route, sorted by name.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: The route is malformed.
    """
    masters = {str(data["brokerName"]): _master(data) for data in route.get("brokerDatas") or ()}
    servers: Mapping[str, Sequence[str]] = route.get("filterServerTable") or {}
    brokers, left = [], QUEUES_MAX
    for data in route.get("queueDatas") or ():
        name = str(data["brokerName"])
        read_queues, write_queues = int(data["readQueueNums"]), int(data["writeQueueNums"])
        left -= max(read_queues, write_queues)
        if min(read_queues, write_queues, left) < 0:
            raise ValueError(f"a topic has at most {QUEUES_MAX} queues")
        address = masters.get(name, "")
        grpc = next((each for each in servers.get(address) or () if each.startswith(GRPC)), "")
        brokers.append(
            BrokerQueues(
                name,
                _valid(address),
                _valid(grpc.removeprefix(GRPC)),
                read_queues,
                write_queues,
                int(data["perm"]),
            )
        )
    return sorted(brokers, key=lambda each: each.broker_name)


def _master(data: Mapping[str, Mapping[str, str]]) -> str:
    return (data.get("brokerAddrs") or {}).get(MASTER) or ""


def _valid(address: str) -> str:
    """Return an address; empty if it is malformed, so that only its broker is left out."""
    try:
        split_address(address)
    except ValueError:
        return ""
    return address
