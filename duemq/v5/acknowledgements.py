"""Handlers of AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

Source: AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from duemq.pop.acks import ENTRIES_MAX
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle, check_not_expired, parse_handle
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.renewals import Renewals
from duemq.v5.status import HandleEnded, V5Error, status, status_of, status_of_all
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response


class AckCalls:
    """Handlers of the calls that pass receipt handles.

    Args:
        settled_ms: Returns the revive time up to which every checkpoint is settled.
    Attributes:
        renewals: Automatic renewals of invisible times.
    """

    def __init__(
        self,
        requests: BrokerRequests,
        broker_name: str,
        clock: Clock,
        settled_ms: Callable[[], int],
    ) -> None:
        self._requests, self._broker_name, self._clock = requests, broker_name, clock
        self._settled_ms = settled_ms
        self.renewals = Renewals(clock, self._change)

    async def acknowledge(
        self, context: CallContext, client: V5Client, request: api.AckMessageRequest
    ) -> api.AckMessageResponse:
        """Acknowledge messages; return one status for each."""
        topic, group = names_of(request)
        handles = [each.receipt_handle for each in request.entries]
        work = [self._acknowledge_one(context, client, group, topic, each) for each in handles]
        return ack_response(request, await asyncio.gather(*work))

    def request_of(
        self, context: CallContext, client: V5Client, group: str, topic: str, text: str
    ) -> Request:
        """Return the request that acknowledges a message; no renewal of it is in flight.

        Raises:
            V5Error: The handle is invalid, or the account has no permission.
        """
        handle = parse_handle(text, self._broker_name)
        newest = self.renewals.newest(group, topic, handle)
        self._check_not_expired(newest)
        fields = _fields_of(group, topic, newest)
        request = self._requests.request(context, client, RequestCode.ACK_MESSAGE, fields)
        self.renewals.remove_at_rest(group, topic, handle)
        return request

    async def _acknowledge_one(
        self, context: CallContext, client: V5Client, group: str, topic: str, text: str
    ) -> v2.Status:
        try:
            handle = parse_handle(text, self._broker_name)
            handle = await self.renewals.remove(group, topic, handle)
            self._check_not_expired(handle)
            await self.acknowledge_handle(context, client, group, topic, handle)
        except V5Error as error:
            return status(error.code, error.text)
        return status(v2.OK)

    def _check_not_expired(self, handle: Handle) -> None:
        check_not_expired(handle, self._clock.now_ms(), self._settled_ms)

    async def acknowledge_handle(
        self, context: CallContext, client: V5Client, group: str, topic: str, handle: Handle
    ) -> None:
        """Acknowledge one message.

        Raises:
            V5Error: The broker refused the acknowledgement.
        """
        fields = _fields_of(group, topic, handle)
        response = await self._requests.call(context, client, RequestCode.ACK_MESSAGE, fields)
        if response.code != ResponseCode.SUCCESS:
            raise refused(response)

    async def change(
        self, context: CallContext, client: V5Client, request: api.ChangeInvisibleDurationRequest
    ) -> api.ChangeInvisibleDurationResponse:
        """Change the invisible time of a message, counted from now."""
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        duration = request.invisible_duration
        invisible_ms = checks.check_invisible(
            duration.seconds * 1_000 + duration.nanos // 1_000_000
        )
        handle = parse_handle(request.receipt_handle, self._broker_name)
        handle = await self.renewals.remove(group, topic, handle)
        self._check_not_expired(handle)
        changed = await self._change(
            context, client, group, topic, handle, invisible_ms, suspend=request.suspend
        )
        return api.ChangeInvisibleDurationResponse(
            status=status(v2.OK), receipt_handle=changed.text
        )

    async def _change(
        self,
        context: CallContext,
        client: V5Client,
        group: str,
        topic: str,
        handle: Handle,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> Handle:
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        fields = _fields_of(group, topic, handle) | {"invisibleTime": str(invisible_ms)}
        if suspend:
            fields["suspend"] = "true"
        response = await self._requests.call(context, client, code, fields)
        if response.code in _NOT_FOUND_CODES:
            text = "changeInvisibleDuration failed: status is abnormal"
            raise HandleEnded(v2.INTERNAL_SERVER_ERROR, text)
        if response.code != ResponseCode.SUCCESS:
            status = status_of(response)
            raise V5Error(status.code, status.message)
        new, receipt = response.fields or {}, handle.receipt
        start = receipt.start_offset if receipt.is_orderly else handle.offset
        parts = (
            start,
            new["popTime"],
            new["invisibleTime"],
            new["reviveQid"],
            receipt.retry,
            receipt.broker_name,
            receipt.queue_id,
            handle.offset,
            handle.log_offset,
        )
        return parse_handle(" ".join(map(str, parts)), self._broker_name)

    async def forward(
        self,
        context: CallContext,
        client: V5Client,
        request: api.ForwardMessageToDeadLetterQueueRequest,
    ) -> api.ForwardMessageToDeadLetterQueueResponse:
        """Move a message to the dead letter topic of its group."""
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        handle = parse_handle(request.receipt_handle, self._broker_name)
        handle = await self.renewals.remove(group, topic, handle)
        status = await self.forward_handle(context, client, group, topic, handle)
        return api.ForwardMessageToDeadLetterQueueResponse(status=status)

    async def forward_handle(
        self, context: CallContext, client: V5Client, group: str, topic: str, handle: Handle
    ) -> v2.Status:
        """Copy a message to the dead letter topic, acknowledge it, and return the status.

        If the acknowledgement fails, the message is delivered again, as with Apache's proxy.

        Raises:
            V5Error: The handle has no log offset.
        """
        if handle.log_offset < 0:
            raise V5Error(v2.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        fields = {
            "offset": str(handle.log_offset),
            "group": group,
            "delayLevel": "-1",
            "originTopic": handle.topic(topic, group),
            "maxReconsumeTimes": "0",
        }
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        response = await self._requests.call(context, client, code, fields)
        if response.code == ResponseCode.SUCCESS:
            with suppress(V5Error):
                await self.acknowledge_handle(context, client, group, topic, handle)
        return status_of(response)


def names_of(request: api.AckMessageRequest) -> tuple[str, str]:
    """Return the topic and the group of a call.

    Raises:
        V5Error: One of them is invalid, or there are too many entries.
    """
    topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
    if len(request.entries) > ENTRIES_MAX:
        raise V5Error(v2.TOO_MANY_REQUESTS, f"a call can have at most {ENTRIES_MAX} entries")
    return topic, group


def ack_response(
    request: api.AckMessageRequest, statuses: Sequence[v2.Status]
) -> api.AckMessageResponse:
    """Return the response to a call from the status of each entry."""
    response = api.AckMessageResponse(status=status_of_all(statuses))
    for entry, each in zip(request.entries, statuses, strict=True):
        response.entries.add(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
        )
    return response


def refused(response: Response) -> V5Error:
    """Return the error of a refused acknowledgement."""
    if response.code in _NOT_FOUND_CODES:
        return V5Error(v2.INTERNAL_SERVER_ERROR, "ack failed: status is abnormal")
    status = status_of(response)
    return V5Error(status.code, status.message)


_NOT_FOUND_CODES: Final = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
"""Response codes for a handle whose message does not exist."""


def _fields_of(group: str, topic: str, handle: Handle) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": handle.topic(topic, group),
        "queueId": str(handle.receipt.queue_id),
        "offset": str(handle.offset),
        "extraInfo": handle.text,
    }
