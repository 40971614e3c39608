"""Acknowledgements (AckMessage) of all clients in one turn of the event loop.

    calls --> check --> records --one append--> statuses --> one write per connection
                                         +--> wait for disk and replicas: one task per call

A call with a handle whose renewal is in flight goes to its handler.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from duemq.net.dispatcher import refusal
from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcStatus
from duemq.net.meters import RpcMeter
from duemq.net.notices import Notices
from duemq.pop.ack_batch import AckBatch
from duemq.pop.merged_acks import AckKey
from duemq.v5.acknowledgements import AckCalls, ack_response, names_of, refused
from duemq.v5.batched_calls import BatchedCalls
from duemq.v5.clients import V5Client, V5Clients
from duemq.v5.context import CallContext, context_of
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.request_decoding import decode_request
from duemq.v5.status import V5Error, status
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
_OK: Final = status(v2.OK)
_ACK: Final = Request(RequestCode.ACK_MESSAGE, {})  # for the log, if an append fails


@dataclass(slots=True)
class CheckedAcks:
    """A call whose acknowledgements were added to the batch.

    Attributes:
        results: For each entry, the key of its record, or its status if it has none.
    """

    call: GrpcCall
    request: api.AckMessageRequest
    results: list[AckKey | v2.Status]


class V5AckTurns(BatchedCalls[CheckedAcks]):
    """Serves AckMessage.

    Args:
        calls: Checks the entries of calls.
        batch: Appends the acknowledgements.
        clients: Clients of the server.
        meter: Meter of the requests.
    """

    def __init__(
        self, calls: AckCalls, batch: AckBatch, clients: V5Clients, meter: RpcMeter
    ) -> None:
        super().__init__(api.AckMessageResponse)
        self._ack_calls, self._batch, self._clients, self._meter = calls, batch, clients, meter
        self._failed = Notices(log, logging.ERROR)
        self._codes = Counter[int]()

    def _serve(self, calls: Sequence[GrpcCall]) -> None:
        since_ms = self._meter.start()
        checked = self._checked(calls)
        errors = self._batch.put()
        for each in checked:
            if self._batch.confirms:
                each.call.complete(self._respond_confirmed(each, errors, since_ms))
            else:
                self._respond(each, errors)
                each.call.finish(GrpcStatus.OK)
        self._report_counts(since_ms)

    def _check(self, call: GrpcCall) -> CheckedAcks | None:
        """Check a call; add the acknowledgements of its entries to the batch."""
        request = decode_request(call.received(), api.AckMessageRequest)
        context = context_of(call)
        client = self._clients.for_call(context)
        topic, group = names_of(request)
        texts = [entry.receipt_handle for entry in request.entries]
        if self._ack_calls.renewals.is_in_flight(group, topic, texts):
            call.serve()
            return None
        results = [self._add(context, client, group, topic, text) for text in texts]
        return CheckedAcks(call, request, results)

    def _add(
        self, context: CallContext, client: V5Client, group: str, topic: str, text: str
    ) -> AckKey | v2.Status:
        """Add an acknowledgement to the batch; return its key, or its status without a key."""
        try:
            request = self._ack_calls.request_of(context, client, group, topic, text)
        except V5Error as error:
            return status(error.code, error.text)
        try:
            key = self._batch.add(request)
        except Exception as error:
            return self._status_of(refusal(error, request, self._failed))
        return key if key is not None else self._status_of(Response())

    def _respond(
        self,
        each: CheckedAcks,
        errors: Mapping[AckKey, Exception],
        unconfirmed: RequestError | None = None,
    ) -> None:
        """Respond to a call whose records were appended.

        Args:
            errors: Errors of records that were not appended.
            unconfirmed: Error of appended records; None: they are confirmed.
        """
        statuses = []
        for result in each.results:
            if isinstance(result, tuple):
                error = errors.get(result, unconfirmed)
                response = Response() if error is None else refusal(error, _ACK, self._failed)
                statuses.append(self._status_of(response))
            else:
                statuses.append(result)
        each.call.send(ack_response(each.request, statuses).SerializeToString())

    async def _respond_confirmed(
        self, each: CheckedAcks, errors: Mapping[AckKey, Exception], since_ms: int
    ) -> None:
        unconfirmed = None
        try:
            await self._batch.confirm()
        except RequestError as error:
            unconfirmed = error
        self._respond(each, errors, unconfirmed)
        self._report_counts(since_ms)

    def _status_of(self, response: Response) -> v2.Status:
        """Return the status for a response of the broker, which is counted."""
        self._codes[response.code] += 1
        if response.code == ResponseCode.SUCCESS:
            return _OK
        error = refused(response)
        return status(error.code, error.text)

    def _report_counts(self, since_ms: int) -> None:
        """Report the counted responses to the meter."""
        for code, count in self._codes.items():
            self._meter.together(RequestCode.ACK_MESSAGE, code, count, since_ms)
        self._codes.clear()
