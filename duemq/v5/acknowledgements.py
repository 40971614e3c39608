"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

Source: AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from duemq.net.codes import RequestCode, ResponseCode
from duemq.v5 import checks
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle, check_not_expired, parse_handle
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.renewals import Renewals
from duemq.v5.status import V5Error, status, status_of, status_of_all
from message_store.clock import Clock

ENTRIES_MAX: Final = 1_024  # of one call


class AckCalls:
    """Handles the calls that name receipt handles.

    Attributes:
        renewals: Messages whose invisible times the broker renews.
    """

    def __init__(self, requests: BrokerRequests, broker_name: str, clock: Clock) -> None:
        self._requests, self._broker_name, self._clock = requests, broker_name, clock
        self.renewals = Renewals(clock, self._change)

    async def acknowledge(
        self, context: CallContext, client: V5Client, request: api.AckMessageRequest
    ) -> api.AckMessageResponse:
        """Acknowledge messages, each with its own status."""
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        if len(request.entries) > ENTRIES_MAX:
            raise V5Error(v2.TOO_MANY_REQUESTS, f"one call has at most {ENTRIES_MAX} entries")
        handles = [each.receipt_handle for each in request.entries]
        work = [self._acknowledge_one(context, client, group, topic, each) for each in handles]
        found = [await work[0]] if len(work) == 1 else await asyncio.gather(*work)
        answer = api.AckMessageResponse(status=status_of_all(found))
        for entry, each in zip(request.entries, found, strict=True):
            answer.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
            )
        return answer

    async def _acknowledge_one(
        self, context: CallContext, client: V5Client, group: str, topic: str, text: str
    ) -> v2.Status:
        try:
            handle = parse_handle(text, self._broker_name)
            handle = await self.renewals.take(group, topic, handle)
            check_not_expired(handle, self._clock.now_ms())
            await self.acknowledge_handle(context, client, group, topic, handle)
        except V5Error as error:
            return status(error.code, error.text)
        return status(v2.OK)

    async def acknowledge_handle(
        self, context: CallContext, client: V5Client, group: str, topic: str, handle: Handle
    ) -> None:
        """Acknowledge one message.

        Raises:
            V5Error: It was refused.
        """
        fields = _fields_of(group, topic, handle)
        response = await self._requests.ask(context, client, RequestCode.ACK_MESSAGE, fields)
        if response.code in _GONE:
            raise V5Error(v2.INTERNAL_SERVER_ERROR, "ack failed: status is abnormal")
        if response.code != ResponseCode.SUCCESS:
            found = status_of(response)
            raise V5Error(found.code, found.message)

    async def change(
        self, context: CallContext, client: V5Client, request: api.ChangeInvisibleDurationRequest
    ) -> api.ChangeInvisibleDurationResponse:
        """Give a message another invisible time, from now on."""
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        duration = request.invisible_duration
        invisible_ms = checks.check_invisible(
            duration.seconds * 1_000 + duration.nanos // 1_000_000
        )
        handle = parse_handle(request.receipt_handle, self._broker_name)
        handle = await self.renewals.take(group, topic, handle)
        check_not_expired(handle, self._clock.now_ms())
        changed = await self._change(context, client, group, topic, handle, invisible_ms)
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
    ) -> Handle:
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        fields = _fields_of(group, topic, handle) | {"invisibleTime": str(invisible_ms)}
        response = await self._requests.ask(context, client, code, fields)
        if response.code in _GONE:
            text = "changeInvisibleDuration failed: status is abnormal"
            raise V5Error(v2.INTERNAL_SERVER_ERROR, text)
        if response.code != ResponseCode.SUCCESS:
            found = status_of(response)
            raise V5Error(found.code, found.message)
        answer, receipt = response.fields or {}, handle.receipt
        start = receipt.start_offset if receipt.is_orderly else handle.offset
        parts = (
            start, answer["popTime"], answer["invisibleTime"], answer["reviveQid"], receipt.retry,
            receipt.broker_name, receipt.queue_id, handle.offset, handle.log_offset,
        )  # fmt: skip
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
        handle = await self.renewals.take(group, topic, handle)
        found = await self.forward_handle(context, client, group, topic, handle)
        return api.ForwardMessageToDeadLetterQueueResponse(status=found)

    async def forward_handle(
        self, context: CallContext, client: V5Client, group: str, topic: str, handle: Handle
    ) -> v2.Status:
        """Move a message to the dead letter topic, then acknowledge it; return the status.

        One that cannot be acknowledged comes again, as behind Apache's proxy.

        Raises:
            V5Error: The handle does not say which message.
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
        response = await self._requests.ask(context, client, code, fields)
        if response.code == ResponseCode.SUCCESS:
            with suppress(V5Error):
                await self.acknowledge_handle(context, client, group, topic, handle)
        return status_of(response)


_GONE: Final = frozenset({ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL})
"""Responses to requests whose message is not where the handle says."""


def _fields_of(group: str, topic: str, handle: Handle) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": handle.topic(topic, group),
        "queueId": str(handle.receipt.queue_id),
        "offset": str(handle.offset),
        "extraInfo": handle.text,
    }
