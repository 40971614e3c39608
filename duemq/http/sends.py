"""Sends of messages: now, with a delay, at a time, by a level; many in one request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from duemq.client import SendResult
from duemq.http.endpoints import Call, Endpoint
from duemq.http.idempotency import NO_INDEX, OnceSends, key_of
from duemq.http.problems import problem_of
from duemq.http.sent import BatchItem, BatchResult, NewBatch, NewMessage, SentMessage

KEY_TEXT: Final = (
    "Key of the message. A request that repeats it returns the result of the first one, and the "
    "message is not stored again."
)


TRACE_HEADER: Final = "traceparent"
TRACE_CONTEXT: Final = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Sends:
    """Handlers of sends."""

    def __init__(self) -> None:
        self._once = OnceSends()

    async def send_message(self, call: Call) -> SentMessage:
        """Send one message."""
        return await self._send(call, call.body, key_of(call.headers))

    async def _send(
        self, call: Call, new: NewMessage, key: str, index: int = NO_INDEX
    ) -> SentMessage:
        context = trace_context(call.headers, new)
        if not key:
            send = call.session.producer.send_with
            return sent_message(await send(new.message(), context))
        once = await self._once.send(call.session, call.credentials, new, key, index, context)
        sent = sent_message(once.result)
        sent.repeated = once.repeated
        return sent

    async def send_batch(self, call: Call) -> BatchResult:
        """Send messages; one that is refused does not prevent the others."""
        key = key_of(call.headers)

        async def outcome(index: int, new: NewMessage) -> BatchItem:
            try:
                return BatchItem(await self._send(call, new, key, index))
            except Exception as error:
                return BatchItem(problem=problem_of(error).details)

        messages = enumerate(call.body.messages)
        results = await asyncio.gather(*[outcome(index, new) for index, new in messages])
        return BatchResult(sum(each.message is not None for each in results), results)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        send = partial(
            Endpoint, method="POST", tag="messages", headers={"Idempotency-Key": KEY_TEXT}
        )
        return (
            send(
                path="/messages",
                handler=self.send_message,
                summary="Send a message: now, after a delay, at a time, or by a level.",
                body=NewMessage,
                result=SentMessage,
                status=201,
                problems=(422,),
            ),
            send(
                path="/messages/batch",
                handler=self.send_batch,
                summary="Send messages; each has a result of its own.",
                body=NewBatch,
                result=BatchResult,
            ),
        )


def trace_context(headers: Mapping[str, str], new: NewMessage) -> Mapping[str, str]:
    """Return the property with the trace context of a request (W3C); none if it is invalid."""
    context = headers.get(TRACE_HEADER)
    if context is None or TRACE_HEADER in new.properties or not TRACE_CONTEXT.fullmatch(context):
        return NO_PROPERTIES
    return {TRACE_HEADER: context}


def sent_message(result: SendResult) -> SentMessage:
    """Return the body of a response."""
    return SentMessage(
        message_id=result.message_id,
        status=result.status,
        topic=result.queue.topic,
        broker=result.queue.broker_name,
        queue_id=result.queue.queue_id,
        queue_offset=result.queue_offset,
        offset_message_id=result.offset_message_id,
        recall_handle=result.recall_handle,
    )
