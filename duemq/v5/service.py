"""gRPC methods of MessagingService, with the paths that Apache's proxy serves.

A method decodes the request, finds its client, checks the permission of the account, and calls the
handler. A V5Error becomes the status in the response; the gRPC status of the call is OK.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import Message

from duemq.net.http2.grpc_call import CallTurns, GrpcCall, GrpcMethod
from duemq.v5 import checks
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.client_calls import ClientCalls
from duemq.v5.clients import V5Client, V5Clients
from duemq.v5.context import CallContext, context_of
from duemq.v5.protocol import service as api
from duemq.v5.receives import ReceiveCalls
from duemq.v5.request_decoding import decode_request
from duemq.v5.routes import RouteCalls
from duemq.v5.sends import SendCalls
from duemq.v5.status import V5Error, status
from duemq.v5.transactions import TransactionCalls
from duemq_common.codes import RequestCode

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
Call = Any  # a request, whose fields mypy does not know
RequestT = TypeVar("RequestT", bound=Message)
UnaryHandler = Callable[..., Awaitable[Message]]
"""Function of the context, client and request of a call; returns the response."""


class MessagingService:
    """Table of the gRPC methods.

    Args:
        turns: Serve the calls of one turn of the event loop together, by the name of the method.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        clients: V5Clients,
        routes: RouteCalls,
        sends: SendCalls,
        receives: ReceiveCalls,
        acks: AckCalls,
        transactions: TransactionCalls,
        client_calls: ClientCalls,
        turns: Mapping[str, CallTurns],
    ) -> None:
        self._requests = requests
        self._clients, self._receives, self._turns = clients, receives, turns
        self._unary: dict[str, tuple[type[Message], type[Message], UnaryHandler]] = {
            "QueryRoute": (api.QueryRouteRequest, api.QueryRouteResponse, routes.query_route),
            "QueryAssignment": (
                api.QueryAssignmentRequest,
                api.QueryAssignmentResponse,
                routes.query_assignment,
            ),
            "Heartbeat": (api.HeartbeatRequest, api.HeartbeatResponse, client_calls.heartbeat),
            "SendMessage": (api.SendMessageRequest, api.SendMessageResponse, sends.send),
            "RecallMessage": (api.RecallMessageRequest, api.RecallMessageResponse, sends.recall),
            "AckMessage": (api.AckMessageRequest, api.AckMessageResponse, acks.acknowledge),
            "ChangeInvisibleDuration": (
                api.ChangeInvisibleDurationRequest,
                api.ChangeInvisibleDurationResponse,
                acks.change,
            ),
            "ForwardMessageToDeadLetterQueue": (
                api.ForwardMessageToDeadLetterQueueRequest,
                api.ForwardMessageToDeadLetterQueueResponse,
                acks.forward,
            ),
            "EndTransaction": (
                api.EndTransactionRequest,
                api.EndTransactionResponse,
                transactions.end,
            ),
            "NotifyClientTermination": (
                api.NotifyClientTerminationRequest,
                api.NotifyClientTerminationResponse,
                client_calls.terminate,
            ),
        }
        self._telemetry = client_calls.telemetry

    def methods(self) -> dict[bytes, GrpcMethod]:
        """Return the methods by path."""
        methods = [
            GrpcMethod(name, self._handler(name, *parts), turns=self._turns.get(name))
            for name, parts in self._unary.items()
        ]
        methods.append(GrpcMethod("ReceiveMessage", self._receive))
        methods.append(GrpcMethod("Telemetry", self._telemetry, streams=True))
        return {(SERVICE + each.name).encode(): each for each in methods}

    def _handler(
        self,
        name: str,
        request_type: type[Message],
        response_type: type[Message],
        work: UnaryHandler,
    ) -> Callable[[GrpcCall], Awaitable[None]]:
        async def handle(call: GrpcCall) -> None:
            try:
                request = await _request_of(call, request_type)
                context = context_of(call)
                client = self._clients.for_call(context)
                self._check(name, context, client, request)
                response = await work(context, client, request)
            except V5Error as error:
                response = response_type(status=status(error.code, error.text))
            call.send(response.SerializeToString())

        return handle

    def _check(self, name: str, context: CallContext, client: V5Client, request: Message) -> None:
        """Check the permission of a call.

        Raises:
            V5Error: The account has no permission.
        """
        if self._requests.access is not None:
            permission = permission_of(name, request)
            if permission is not None:
                self._requests.check(context, client, *permission)

    async def _receive(self, call: GrpcCall) -> None:
        request = await _request_of(call, api.ReceiveMessageRequest)
        try:
            context = context_of(call)
            client = self._clients.for_call(context)
        except V5Error as error:
            refused = api.ReceiveMessageResponse(status=status(error.code, error.text))
            call.send(refused.SerializeToString())
            return
        try:
            self._check("ReceiveMessage", context, client, request)
        except V5Error as error:
            self._receives.refuse(call, error)
            return
        await self._receives.receive(call, context, client, request)


async def _request_of(call: GrpcCall, request_type: type[RequestT]) -> RequestT:
    """Receive the request of a call.

    Raises:
        GrpcError: The request is missing or malformed.
    """
    return decode_request(await call.receive(), request_type)


class Permission(NamedTuple):
    """Request of a remoting client that needs the same permission as a call."""

    code: RequestCode
    fields: dict[str, str]
    body: bytes = b""


def permission_of(method: str, request: Call) -> Permission | None:
    """Return the permission that a call needs; None: its handler checks, or refuses the call.

    Telemetry, Heartbeat and NotifyClientTermination depend on the settings of a client: their
    handlers check the topics and groups in them, before they register or remove it.

    Raises:
        V5Error: A name in the request is invalid.
    """
    find = _PERMISSIONS.get(method)
    return find(request) if find is not None else None


def _on_topic(code: RequestCode) -> Callable[[Call], Permission]:
    return lambda request: Permission(code, {"topic": checks.topic_of(request.topic)})


def _on_consumer(code: RequestCode) -> Callable[[Call], Permission]:
    def permission(request: Call) -> Permission:
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        return Permission(code, {"consumerGroup": group, "topic": topic})

    return permission


def _send(request: Call) -> Permission | None:
    if not request.messages:
        return None
    topic = checks.topic_of(request.messages[0].topic)
    return Permission(RequestCode.SEND_MESSAGE, {"topic": topic})


def _receive(request: Call) -> Permission:
    topic = checks.topic_of(request.message_queue.topic)
    group = checks.group_of(request.group)
    return Permission(RequestCode.POP_MESSAGE, {"consumerGroup": group, "topic": topic})


def _assignment(request: Call) -> Permission:
    topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
    body = msgspec.json.encode({"consumerGroup": group, "topic": topic})
    return Permission(RequestCode.QUERY_ASSIGNMENT, {}, body)


_PERMISSIONS: Final[Mapping[str, Callable[[Call], Permission | None]]] = {
    "QueryRoute": _on_topic(RequestCode.GET_ROUTEINFO_BY_TOPIC),
    "QueryAssignment": _assignment,
    "SendMessage": _send,
    "RecallMessage": _on_topic(RequestCode.RECALL_MESSAGE),
    "ReceiveMessage": _receive,
    "AckMessage": _on_consumer(RequestCode.ACK_MESSAGE),
    "ChangeInvisibleDuration": _on_consumer(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    "ForwardMessageToDeadLetterQueue": _on_consumer(RequestCode.ACK_MESSAGE),
    "EndTransaction": _on_topic(RequestCode.END_TRANSACTION),
}
