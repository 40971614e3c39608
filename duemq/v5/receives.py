"""Handler of ReceiveMessage: a pop whose messages are streamed one by one.

Messages that were popped and cannot be sent, because the client has cancelled the call or
disconnected, become visible again soon, also if their invisible time is renewed automatically.

Source: ReceiveMessageActivity, ReceiveMessageResponseStreamWriter
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from duemq.auth.model import is_retry_topic
from duemq.net.http2.grpc_call import GrpcCall
from duemq.net.http2.grpc_status import GrpcError, GrpcStatus
from duemq.net.notices import Notices
from duemq.net.retry_topics import NORMAL
from duemq.pop.pop import MESSAGES_MAX
from duemq.pop.receipts import RECEIPT_PROPERTY, Receipt
from duemq.registry.groups import GroupConfig
from duemq.registry.subscriptions import parse_expression
from duemq.registry.topic_config import TopicConfig
from duemq.v5 import checks
from duemq.v5.acknowledgements import AckCalls
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.clients import V5Client
from duemq.v5.config import V5Config
from duemq.v5.context import CallContext
from duemq.v5.handles import Handle, parse_handle
from duemq.v5.messages import message_of
from duemq.v5.permissions import check_readable
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.renewals import RENEWED_INVISIBLE_MS
from duemq.v5.status import V5Error, code_of, status
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from message_store.log.record import Record, decode_record

log = logging.getLogger(__name__)
POLL_MS_MIN: Final = 5_000  # grpcClientConsumerMinLongPollingTimeoutMillis
POLL_MS_MAX: Final = 20_000  # grpcClientConsumerMaxLongPollingTimeoutMillis
REQUEST_TIMEOUT_MS: Final = 3_000  # default for clients without a request timeout in their settings
NEW_CODE_VERSION: Final = "5.0.3"  # first client version with ILLEGAL_POLLING_TIME
INIT_MODE_MAX: Final = "1"  # ConsumeInitMode.MAX: a new group starts at the maximum offset
LENGTH_BYTES: Final = 4
FLAG_PART: Final = 4  # index of the retry flag in a receipt handle
Removal = Callable[[CallContext, V5Client, str, str, Handle], Awaitable[v2.Status | None]]
"""Function of the context, client, group, topic and handle of a message that it removes."""


class ReceiveCalls:
    """Handler of ReceiveMessage."""

    def __init__(
        self,
        requests: BrokerRequests,
        acks: AckCalls,
        find_topic: Callable[[str], TopicConfig | None],
        find_group: Callable[[str], GroupConfig | None],
        broker_name: str,
        clock: Clock,
        config: Callable[[], V5Config],
    ) -> None:
        self._requests, self._acks, self._config = requests, acks, config
        self._find_topic, self._find_group = find_topic, find_group
        self._broker_name, self._clock = broker_name, clock
        self._failed = Notices(log)

    async def receive(
        self,
        call: GrpcCall,
        context: CallContext,
        client: V5Client,
        request: api.ReceiveMessageRequest,
    ) -> None:
        """Pop messages and stream a status, the messages, and the delivery timestamp.

        Messages that cannot be sent to the client are visible again soon.

        Raises:
            GrpcError: The deadline of the call has passed.
        """
        unsent: dict[str, Handle] = {}

        def release() -> None:
            topic, group = request.message_queue.topic.name, request.group.name
            for handle in unsent.values():
                self._acks.renewals.release(group, topic, handle, client, context)

        try:
            messages = await self._pop(context, client, request, unsent)
            if messages and context.is_late():
                text = "the messages were found after the deadline of the call"
                raise GrpcError(GrpcStatus.DEADLINE_EXCEEDED, text)
        except V5Error as error:
            release()
            self.refuse(call, error)
            return
        except BaseException:
            release()
            raise
        if messages:
            call.on_unsent = release
            call.send(_OK)
        else:
            nothing = status(v2.MESSAGE_NOT_FOUND, "no new message")
            call.send(_encoded(status=nothing))
        for message in messages:
            call.send(_encoded(message=message))
        self._end(call)

    def refuse(self, call: GrpcCall, error: V5Error) -> None:
        """Send the status of an error, and the delivery timestamp."""
        call.send(_encoded(status=status(error.code, error.text)))
        self._end(call)

    def _end(self, call: GrpcCall) -> None:
        last = api.ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._clock.now_ms())
        call.send(last.SerializeToString())

    async def _pop(
        self,
        context: CallContext,
        client: V5Client,
        request: api.ReceiveMessageRequest,
        unsent: dict[str, Handle],
    ) -> list[v2.Message]:
        """Return the messages for the client, and add their handles to `unsent`."""
        poll_ms = _poll_ms(context, client, request)
        topic = checks.topic_of(request.message_queue.topic)
        group = checks.group_of(request.group)
        invisible_ms = _invisible_ms(request)
        if is_retry_topic(topic):
            text = "the messages of a retry topic are received from the topics of its group"
            raise V5Error(v2.ILLEGAL_TOPIC, text)
        target = {"consumerGroup": group, "topic": topic}
        if (found_topic := self._find_topic(topic)) is not None:
            check_readable(found_topic, self._config().permission)
        config = self._find_group(group)
        is_sql = request.filter_expression.type == v2.SQL
        fields = {
            **target,
            "queueId": "-1",  # any queue, also for orderly groups: ReceiveMessageQueueSelector
            "maxMsgNums": str(min(request.batch_size, MESSAGES_MAX)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(self._clock.now_ms()),
            "initMode": INIT_MODE_MAX,
            "expType": "SQL92" if is_sql else "TAG",
            "exp": request.filter_expression.expression or "*",
            "order": "true" if config and config.orderly else "false",
            "attemptId": request.attempt_id,
        }
        response = await self._requests.call(context, client, RequestCode.POP_MESSAGE, fields)
        if response.code != ResponseCode.SUCCESS:
            _check_empty_pop(response)
            return []
        # The queue has only hashes of tags: the pop includes messages of tags with the same hash.
        tags = frozenset(parse_expression(topic, fields["exp"], fields["expType"]).tags)
        attempts_max = config.retry_times_max + 1 if config is not None else 17
        records = list(messages_of(response, topic, self._broker_name))
        unsent |= {text: parse_handle(text, self._broker_name) for _, text in records}
        messages = []
        for record, text in records:
            removal: Removal | None = None
            if tags and record.properties.get("TAGS") not in tags:
                removal = self._acks.acknowledge_handle
            elif record.reconsume_times >= attempts_max:
                removal = self._acks.forward_handle
            if removal is not None:
                await self._remove(removal, context, client, group, topic, unsent.pop(text))
                continue
            if request.auto_renew:
                self._acks.renewals.add(group, topic, unsent[text], client, context)
            message = message_of(record, topic=topic, receipt_handle=text)
            message.system_properties.invisible_duration.FromMilliseconds(invisible_ms)
            messages.append(message)
        return messages

    async def _remove(
        self,
        work: Removal,
        context: CallContext,
        client: V5Client,
        group: str,
        topic: str,
        handle: Handle,
    ) -> None:
        """Remove a popped message that the client does not receive.

        If this fails, the message is popped again after its invisible time.
        """
        try:
            removal_status = await work(context, client, group, topic, handle)
            if removal_status is not None and removal_status.code != v2.OK:
                raise V5Error(removal_status.code, removal_status.message)
        except V5Error as error:
            self._failed(
                "%r: group %s of topic %s keeps a message that it cannot receive: %s",
                client,
                group,
                topic,
                error,
            )


def _poll_ms(context: CallContext, client: V5Client, request: api.ReceiveMessageRequest) -> int:
    """Return the long-polling time of a call, in ms.

    Raises:
        V5Error: The deadline of the call is too early for long polling.
    """
    remaining_ms, poll_ms = context.remaining_ms(), POLL_MS_MAX
    if request.HasField("long_polling_timeout"):
        requested = request.long_polling_timeout
        poll_ms = requested.seconds * 1_000 + requested.nanos // 1_000_000
    elif remaining_ms is not None:
        poll_ms = remaining_ms - _request_timeout_ms(client) // 2
    poll_ms = min(max(poll_ms, POLL_MS_MIN), POLL_MS_MAX)
    if remaining_ms is not None and poll_ms > remaining_ms:
        if remaining_ms < POLL_MS_MIN:
            is_old = not context.version or context.version < NEW_CODE_VERSION
            code = v2.BAD_REQUEST if is_old else v2.ILLEGAL_POLLING_TIME
            text = "The deadline time remaining is not enough for polling: check the network"
            raise V5Error(code, text)
        return remaining_ms
    return poll_ms


def _invisible_ms(request: api.ReceiveMessageRequest) -> int:
    """Return the invisible time of a call, in ms.

    Raises:
        V5Error: The time is too short or too long.
    """
    if request.auto_renew:
        return RENEWED_INVISIBLE_MS
    duration = request.invisible_duration
    invisible_ms = duration.seconds * 1_000 + duration.nanos // 1_000_000
    return checks.check_invisible(invisible_ms, checks.INVISIBLE_MS_MIN)


def _request_timeout_ms(client: V5Client) -> int:
    settings = client.settings
    if settings is None or not settings.HasField("request_timeout"):
        return REQUEST_TIMEOUT_MS
    return int(settings.request_timeout.ToMilliseconds())


def _check_empty_pop(response: Response) -> None:
    """Check that a pop returned no messages because none were available.

    Raises:
        V5Error: The pop was refused.
    """
    if response.code == ResponseCode.POLLING_FULL:
        raise V5Error(v2.TOO_MANY_REQUESTS, "polling full")
    if response.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        raise V5Error(v2.ILLEGAL_FILTER_EXPRESSION, response.remark or "")
    if response.code not in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
        raise V5Error(code_of(response), response.remark or f"response code {response.code}")


def messages_of(response: Response, topic: str, broker_name: str) -> Iterator[tuple[Record, str]]:
    """Yield the records of a pop with their receipt handles.

    In an orderly pop, the reconsume times are the number of earlier pops: the record itself is
    never copied. MQClientAPIImpl.processPopResponse
    """
    fields, data = response.fields or {}, response.body
    assert isinstance(data, bytes)  # the pop processor joins the records
    starts = _start_offsets(fields.get("startOffsetInfo", ""))
    counts = _order_counts(fields.get("orderCountInfo", ""))
    view, position = memoryview(data), 0
    while position < len(data):
        size = int.from_bytes(data[position : position + LENGTH_BYTES], "big")
        record = decode_record(view[position : position + size], 0, check_crc=False)
        position += size
        text = record.properties.get(RECEIPT_PROPERTY)
        if text is None:
            receipt = Receipt(
                start_offset=starts[NORMAL, str(record.queue_id)],
                pop_ms=int(fields["popTime"]),
                invisible_ms=int(fields["invisibleTime"]),
                revive_queue=int(fields["reviveQid"]),
                retry=NORMAL,
                broker_name=broker_name,
                queue_id=record.queue_id,
            )
            text = receipt.text(record.queue_offset)
        record.reconsume_times = max(record.reconsume_times, _order_count(counts, record, text))
        yield record, f"{text} {record.phys_offset}"


def _start_offsets(text: str) -> dict[tuple[str, str], int]:
    """Parse the start offsets of a pop, by retry flag and queue."""
    entries = (entry.split(" ") for entry in text.split(";") if entry)
    return {(flag, queue): int(start) for flag, queue, start in entries}


def _order_counts(text: str) -> dict[str, int]:
    """Parse how often the messages of an orderly pop were popped before. parseOrderCountInfo"""
    entries = (entry.rpartition(" ") for entry in text.split(";") if entry)
    return {key: int(count) for key, _, count in entries}


def _order_count(counts: Mapping[str, int], record: Record, handle: str) -> int:
    """Return how often a message was popped before; 0 if its pop was not orderly."""
    if not counts:
        return 0
    flag = handle.split(" ")[FLAG_PART]
    of_queue = counts.get(f"{flag} {record.queue_id}", 0)
    return counts.get(f"{flag} qo{record.queue_id}%{record.queue_offset}", of_queue)


def _encoded(*, status: v2.Status | None = None, message: v2.Message | None = None) -> bytes:
    return api.ReceiveMessageResponse(status=status, message=message).SerializeToString()  # type: ignore[no-any-return]


_OK: Final = _encoded(status=status(v2.OK))
