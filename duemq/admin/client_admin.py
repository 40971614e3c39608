"""Requests about clients: connections (203, 204, 328), relays (307, 309), offsets (223).

Source: AdminBrokerProcessor, Broker2Client
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from delayed_delivery.steps import collected
from duemq.auth.model import Action
from duemq.auth.record_access import RecordAccess, UnrestrictedAccess
from duemq.auth.signature import CREDENTIALS
from duemq.net import fields
from duemq.net.wire_json import encode, parse_object
from duemq.registry.clients import Channel, ClientTable, ConsumerGroup
from duemq.registry.internal_topics import check_readable
from duemq.registry.managers import Identity
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RecordUnreadable, RequestError
from duemq_common.json_dialect import dumps_compact
from duemq_common.request import Request, RequestHandler, Response, bytes_of
from message_store.log.offset_id import decode_offset_id

if TYPE_CHECKING:
    from message_store.store import MessageStore

RELAY_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0
CLIENTS_QUERIED_MAX = 256
VERSION_WITH_STATUS = 28  # 3.0.7-SNAPSHOT
VERSION_WITH_RELAYS = 62  # 3.1.8-SNAPSHOT


class ClientAdminProcessor:
    """Handler of codes 203, 204, 223, 307, 309 and 328."""

    def __init__(
        self,
        clients: ClientTable,
        store: MessageStore,
        identity: Identity,
        records: RecordAccess | None = None,
    ) -> None:
        self._records = records or UnrestrictedAccess()
        self._clients, self._store, self._identity = clients, store, identity

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    async def consumers(self, request: Request) -> Response:
        """Return the members, settings and subscriptions of a consumer group."""
        name = fields.text(request, "consumerGroup")
        group = self._clients.consumer_group(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            return Response(ResponseCode.CONSUMER_NOT_ONLINE, text)
        subscriptions = sorted(group.subscriptions.items())
        body = {
            "connectionSet": await _connections(group.channels.values()),
            "consumeFromWhere": group.from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: item.to_json() for topic, item in subscriptions},
        }
        return Response(body=encode(body))

    async def producers(self, request: Request) -> Response:
        """Return the connections of a producer group."""
        name = fields.text(request, "producerGroup")
        channels = dict(self._clients.producer_groups()).get(name)
        if not channels:
            return Response(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return Response(body=encode({"connectionSet": await _connections(channels)}))

    async def all_producers(self, request: Request) -> Response:
        """Return all producer connections by group."""
        groups = sorted(self._clients.producer_groups())
        data: dict[str, list[dict[str, object]]] = {name: [] for name, _ in groups}
        rows = ((name, _producer(channel)) for name, channels in groups for channel in channels)
        for name, row in await collected(rows):
            data[name].append(row)
        return Response(body=encode({"data": data}))

    async def running_info(self, request: Request) -> Response:
        """Relay 307 to the requested client; return its response unchanged."""
        channel = self._client(request)
        return await self._relay(channel, Request(request.code, relayed(request), request.body))

    async def consume_directly(self, request: Request) -> Response:
        """Relay 309 with the message to the requested client."""
        channel = self._client(request)
        sent = relayed(request) | {"brokerName": self._identity.broker_name}
        sent = {name: value for name, value in sent.items() if value}
        body = self._message(request) if sent.get("msgId") else b""
        return await self._relay(channel, Request(request.code, sent, body))

    async def consumer_status(self, request: Request) -> Response:
        """Return the offsets in a topic that each online client of a group reports."""
        topic, name = fields.text(request, "topic"), fields.text(request, "group")
        only = request.fields.get("clientAddr") or None
        group = self._clients.consumer_group(name)
        if group is None or not group.channels:
            text = f"No Any Consumer online in the consumer group: [{name}]"
            return Response(ResponseCode.CONSUMER_NOT_ONLINE, text)
        table: dict[str, object] = {}
        for channel in _channels(group, only):
            if channel.version < VERSION_WITH_STATUS:
                text = f"the client {channel.client_id} is too old for this request"
                return Response(ResponseCode.SYSTEM_ERROR, text)
            table[channel.client_id] = await self._status_of(channel, topic, name)
        text = dumps_compact({"consumerTable": table, "messageQueueTable": {}})
        return Response(body=text.encode())

    async def _status_of(self, channel: Channel, topic: str, group: str) -> object:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        request_status = Request(code, {"topic": topic, "group": group})
        try:
            response = await channel.peer.call(request_status, timeout_s=STATUS_TIMEOUT_S)
            return parse_object(bytes_of(response)).get("messageQueueTable") or {}
        except (TimeoutError, ConnectionError, ValueError):
            return {}

    def _client(self, request: Request) -> Channel:
        group_name = fields.text(request, "consumerGroup")
        client_id = fields.text(request, "clientId")
        group = self._clients.consumer_group(group_name)
        channel = group.find(client_id) if group else None
        if channel is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
            )
        if channel.version < VERSION_WITH_RELAYS:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group_name}> <{client_id}> Version <{channel.version}> too low "
                "to finish, please upgrade it to V3_1_8_SNAPSHOT",
            )
        return channel

    async def _relay(self, channel: Channel, request: Request) -> Response:
        try:
            return await channel.peer.call(request, timeout_s=RELAY_TIMEOUT_S)
        except TimeoutError:
            text = f"consumer <{channel.client_id}> did not respond within {RELAY_TIMEOUT_S:.0f} s"
            return Response(ResponseCode.CONSUME_MSG_TIMEOUT, text)
        except ConnectionError as fault:
            text = f"consumer <{channel.client_id}> gave no response: {fault}"
            return Response(ResponseCode.SYSTEM_ERROR, text)

    def _message(self, request: Request) -> bytes:
        offset_id = fields.text(request, "msgId")
        try:
            offset = decode_offset_id(offset_id)[2]
            record = self._store.read_queued(offset)
            check_readable(record.topic)
            self._records.check_record(request, record.topic, Action.SUB, Action.GET)
            return bytes(self._store.record_bytes(offset, record.total_size))
        except (ValueError, RecordUnreadable) as fault:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"no message {offset_id}: {fault}"
            ) from fault


def relayed(request: Request) -> dict[str, str]:
    """Return the fields of a request without credentials, which the client could misuse."""
    return {name: text for name, text in request.fields.items() if name not in CREDENTIALS}


def _channels(group: ConsumerGroup, only: str | None) -> list[Channel]:
    channels = [c for c in group.channels.values() if only in (None, c.client_id)]
    return channels[:CLIENTS_QUERIED_MAX]


async def _connections(channels: Iterable[Channel]) -> list[dict[str, object]]:
    return await collected(map(_connection, list(channels)))


def _connection(channel: Channel) -> dict[str, object]:
    return {
        "clientAddr": _address(channel),
        "clientId": channel.client_id,
        "language": channel.language,
        "version": channel.version,
    }


def _producer(channel: Channel) -> dict[str, object]:
    return {
        "clientId": channel.client_id,
        "language": channel.language,
        "lastUpdateTimestamp": channel.seen_ms,
        "remoteIP": f"/{_address(channel)}",  # as Java writes a socket's address
        "version": channel.version,
    }


def _address(channel: Channel) -> str:
    ip, port = channel.peer.address
    return f"{ip}:{port}"
