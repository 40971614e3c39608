"""Brokers of a cluster: members, configuration, runtime information.

The base of `Admin`. A request that changes something goes to masters, which replicas copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from duemq.client.client import GIVE_NAMESRV
from duemq.client.errors import NoBroker, NoRoute, Unreachable, Unsupported
from duemq.client.message import time_of
from duemq.client.role import ClientRole
from duemq.client.routes import json_object
from duemq_common.broker_ids import MASTER_ID
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response, bytes_of

Body = TypeVar("Body")
PROPERTY_MARKS: Final = "#!"
VIEWS: Final = f"views: it is not a DueMQ broker; {GIVE_NAMESRV}"


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """Master or replica of a broker group.

    Attributes:
        broker_name: Name of the group; empty if the broker was given by its address without a name.
        broker_id: 0: master; None: the broker was given by its address.
    """

    cluster: str
    broker_name: str
    broker_id: int | None
    address: str

    @property
    def is_master(self) -> bool:
        """Whether the broker accepts changes; assumed of a broker given by its address."""
        return self.broker_id in (MASTER_ID, None)

    @property
    def name(self) -> str:
        """Name of the group, or the address."""
        return self.broker_name or self.address


class QueueName(msgspec.Struct, rename="camel", frozen=True):
    """Queue in a body. MessageQueue"""

    topic: str
    broker_name: str
    queue_id: int


class _BrokerGroup(msgspec.Struct, rename="camel"):
    """One broker name in the table of a name server. BrokerData"""

    cluster: str = ""
    broker_addrs: dict[str, str] = {}


class _ClusterInfo(msgspec.Struct, rename="camel"):
    """Table of brokers of a name server. ClusterInfo"""

    broker_addr_table: dict[str, _BrokerGroup] = {}


class _Table(msgspec.Struct):
    """Names and values. KVTable"""

    table: dict[str, str] = {}


class ClusterAdmin(ClientRole):
    """Requests about brokers; an async context manager."""

    # Members.

    async def members(self) -> list[BrokerMember]:
        """Return every master and replica, by name and id.

        Raises:
            Refused: The name server refused the request.
            Unreachable: No name server responds.
        """
        if self.client.broker:
            return [BrokerMember("", self.client.broker_name, None, self.client.broker)]
        groups = converted(await self.client.cluster_info(), _ClusterInfo).broker_addr_table
        return [
            BrokerMember(group.cluster, name, int(broker_id), address)
            for name, group in sorted(groups.items())
            for broker_id, address in sorted(group.broker_addrs.items(), key=lambda i: int(i[0]))
        ]

    async def masters(self, broker_names: Sequence[str] = ()) -> list[BrokerMember]:
        """Return the masters, or those of some broker groups.

        Raises:
            NoRoute: There is no master, or a group has none or does not exist.
        """
        masters = [member for member in await self.members() if member.is_master]
        if not masters:
            raise NoBroker("the name server has no registered broker")
        if not broker_names:
            return masters
        by_name = {member.name: member for member in masters}
        if missing := [name for name in broker_names if name not in by_name]:
            names = ", ".join(sorted(by_name))
            raise NoRoute(f"there is no master of broker {missing[0]}; there are: {names}")
        return [by_name[name] for name in dict.fromkeys(broker_names)]

    # Configuration and state of one broker.

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Return names and values of the state of a broker, as mqadmin `brokerStatus` shows them.

        The names differ between versions.
        """
        response = await self.client.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return parsed(response, _Table).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return keys and values of the configuration of a broker."""
        response = await self.client.ask(address, RequestCode.GET_BROKER_CONFIG)
        lines = bytes_of(response).decode().splitlines()
        pairs = [line.partition("=") for line in lines if line and line[0] not in PROPERTY_MARKS]
        return {key.strip(): value.strip() for key, _, value in pairs}

    async def update_broker_config(self, address: str, changes: Mapping[str, object]) -> None:
        """Change the configuration of a running broker.

        Raises:
            Refused: A key or a value is not accepted.
            ValueError: A key or value has a line end, or a key an equals sign.
        """
        for key, value in changes.items():
            if not key or "=" in key or set("\r\n") & {*key, *str(value)}:
                raise ValueError(f"configuration {key!r}={value!r} is not one line KEY=VALUE")
        body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
        await self.client.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def view(self, address: str, name: str, **fields: object) -> dict[str, Any]:
        """Return a view of a DueMQ broker.

        Raises:
            Unsupported: The server is not a DueMQ broker.
            Refused: The broker has no such view.
        """
        response = await self.ask_broker(
            address, RequestCode.GET_VIEW, {"view": name, **fields}, feature=VIEWS
        )
        return json_object(response)

    async def stored_audits(
        self, address: str, *, audit: str = "", cursor: str = ""
    ) -> dict[str, object]:
        """Return a page of the audits of a broker's store, newest first, or of one's findings.

        Args:
            audit: Id of the audit; empty: the list.
            cursor: Cursor of the page before; empty: the first page.
        Raises:
            Unsupported: The server is not a DueMQ broker.
            Refused: The ledger cannot be used, or does not have the audit.
        """
        fields = {"audit": audit, "cursor": cursor}
        code = RequestCode.READ_AUDITS
        return json_object(await self.ask_broker(address, code, fields, feature="audits"))

    async def ask_broker(
        self,
        address: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        feature: str,
        timeout_s: float | None = None,
    ) -> Response:
        """Return the response of a broker if it is a success.

        Args:
            feature: Name of what the request needs, for the text of an error.
        Raises:
            Unsupported: The broker does not know the request.
            Refused: The broker refused the request.
        """
        response = await self.client.call(address, code, fields, body, timeout_s=timeout_s)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise Unsupported(f"{address} does not have {feature} (request {code})")
        if response.code != ResponseCode.SUCCESS:
            raise self.client.refusal(response, address, code)
        return response


def parsed(response: Response, kind: type[Body]) -> Body:
    """Return the JSON body of a response as an object.

    Raises:
        Unreachable: The body has another form.
    """
    try:
        return converted(json_object(response), kind)
    except ValueError as error:
        raise Unreachable(f"a response cannot be read: {error}") from error


def converted(value: object, kind: type[Body]) -> Body:
    """Return a decoded JSON body as an object.

    Raises:
        Unreachable: The body has another form.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Unreachable(f"a response cannot be read: {error}") from error


def queue_name(text: str) -> QueueName:
    """Return the queue that is a key of a table.

    Raises:
        Unreachable: The key is not a queue.
    """
    try:
        return msgspec.json.decode(text, type=QueueName)
    except msgspec.DecodeError as error:
        raise Unreachable(f"a response names a malformed queue {text[:80]!r}") from error


def time_or_none(ms: int) -> datetime | None:
    """Return a time in UTC; None if there is none, or if it is outside the calendar."""
    try:
        return time_of(ms) if ms > 0 else None
    except OverflowError:
        return None
