"""Handlers of Telemetry, Heartbeat and NotifyClientTermination.

    Telemetry: client settings --> register the client --> effective settings, sent back
               <-- commands of the broker: checks of transactions
    Heartbeat: registers the client again, with the settings from Telemetry

Source: ClientActivity
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from google.protobuf.message import DecodeError

from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus
from duemq.registry.groups import GroupConfig
from duemq.registry.subscriptions import ExpressionError, parse_expression
from duemq.registry.topic_config import NO_LITE_TOPICS
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client, V5Clients
from duemq.v5.config import V5Config
from duemq.v5.context import CallContext, context_of
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.settings import effective_settings, kept_settings
from duemq.v5.status import V5Error, status
from duemq_common.codes import RequestCode

LITE_TYPES = (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER)
CONSUMER_TYPES = {v2.PUSH_CONSUMER: "CONSUME_PASSIVELY", v2.SIMPLE_CONSUMER: "CONSUME_ACTIVELY"}
UNSENT_BYTES_MAX = 1 << 20  # per telemetry stream; normally all bytes are sent
CHECKS_MAX = 256  # permissions that are checked in one turn of the event loop
FROM_LAST = "CONSUME_FROM_LAST_OFFSET"


class ClientCalls:
    """Handlers of the calls that register and unregister clients.

    Args:
        find_group: Returns a consumer group, auto-created if allowed; None if there is none.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        clients: V5Clients,
        find_group: Callable[[str], GroupConfig | None],
        config: Callable[[], V5Config],
    ) -> None:
        self._requests, self._clients = requests, clients
        self._find_group, self._config = find_group, config

    async def telemetry(self, call: GrpcCall) -> None:
        """Serve a telemetry stream: receive settings, send commands, until the client ends it.

        Raises:
            GrpcError: The settings were refused; the stream ends.
        """
        client: V5Client | None = None

        def command(message: api.TelemetryCommand) -> None:
            if len(call.unsent) <= UNSENT_BYTES_MAX:  # else drop: the broker repeats checks
                call.send(message.SerializeToString())

        try:
            context = context_of(call)
        except V5Error as error:
            if await call.receive() is not None:  # respond after the first command of the client
                command(api.TelemetryCommand(status=status(error.code, error.text)))
            return
        try:
            while (data := await call.receive()) is not None:
                request = api.TelemetryCommand.FromString(data)
                client = self._clients.for_call(context)
                if len(call.unsent) > UNSENT_BYTES_MAX:
                    text = "the client does not read its telemetry stream"
                    raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, text)
                if request.HasField("settings"):
                    response = await self._apply_settings(context, client, request.settings)
                    client.command = command
                    command(response)
        except DecodeError as error:
            text = f"Invalid protobuf byte sequence: {error}"
            raise GrpcError(GrpcStatus.UNKNOWN, text) from error
        except V5Error as error:
            if error.code == v2.UNAUTHORIZED:  # as Apache's proxy: a command, then the end
                command(api.TelemetryCommand(status=status(error.code, error.text)))
                return
            text = f"process client telemetryCommand failed. {error.text}"
            is_client_error = v2.BAD_REQUEST <= error.code < v2.INTERNAL_ERROR
            code = GrpcStatus.INVALID_ARGUMENT if is_client_error else GrpcStatus.INTERNAL
            raise GrpcError(code, text) from error
        finally:
            if client is not None and client.command is command:
                client.command = None

    async def _apply_settings(
        self, context: CallContext, client: V5Client, settings: v2.Settings
    ) -> api.TelemetryCommand:
        group: GroupConfig | None = None
        if settings.HasField("publishing"):
            for topic in settings.publishing.topics:
                checks.topic_of(topic)
        elif settings.HasField("subscription"):
            _check_consumer(settings.client_type)
            checks.group_of(settings.subscription.group)
            for entry in settings.subscription.subscriptions:
                _check_expression(checks.topic_of(entry.topic), entry.expression)
        else:
            text = "there is no publishing or subscription data in settings"
            raise V5Error(v2.BAD_REQUEST, text)
        await self._register(context, client, settings)
        if settings.HasField("subscription"):
            group = self._find_group(settings.subscription.group.name)  # may create it
        client.settings = kept_settings(settings)
        effective = effective_settings(settings, group, self._config())
        return api.TelemetryCommand(status=status(v2.OK), settings=effective)

    async def heartbeat(
        self, context: CallContext, client: V5Client, request: api.HeartbeatRequest
    ) -> api.HeartbeatResponse:
        """Renew the registration of a client."""
        settings = _settings_of(client)
        if settings.client_type in CONSUMER_TYPES:
            checks.group_of(request.group)
        await self._register(context, client, settings)
        return api.HeartbeatResponse(status=status(v2.OK))

    async def terminate(
        self, context: CallContext, client: V5Client, request: api.NotifyClientTerminationRequest
    ) -> api.NotifyClientTerminationResponse:
        """Remove a client."""
        settings = _settings_of(client)
        if settings.client_type in CONSUMER_TYPES:
            checks.group_of(request.group)
        self._requests.check(
            context, client, RequestCode.UNREGISTER_CLIENT, _unregister_fields(settings)
        )
        self._clients.remove(context)
        return api.NotifyClientTerminationResponse(status=status(v2.OK))

    async def _register(
        self, context: CallContext, client: V5Client, settings: v2.Settings
    ) -> None:
        """Register a client with the heartbeat of an equivalent remoting client.

        The broker checks half messages at the producers of their topics, so a producer needs the
        permission to send.

        Raises:
            V5Error: A subscription is invalid, or the account has no permission.
        """
        if self._requests.access is not None:
            for number, name in enumerate(topics_of(settings), 1):
                self._requests.check(context, client, RequestCode.SEND_MESSAGE, {"topic": name})
                if number % CHECKS_MAX == 0:
                    await asyncio.sleep(0)
        body = msgspec.json.encode(heartbeat_of(client.client_id, settings))
        await self._requests.call_or_raise(context, client, RequestCode.HEART_BEAT, {}, body)


