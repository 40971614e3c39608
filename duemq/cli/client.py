"""Cluster client of the commands: finds brokers and sends requests."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from duemq.auth.signature import Credentials
from duemq.cli.exits import Exit, fail
from duemq.client.connections import ServerConnections, host_and_port
from duemq.client.errors import Unreachable
from duemq.client.routes import NEW_TOPIC_QUEUES, TEMPLATE_TOPIC, WRITE, bytes_of, json_object
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError, UsageError
from duemq_common.request import Response

CALL_TIMEOUT_S = 10.0
PULL_COUNT = QUERY_COUNT = 32  # maximum messages of one response
SUSPEND, SUBSCRIPTION = 2, 4  # bits of a pull's sysFlag
ONLY_PLAINTEXT = ". If tls.server.mode is disabled there, retry without --tls"
ONLY_TLS = ". If tls.server.mode is enforcing there, add --tls"
GIVE_ACCOUNT = "Give an account: --access-key USER --secret-file FILE"


@dataclass(frozen=True, slots=True)
class Queue:
    """Queue of a topic, and the address of its broker."""

    broker_name: str
    address: str
    queue_id: int


class Cluster:
    """Client of name servers and brokers; a context manager that closes its connections.

    Args:
        namesrv: `host:port` of name servers, separated by `;`; the first that responds is used.
        broker: `host:port` of one broker; then no name server is used.
        tls: Context of TLS connections; None: plaintext.
        credentials: Credentials that sign the requests; None: unsigned.
    """

    def __init__(
        self,
        namesrv: str,
        broker: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._tls, self._credentials = tls, credentials
        self._namesrvs = [word.strip() for word in namesrv.split(";") if word.strip()]
        self._broker = broker
        for address in [*self._namesrvs, *([broker] if broker else [])]:
            try:
                host_and_port(address)
            except ValueError as error:
                raise UsageError(str(error)) from None
        self._connections = ServerConnections(tls, credentials, CALL_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._connections.close()

    async def request(
        self,
        address: str,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Response:
        """Return the response of the server at `address`, whatever its code.

        Raises:
            ConnectionError: The server cannot be reached or does not respond.
        """
        try:
            return await self._connections.call(address, code, fields, body, timeout_s=timeout_s)
        except Unreachable as error:
            cause = error.__cause__
            reason = str(cause) or "no response in time"
            if isinstance(cause, ConnectionResetError | ssl.SSLEOFError):
                reason += ONLY_PLAINTEXT if self._tls is not None else ONLY_TLS
            raise ConnectionError(f"{address} does not respond: {reason}") from error

    async def call(
        self,
        address: str,
        code: int,
        fields: dict[str, object] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        unsupported: str = "",
    ) -> Response:
        """Return the response of the server at `address` if it is successful.

        Args:
            unsupported: Text of the error if the server does not support the request.

        Raises:
            RequestError: The server refused the request.
            ConnectionError: The server cannot be reached or does not respond.
        """
        response = await self.request(address, code, fields, body, timeout_s=timeout_s)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and unsupported:
            raise RequestError(response.code, unsupported)
        if response.code != ResponseCode.SUCCESS:
            raise self._refused(response, f"{address} refused request {code}")
        return response

    def _refused(self, response: Response, otherwise: str) -> RequestError:
        """Return the error of a refused request, with the remark or another text."""
        text = response.remark or otherwise
        if response.code == ResponseCode.NO_PERMISSION and self._credentials is None:
            text = f"{text.rstrip('.')}. {GIVE_ACCOUNT}"
        return RequestError(response.code, text)

    async def _request_namesrv(
        self, code: int, fields: dict[str, object] | None = None
    ) -> Response:
        last: ConnectionError | None = None
        for address in self._namesrvs:
            try:
                response = await self.request(address, code, fields)
            except ConnectionError as error:
                last = error
                continue
            if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise UsageError(
                    f"{address} is not a name server; if it is a broker, give it as "
                    f"--broker (-b) {address}"
                )
            return response
        raise last or UsageError("no server given: use --namesrv or --broker")

    async def brokers(self) -> list[tuple[str, str]]:
        """Return (broker name, address of the master) of every broker."""
        if self._broker:
            return [("", self._broker)]
        table = _loads(await self._cluster_info()).get("brokerAddrTable", {})
        masters = [(name, data["brokerAddrs"].get("0", "")) for name, data in sorted(table.items())]
        return [(name, address) for name, address in masters if address]

    async def members(self) -> list[tuple[str, int | None, str]]:
        """Return (broker name, broker id, address) of every master and replica.

        With `broker`, name and id are unknown.
        """
        if self._broker:
            return [("", None, self._broker)]
        table = _loads(await self._cluster_info()).get("brokerAddrTable", {})
        return [
            (name, int(broker_id), address)
            for name, data in sorted(table.items())
            for broker_id, address in sorted(data["brokerAddrs"].items(), key=lambda i: int(i[0]))
        ]

    async def _cluster_info(self) -> Response:
        response = await self._request_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)
        if response.code != ResponseCode.SUCCESS:
            raise self._refused(response, "the name server refused to list its brokers")
        return response

    async def queues(self, topic: str, *, permission: int) -> list[Queue]:
        """Return the writable (WRITE) or readable (READ) queues of a topic, in order.

        For WRITE, a topic that does not exist has the queues that the first send will create.

        Raises:
            RequestError: The topic does not exist, or the request was refused.
        """
        route, queues_max = await self._route(topic), None
        if route is None and permission == WRITE:
            route, queues_max = await self._route(TEMPLATE_TOPIC), NEW_TOPIC_QUEUES
        if route is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        addresses = {
            data["brokerName"]: data["brokerAddrs"].get("0", "") for data in route["brokerDatas"]
        }
        number = "writeQueueNums" if permission == WRITE else "readQueueNums"
        return [
            Queue(data["brokerName"], self._broker or addresses[data["brokerName"]], queue_id)
            for data in sorted(route["queueDatas"], key=lambda data: str(data["brokerName"]))
            if data["perm"] & permission and addresses.get(data["brokerName"])
            for queue_id in range(data[number])[:queues_max]
        ]

    async def _route(self, topic: str) -> dict[str, Any] | None:
        if self._broker:
            return await self._route_of_broker(topic)
        response = await self._request_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self._refused(response, "the name server refused to give the route")
        return _loads(response)

    async def _route_of_broker(self, topic: str) -> dict[str, Any] | None:
        response = await self.request(self._broker, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestError(response.code, not_a_broker(self._broker))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise self._refused(response, f"{self._broker} refused to give the topic's queues")
        return {
            "brokerDatas": [{"brokerName": "", "brokerAddrs": {"0": self._broker}}],
            "queueDatas": [{"brokerName": "", **_loads(response)}],
        }

    async def view(self, address: str, name: str, **fields: object) -> Any:
        """Return a view of a DueMQ broker.

        Args:
            fields: Arguments of the view.

        Raises:
            RequestError: The server is not a DueMQ broker, or has no such view.
        """
        response = await self.call(
            address,
            RequestCode.GET_VIEW,
            {"view": name, **fields},
            unsupported=not_a_broker(address),
        )
        return msgspec.json.decode(bytes_of(response))


def pull_fields(
    queue: Queue, topic: str, group: str, offset: int, *, count: int, sys_flag: int, **more: object
) -> dict[str, object]:
    """Return the header of a pull that does not wait, without a filter.

    Args:
        more: Fields with other values.
    """
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": sys_flag,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
        **more,
    }


def query_fields(topic: str, unique_id: str) -> dict[str, object]:
    """Return the header of a query for messages with a unique id."""
    return {
        "topic": topic,
        "key": unique_id,
        "maxNum": QUERY_COUNT,
        "beginTimestamp": 0,
        "endTimestamp": (1 << 63) - 1,
        "_UNIQUE_KEY_QUERY": True,
    }


async def brokers_of(cluster: Cluster) -> list[tuple[str, str]]:
    """Return (name, address) of every broker; exit with code 1 if there is none."""
    brokers = await cluster.brokers()
    if not brokers:
        fail("the name server has no registered broker", Exit.FOUND_FAULT)
    return brokers


async def members_of(cluster: Cluster) -> list[tuple[str, int | None, str]]:
    """Return every master and replica; exit with code 1 if there is none."""
    members = await cluster.members()
    if not members:
        fail("the name server has no registered broker", Exit.FOUND_FAULT)
    return members


def not_a_broker(address: str) -> str:
    """Return the error text for a server that does not support DueMQ's requests."""
    return (
        f"{address} is not a DueMQ broker; if it is a name server, give it as --namesrv (-n) "
        f"{address}"
    )


def _loads(response: Response) -> dict[str, Any]:
    """Parse a JSON body.

    Raises:
        ConnectionError: It is not a JSON object.
    """
    try:
        return json_object(response)
    except ValueError as error:
        raise ConnectionError(f"the name server's response is not JSON: {error}") from None
