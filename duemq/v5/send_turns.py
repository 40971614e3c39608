"""Sends (SendMessage) of all clients in one turn of the event loop.

    calls --> check --> requests --one append--> responses --> one write per connection
                                        +--> wait for disk, replicas, topic: one task per call

A call of several messages, and a call whose topic must be created first, go to their handler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcStatus
from duemq.send.decoded_sends import DecodedSends, is_complete
from duemq.send.responses import DecodedSend
from duemq.v5.batched_calls import BatchedCalls
from duemq.v5.clients import V5Clients
from duemq.v5.context import context_of
from duemq.v5.protocol import service as api
from duemq.v5.request_decoding import decode_request
from duemq.v5.sends import SendCalls
from duemq_common.request import Request, Response

# A call, its request, and the request that appends its message.
CheckedSend: TypeAlias = tuple[GrpcCall, api.SendMessageRequest, Request]


class SendTurns(BatchedCalls[CheckedSend]):
    """Serves SendMessage.

    Args:
        calls: Checks calls and builds their responses.
        sends: Append path of messages.
        clients: Clients of the server.
    """

    def __init__(self, calls: SendCalls, sends: DecodedSends, clients: V5Clients) -> None:
        super().__init__(api.SendMessageResponse)
        self._send_calls, self._sends, self._clients = calls, sends, clients

    def _serve(self, calls: Sequence[GrpcCall]) -> None:
        checked = self._checked(calls)
        outcomes = self._sends.append(request for _, _, request in checked)
        for (call, message, _), outcome in zip(checked, outcomes, strict=True):
            if outcome.result is None:
                call.serve()
                continue
            response, send, waits = outcome.result
            if is_complete(send, waits=waits):
                self._respond(call, message, response)
                call.finish(GrpcStatus.OK)
            else:
                assert send is not None
                call.complete(self._respond_later(call, message, response, send, waits=waits))

    def _check(self, call: GrpcCall) -> CheckedSend | None:
        message = decode_request(call.received(), api.SendMessageRequest)
        if len(message.messages) != 1:
            call.serve()
            return None
        context = context_of(call)
        client = self._clients.for_call(context)
        (request,) = self._send_calls.requests_of(context, client, message)
        return call, message, request

    def _respond(self, call: GrpcCall, message: api.SendMessageRequest, response: Response) -> None:
        call.send(self._send_calls.send_response(message, [response]).SerializeToString())

    async def _respond_later(
        self,
        call: GrpcCall,
        message: api.SendMessageRequest,
        response: Response,
        send: DecodedSend,
        *,
        waits: bool,
    ) -> None:
        completed = await self._sends.completed(response, send, waits=waits)
        self._respond(call, message, completed)