def _settings_of(client: V5Client) -> v2.Settings:
    """Return the settings of a client.

    Raises:
        V5Error: The client sent no settings, or its type is not supported.
    """
    if client.settings is None:
        text = "cannot find client settings for this client"
        raise V5Error(v2.UNRECOGNIZED_CLIENT_TYPE, text)
    kind = client.settings.client_type
    if kind != v2.PRODUCER and kind not in CONSUMER_TYPES:
        raise V5Error(v2.UNRECOGNIZED_CLIENT_TYPE, f"client type {int(kind)}")
    return client.settings


def _check_consumer(kind: v2.ClientType) -> None:
    """Check the client type in settings with subscriptions.

    Raises:
        V5Error: It is not a consumer, or is one that is not served; the code of Apache's proxy.
    """
    if kind not in CONSUMER_TYPES:
        client_type = v2.ClientType.Name(kind) if kind in v2.ClientType.values() else int(kind)
        served = ", ".join(map(v2.ClientType.Name, CONSUMER_TYPES))
        reason = f"; {NO_LITE_TOPICS}" if kind in LITE_TYPES else ""
        raise V5Error(
            v2.INTERNAL_SERVER_ERROR,
            f"clients of type {client_type} cannot subscribe here; "
            f"the types of consumers are {served}{reason}",
        )


def _check_expression(topic: str, filter_expression: v2.FilterExpression) -> None:
    """Check the form of a filter expression; SQL is compiled by the first receive.

    Raises:
        V5Error: It has no tag or too many tags, is too long, or is empty SQL.
    """
    expression, is_sql = filter_expression.expression, filter_expression.type == v2.SQL
    try:
        if is_sql and not expression:
            raise ExpressionError(f"topic {topic}: the SQL expression is empty")
        parse_expression(topic, expression, "SQL92" if is_sql else None)
    except ExpressionError as error:
        raise V5Error(v2.ILLEGAL_FILTER_EXPRESSION, str(error)) from error


def _unregister_fields(settings: v2.Settings) -> dict[str, str]:
    group = settings.subscription.group.name
    return {"consumerGroup": group} if group else {}


def topics_of(settings: v2.Settings) -> list[str]:
    """Return the distinct topics of a producer."""
    return list(dict.fromkeys(topic.name for topic in settings.publishing.topics))


def heartbeat_of(client_id: str, settings: v2.Settings) -> dict[str, object]:
    """Return the heartbeat of a remoting client that is equivalent to a v5 client.

    Each topic of a producer becomes a producer group, as in Apache's proxy.
    """
    members: dict[str, object] = {"clientID": client_id}
    if settings.HasField("publishing"):
        members["producerDataSet"] = [{"groupName": name} for name in topics_of(settings)]
        return members
    subscription = settings.subscription
    members["consumerDataSet"] = [
        {
            "groupName": subscription.group.name,
            "consumeType": CONSUMER_TYPES[settings.client_type],
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
    return members


def _tags(expression: v2.FilterExpression) -> list[str]:
    if expression.type == v2.SQL or expression.expression in ("", "*"):
        return []
    return [tag.strip() for tag in expression.expression.split("||") if tag.strip()]
