"""Telemetry, Heartbeat, NotifyClientTermination: what a client is, and how it is reached.

    Telemetry: settings --> registered, merged --> settings     (its client waits for them)
               <-- check of a transaction
    Heartbeat: registered again, with the settings of Telemetry

Source: ClientActivity
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from google.protobuf.message import DecodeError

from duemq.net.codes import RequestCode
from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus
from duemq.registry.groups import GroupConfig
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client, V5Clients
from duemq.v5.context import CallContext, context_of
from duemq.v5.front_config import FrontConfig
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.settings import merged
from duemq.v5.status import V5Error, status

CONSUMER_TYPES = {v2.PUSH_CONSUMER: "CONSUME_PASSIVELY", v2.SIMPLE_CONSUMER: "CONSUME_ACTIVELY"}
UNREAD_BYTES_MAX = 1 << 20  # of a telemetry stream; a client that reads has none
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"


class ClientCalls:
    """Handles the calls about clients themselves.

    Args:
        find_group: Returns a consumer group, created if it may be.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        clients: V5Clients,
        find_group: Callable[[str], GroupConfig | None],
        config: Callable[[], FrontConfig],
    ) -> None:
        self._requests, self._clients = requests, clients
        self._find_group, self._config = find_group, config

    async def telemetry(self, call: GrpcCall) -> None:
        """Answer the settings of a client, and send it commands until its stream ends.

        Raises:
            GrpcError: A command was refused; the stream ends.
        """
        client: V5Client | None = None

        def command(found: api.TelemetryCommand) -> None:
            if len(call.unsent) <= UNREAD_BYTES_MAX:  # checks of transactions come again
                call.send(found.SerializeToString())

        try:
            context = context_of(call)
        except V5Error as error:
            if await call.receive() is not None:  # not before: the client is still sending
                command(api.TelemetryCommand(status=status(error.code, error.text)))
            return
        try:
            while (data := await call.receive()) is not None:
                request = api.TelemetryCommand.FromString(data)
                client = self._clients.of(context)
                if len(call.unsent) > UNREAD_BYTES_MAX:
                    text = "the client does not read its telemetry stream"
                    raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)
                if request.HasField("settings"):
                    answer = await self._take_settings(context, client, request.settings)
                    client.command = command
                    command(answer)
        except DecodeError as error:
            text = f"Invalid protobuf byte sequence: {error}"
            raise GrpcError(GrpcStatus.UNKNOWN, text) from error
        except V5Error as error:
            text = f"process client telemetryCommand failed. {error.text}"
            is_clients = v2.BAD_REQUEST <= error.code < v2.INTERNAL_ERROR
            code = GrpcStatus.INVALID_ARGUMENT if is_clients else GrpcStatus.INTERNAL
            raise GrpcError(code, text) from error
        finally:
            if client is not None and client.command is command:
                client.command = None

    async def _take_settings(
        self, context: CallContext, client: V5Client, settings: v2.Settings
    ) -> api.TelemetryCommand:
        group: GroupConfig | None = None
        if settings.HasField("publishing"):
            for topic in settings.publishing.topics:
                checks.topic_of(topic)
        elif settings.HasField("subscription"):
            group = self._find_group(checks.group_of(settings.subscription.group))
            for entry in settings.subscription.subscriptions:
                checks.topic_of(entry.topic)
        else:
            text = "there is no publishing or subscription data in settings"
            raise V5Error(v2.BAD_REQUEST, text)
        await self._register(context, client, settings)
        client.settings = settings
        found = merged(settings, group, self._config())
        return api.TelemetryCommand(status=status(v2.OK), settings=found)

    async def heartbeat(
        self, context: CallContext, client: V5Client, request: api.HeartbeatRequest
    ) -> api.HeartbeatResponse:
        """Register a client again."""
        settings = _settings_of(client)
        if settings.client_type in CONSUMER_TYPES:
            checks.group_of(request.group)
        await self._register(context, client, settings)
        return api.HeartbeatResponse(status=status(v2.OK))

    async def terminate(
        self, context: CallContext, client: V5Client, request: api.NotifyClientTerminationRequest
    ) -> api.NotifyClientTerminationResponse:
        """Forget a client."""
        settings = _settings_of(client)
        if settings.client_type in CONSUMER_TYPES:
            checks.group_of(request.group)
        self._requests.check(context, RequestCode.UNREGISTER_CLIENT, _unregistered(settings))
        self._clients.remove(context)
        return api.NotifyClientTerminationResponse(status=status(v2.OK))

    async def _register(
        self, context: CallContext, client: V5Client, settings: v2.Settings
    ) -> None:
        """Register a client as a remoting client registers by its heartbeat.

        Raises:
            V5Error: A subscription is not valid, or the account may not have it.
        """
        body = msgspec.json.encode(heartbeat_of(client.client_id, settings))
        await self._requests.must(context, client, RequestCode.HEART_BEAT, {}, body)


def _settings_of(client: V5Client) -> v2.Settings:
    """Return the settings that a client has sent.

    Raises:
        V5Error: It has sent none, or is of no known type.
    """
    if client.settings is None:
        text = "cannot find client settings for this client"
        raise V5Error(v2.UNRECOGNIZED_CLIENT_TYPE, text)
    kind = client.settings.client_type
    if kind != v2.PRODUCER and kind not in CONSUMER_TYPES:
        raise V5Error(v2.UNRECOGNIZED_CLIENT_TYPE, f"client type {int(kind)}")
    return client.settings


def _unregistered(settings: v2.Settings) -> dict[str, str]:
    group = settings.subscription.group.name
    return {"consumerGroup": group} if group else {}


def heartbeat_of(client_id: str, settings: v2.Settings) -> dict[str, object]:
    """Return the heartbeat of a remoting client with the same settings.

    Each topic of a producer is a producer group, as in Apache's proxy.
    """
    found: dict[str, object] = {"clientID": client_id}
    if settings.HasField("publishing"):
        names = dict.fromkeys(topic.name for topic in settings.publishing.topics)
        found["producerDataSet"] = [{"groupName": name} for name in names]
        return found
    subscription = settings.subscription
    found["consumerDataSet"] = [
        {
            "groupName": subscription.group.name,
            "consumeType": CONSUMER_TYPES.get(settings.client_type, "CONSUME_ACTIVELY"),
            "messageModel": "CLUSTERING",
            "consumeFromWhere": FROM_LAST,
            "subscriptionDataSet": [
                {
                    "topic": entry.topic.name,
                    "subString": entry.expression.expression or "*",
                    "expressionType": "SQL92" if entry.expression.type == v2.SQL else "TAG",
                    "tagsSet": _tags(entry.expression),
                }
                for entry in subscription.subscriptions
            ],
        }
    ]
    return found


def _tags(expression: v2.FilterExpression) -> list[str]:
    if expression.type == v2.SQL or expression.expression in ("", "*"):
        return []
    return [tag.strip() for tag in expression.expression.split("||") if tag.strip()]
