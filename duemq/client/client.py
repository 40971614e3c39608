"""Client of a cluster: connections to name servers and brokers, routes of topics, heartbeats.

    name servers --routes--> Client --connections--> brokers
                               ^ shared by producers, consumers and admins

A producer or consumer that gets a `Client` shares its connections; otherwise it has one of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, Self

from duemq.auth.signature import Credentials
from duemq.client.connections import TIMEOUT_S, ServerConnections
from duemq.client.errors import NoBroker, NoNameServer, NoRoute, Refused, Unreachable
from duemq.client.heartbeats import Heartbeats
from duemq.client.routes import NEW_TOPIC_QUEUES, TopicRoute, json_object, route_of
from duemq_common.clock import Clock, SystemClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.host_port import split_address
from duemq_common.request import Response
from duemq_common.topics import TEMPLATE_TOPIC

FIRST_VERSION_5: Final = 413  # MQVersion of 5.0.0
ROUTE_AGE_MAX_S: Final = 30.0  # of masters, too
GIVE_BROKER: Final = "if it is a broker, give it as broker (--broker, -b)"
GIVE_NAMESRV: Final = "if it is a name server, give it as namesrv (--namesrv, -n)"


class Client(ServerConnections):
    """Connections to name servers and brokers; an async context manager.

    Args:
        namesrv: `host:port` of name servers, separated by `;`; the first that responds is used.
        broker: `host:port` of one broker; then no name server is used.
        broker_name: Name of that broker; empty: unknown.
        tls: Context of TLS connections; True: with the system's authorities; None: plaintext.
        credentials: Account that signs the requests.
        timeout_s: Time limit of a call in seconds.
        clock: Clock of the times that are sent.
    Raises:
        ValueError: An address is not `host:port`, or no server is given.
    Source: MQClientInstance, MQClientAPIImpl
    """

    def __init__(
        self,
        namesrv: str = "",
        *,
        broker: str = "",
        broker_name: str = "",
        tls: ssl.SSLContext | bool | None = None,
        credentials: Credentials | None = None,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        self.namesrvs = [word.strip() for word in namesrv.split(";") if word.strip()]
        self.broker, self.broker_name = broker.strip(), broker_name
        if not self.namesrvs and not self.broker:
            raise ValueError("no server given: give namesrv or broker, as host:port")
        for address in [*self.namesrvs, *([self.broker] if self.broker else [])]:
            split_address(address)
        context = ssl.create_default_context() if tls is True else tls or None
        super().__init__(context, credentials, timeout_s)
        self.clock = clock or SystemClock()
        # Containers of several hosts may have the same address and process id.
        self.client_id = f"{_own_ip()}@{os.getpid()}#{int.from_bytes(os.urandom(6))}"
        self._routes: dict[str, tuple[TopicRoute, float]] = {}
        self._refreshing: dict[str, asyncio.Task[TopicRoute]] = {}
        self._masters: tuple[dict[str, str], float] = {}, 0.0
        self._asking: asyncio.Task[list[tuple[str, str]]] | None = None
        self.heartbeats = Heartbeats(self, self.client_id, self.known_brokers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; later calls raise `Closed`."""
        for task in self._refreshing.values():
            task.cancel()
        await super().close()

    # Brokers and routes.

    def known_brokers(self) -> list[str]:
        """Return the addresses of all brokers, replicas too, of the routes in use."""
        if self.broker:
            return [self.broker]
        groups = (route.addresses.values() for route, _ in self._routes.values())
        return sorted({each for group in groups for ids in group for each in ids.values()})

    async def masters(self) -> list[tuple[str, str]]:
        """Return name and address of the master of each broker group, in order.

        With `broker`, the name is `broker_name`. Calls of one turn of the event loop share a
        request.

        Raises:
            Unreachable: No name server responds.
            NoBroker: No broker is registered.
        """
        if self.broker:
            return [(self.broker_name, self.broker)]
        if self._asking is None:
            self._asking = asyncio.create_task(self._load_masters(), name="masters")
        return await self.shared(self._asking)

    async def _load_masters(self) -> list[tuple[str, str]]:
        await asyncio.sleep(0)
        self._asking = None  # later calls ask again
        table = (await self.cluster_info()).get("brokerAddrTable", {})
        masters = [(name, data["brokerAddrs"].get("0", "")) for name, data in sorted(table.items())]
        masters = [(name, address) for name, address in masters if address]
        if not masters:
            raise NoBroker("the name server has no registered broker")
        self._masters = dict(masters), asyncio.get_running_loop().time() + ROUTE_AGE_MAX_S
        return masters

    async def master(self, broker_name: str, *, refresh: bool = False) -> str:
        """Return the address of a master, at most 30 s old; empty: there is no such broker.

        With `broker`, its address, whatever the name.

        Raises:
            Unreachable, NoBroker: As `masters`.
        """
        if self.broker:
            return self.broker
        cached, until_s = self._masters
        if refresh or broker_name not in cached or until_s < asyncio.get_running_loop().time():
            cached = dict(await self.masters())
        return cached.get(broker_name, "")

    async def version(self, address: str) -> int:
        """Return the version number of a broker. MQVersion"""
        connection = await self.connect(address)
        if not connection.version:
            await self.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
            connection = await self.connect(address)
        return connection.version

    async def cluster_info(self) -> dict[str, Any]:
        """Return the brokers of all clusters as the name server has them. ClusterInfo"""
        response = await self.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, "", RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            return json_object(response)
        except ValueError as error:
            raise Unreachable(f"the list of brokers cannot be read: {error}") from error

    def cached_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic if it is cached and not too old."""
        cached = self._routes.get(topic)
        if cached is None or cached[1] < asyncio.get_running_loop().time():
            return None
        return cached[0]

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic, at most 30 s old.

        A topic that does not exist has the queues that the first send creates, if brokers permit.

        Raises:
            NoRoute: No broker has the topic, and none would create it.
            Refused: A server refused the request.
            Unreachable: No server responded.
        """
        if not refresh and (route := self.cached_route(topic)) is not None:
            return route
        task = self._refreshing.get(topic)
        if task is None:
            task = asyncio.create_task(self._load_route(topic), name=f"route {topic}")
            self._refreshing[topic] = task
            task.add_done_callback(lambda _: self._refreshing.pop(topic, None))
        try:
            return await self.shared(task)
        except Unreachable:
            if topic in self._routes and not refresh:  # the former route is better than none
                return self._routes[topic][0]
            raise

    def expire_route(self, topic: str) -> None:
        """Let the next request for a route ask the servers; without a response, it stays."""
        if topic in self._routes:
            self._routes[topic] = (self._routes[topic][0], 0.0)

    async def refresh_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic as the servers have it now, and cache it."""
        route = await self.fetch_route(topic)
        if route is not None:
            until_s = asyncio.get_running_loop().time() + ROUTE_AGE_MAX_S
            self._routes[topic] = (route, until_s)
        return route

    async def _load_route(self, topic: str) -> TopicRoute:
        route = await self.refresh_route(topic)
        if route is None:
            template = await self.fetch_route(TEMPLATE_TOPIC, as_topic=topic)
            if template is None:
                raise NoRoute(f"topic {topic} does not exist, and no broker creates topics")
            return template  # not kept: the topic may exist at the next call
        return route

    async def fetch_route(self, topic: str, *, as_topic: str = "") -> TopicRoute | None:
        """Return the route of a topic as the servers have it now; None: it does not exist.

        Args:
            as_topic: Topic that a broker would create like `topic`.
        """
        if self.broker:
            response = await self.call(self.broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                text = f"{self.broker} does not have routes; {GIVE_NAMESRV}"
                raise Refused(response.code, text, self.broker)
        else:
            response = await self.ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self.refusal(response, self.broker, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        try:
            data = json_object(response)
            if self.broker:
                name = {"brokerName": self.broker_name}
                data = {
                    "brokerDatas": [{**name, "brokerAddrs": {"0": self.broker}}],
                    "queueDatas": [{**data, **name}],
                }
            limit = NEW_TOPIC_QUEUES if as_topic else None
            return route_of(as_topic or topic, data, queues_max=limit)
        except ValueError as error:
            raise Unreachable(f"the route of topic {topic} cannot be read: {error}") from error

    async def ask_namesrv(self, code: int, fields: Mapping[str, object] | None = None) -> Response:
        """Return the response of the first name server that responds, whatever its code.

        Raises:
            Unreachable: None responds.
        """
        errors = []
        for address in list(self.namesrvs):
            try:
                response = await self.call(address, code, fields)
            except Unreachable as error:
                errors.append(str(error))
                self.namesrvs.remove(address)  # the next call asks another one first
                self.namesrvs.append(address)
                continue
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                text = f"{address} is not a name server; {GIVE_BROKER}"
                raise NoNameServer(response.code, text, address)
            return response
        raise Unreachable("; ".join(errors) or "no name server is given")


def _own_ip() -> str:
    """Return the address of this machine's default route; loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
