"""MessagingService: the twelve calls that Apache's proxy serves, by their paths.

bytes --decode--> context, client --> call of its subject --encode--> bytes
              refusals become the status in the response; the call itself ends with OK
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from duemq.net.http2.grpc_call import GrpcCall, GrpcMethod
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.client_calls import ClientCalls
from duemq.v5.clients import V5Clients
from duemq.v5.context import context_of
from duemq.v5.protocol import service as api
from duemq.v5.receives import ReceiveCalls
from duemq.v5.routes import RouteCalls
from duemq.v5.sends import SendCalls
from duemq.v5.status import V5Error, status
from duemq.v5.transactions import TransactionCalls

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
RequestT = TypeVar("RequestT", bound=Message)
Work = Callable[..., Awaitable[Message]]
"""Takes context, client and request of a call; returns the response."""


class MessagingService:
    """The methods of the service."""

    def __init__(
        self,
        clients: V5Clients,
        routes: RouteCalls,
        sends: SendCalls,
        receives: ReceiveCalls,
        acks: AckCalls,
        transactions: TransactionCalls,
        client_calls: ClientCalls,
    ) -> None:
        self._clients, self._receives = clients, receives
        self._unary: dict[str, tuple[type[Message], type[Message], Work]] = {
            "QueryRoute": (api.QueryRouteRequest, api.QueryRouteResponse, routes.query_route),
            "QueryAssignment": (
                api.QueryAssignmentRequest, api.QueryAssignmentResponse, routes.query_assignment,
            ),
            "Heartbeat": (api.HeartbeatRequest, api.HeartbeatResponse, client_calls.heartbeat),
            "SendMessage": (api.SendMessageRequest, api.SendMessageResponse, sends.send),
            "RecallMessage": (api.RecallMessageRequest, api.RecallMessageResponse, sends.recall),
            "AckMessage": (api.AckMessageRequest, api.AckMessageResponse, acks.acknowledge),
            "ChangeInvisibleDuration": (
                api.ChangeInvisibleDurationRequest, api.ChangeInvisibleDurationResponse,
                acks.change,
            ),
            "ForwardMessageToDeadLetterQueue": (
                api.ForwardMessageToDeadLetterQueueRequest,
                api.ForwardMessageToDeadLetterQueueResponse,
                acks.forward,
            ),
            "EndTransaction": (
                api.EndTransactionRequest, api.EndTransactionResponse, transactions.end,
            ),
            "NotifyClientTermination": (
                api.NotifyClientTerminationRequest, api.NotifyClientTerminationResponse,
                client_calls.terminate,
            ),
        }  # fmt: skip
        self._telemetry = client_calls.telemetry

    def methods(self) -> dict[bytes, GrpcMethod]:
        """Return the methods by their paths."""
        found = [GrpcMethod(name, self._handler(*parts)) for name, parts in self._unary.items()]
        found.append(GrpcMethod("ReceiveMessage", self._receive))
        found.append(GrpcMethod("Telemetry", self._telemetry, streams=True))
        return {(SERVICE + each.name).encode(): each for each in found}

    def _handler(
        self, request_type: type[Message], response_type: type[Message], work: Work
    ) -> Callable[[GrpcCall], Awaitable[None]]:
        async def handle(call: GrpcCall) -> None:
            try:
                request = await _request_of(call, request_type)
                context = context_of(call)
                response = await work(context, self._clients.of(context), request)
            except V5Error as error:
                response = response_type(status=status(error.code, error.text))
            call.send(response.SerializeToString())

        return handle

    async def _receive(self, call: GrpcCall) -> None:
        request = await _request_of(call, api.ReceiveMessageRequest)
        try:
            context = context_of(call)
            client = self._clients.of(context)
        except V5Error as error:
            refused = api.ReceiveMessageResponse(status=status(error.code, error.text))
            call.send(refused.SerializeToString())
            return
        await self._receives.receive(call, context, client, request)


async def _request_of(call: GrpcCall, request_type: type[RequestT]) -> RequestT:
    """Return the request of a call.

    Raises:
        GrpcError: The client has sent none, or one that is malformed.
    """
    data = await call.receive()
    if data is None:
        raise GrpcError(GrpcStatus.INTERNAL, "Half-closed without a request")
    try:
        request: RequestT = request_type.FromString(data)
        return request
    except DecodeError as error:
        text = f"Invalid protobuf byte sequence: {error}"  # UNKNOWN: as Apache's proxy
        raise GrpcError(GrpcStatus.UNKNOWN, text) from error
