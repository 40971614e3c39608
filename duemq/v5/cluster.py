"""Brokers of a cluster that serve v5 clients: their endpoints, and requests for one of them.

    topic --name servers--> masters with a port for v5 clients, sorted by broker name --> route

Every broker returns the same order, because clients choose the queue of a message group by its
position in the route.

Source: LocalTopicRouteService, ClusterTopicRouteService
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from duemq.net.client import RemotingClient
from duemq.net.notices import Notices
from duemq.registry.managers import Identity
from duemq.registry.topic_config import TopicConfig
from duemq.registry.topic_routes import BrokerQueues, TopicRoutes
from duemq.v5.config import V5Config
from duemq.v5.protocol import definition as v2
from duemq.v5.status import V5Error
from duemq_common.host_port import split_address
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
FORWARD_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ServedQueues:
    """Queues of a topic on one broker, with the endpoints of its port for v5 clients."""

    queues: BrokerQueues
    broker: v2.Broker


class V5Cluster:
    """Brokers of this broker's name servers.

    Args:
        is_replica: Whether this broker is a replica, so that its queues are those of its master.
        connect: Returns a client of a broker that adds no credentials to requests.
    """

    def __init__(
        self,
        routes: TopicRoutes,
        identity: Identity,
        config: Callable[[], V5Config],
        connect: Callable[[str], RemotingClient],
        *,
        is_replica: bool,
    ) -> None:
        self._routes, self._name, self._config = routes, identity.broker_name, config
        self._connect, self._is_replica = connect, is_replica
        self._left_out = Notices(log)

    async def brokers_of(
        self, name: str, topic: TopicConfig | None, requested: v2.Endpoints
    ) -> list[ServedQueues]:
        """Return the queues of a topic on all brokers that serve v5 clients, by broker name.

        The endpoints of this broker are those of the client's request if no other broker has the
        topic, so a client behind a port mapping can use them.

        Args:
            topic: Configuration of the topic on this broker; None: it has none.
            requested: Endpoints that the client uses.
        Raises:
            V5Error: No broker has the topic, or none that has it serves v5 clients.
        """
        brokers = {each.broker_name: each for each in await self._find(name, topic)}
        if not self._is_replica:
            brokers.pop(self._name, None)
            if topic is not None:
                brokers[self._name] = self._own(topic)
        if not brokers:
            text = f"No topic route info in name server for the topic: {name}"
            raise V5Error(v2.TOPIC_NOT_FOUND, text)
        served = [brokers[each] for each in sorted(brokers) if brokers[each].grpc]
        self._report(name, [each for each in brokers.values() if not each.grpc])
        if not served:
            text = f"topic {name}: no master that has it serves v5 clients now"
            raise V5Error(v2.HA_NOT_AVAILABLE, text)
        is_alone = not self._is_replica and [each.broker_name for each in served] == [self._name]
        if is_alone and requested.addresses:
            return [ServedQueues(served[0], _broker(self._name, requested))]
        return [
            ServedQueues(each, _broker(each.broker_name, _endpoints(each.grpc))) for each in served
        ]

    def is_here(self, broker_name: str) -> bool:
        """Return whether this broker is the master of a broker name."""
        return broker_name == self._name and not self._is_replica

    async def forward(self, topic: str, broker_name: str, request: Request) -> Response | None:
        """Send a request, signed for its account, to another broker of a topic.

        Returns:
            The response; None: no name server knows a master of that name with the topic.
        Raises:
            V5Error: The broker did not respond.
        """
        for each in await self._routes.find(topic):
            if each.broker_name == broker_name and each.address:
                try:
                    async with self._connect(each.address) as client:
                        return await client.call(request, timeout_s=FORWARD_S)
                except OSError as error:
                    text = f"broker {broker_name} at {each.address}: {str(error) or 'no response'}"
                    raise V5Error(v2.PROXY_TIMEOUT, text) from error
        return None

    async def _find(self, name: str, topic: TopicConfig | None) -> list[BrokerQueues]:
        own = "" if topic is None or self._is_replica else self._name
        return await self._routes.find(name, own)

    def _own(self, topic: TopicConfig) -> BrokerQueues:
        config = self._config()
        return BrokerQueues(
            self._name,
            "",
            f"{config.host}:{config.port}",
            topic.read_queues,
            topic.write_queues,
            topic.perm & config.permission,
        )

    def _report(self, topic: str, left_out: list[BrokerQueues]) -> None:
        for each in left_out:
            self._left_out(
                "topic %s: broker %s (%s) does not serve v5 clients; those that connect here use "
                "none of its queues. Set its grpcServerPort; with brokers of Apache, let all v5 "
                "clients connect to Apache's proxy in cluster mode",
                topic,
                each.broker_name,
                each.address or "no master",
            )


def _broker(name: str, endpoints: v2.Endpoints) -> v2.Broker:
    v2_endpoints = v2.Endpoints(scheme=endpoints.scheme)
    for each in endpoints.addresses[:1]:
        v2_endpoints.addresses.add(host=each.host, port=each.port)
    return v2.Broker(name=name, id=0, endpoints=v2_endpoints)


def _endpoints(address: str) -> v2.Endpoints:
    host, port = split_address(address)
    try:
        scheme = v2.IPv4 if ipaddress.ip_address(host).version == 4 else v2.IPv6
    except ValueError:
        scheme = v2.DOMAIN_NAME
    return v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=port)])
