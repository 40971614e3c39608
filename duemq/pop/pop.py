"""Pops (200050): messages with one checkpoint per queue. PopMessageProcessor.

    queues of the topic, and of its retry topics --read--> results --checkpoints--> revive log
                                                              |         |
                                                     response <-------+  confirmed

Reading, and putting the checkpoints, are one turn of the event loop: no message is in two pops.
A pop without messages is held on all its queues and reads again when one of them grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from duemq.configuration.config import BrokerConfig
from duemq.filters import FilterError
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.dispatcher import Handler
from duemq.net.retry_topics import retry_flag
from duemq.pop.checkpoints import INVISIBLE_MS_MAX, Entry, PopCheckpoint
from duemq.pop.names import ORDER_QUEUE, REVIVE_QUEUES
from duemq.pop.orderly import Orderly
from duemq.pop.pop_offsets import GroupQueue, PopOffsets
from duemq.pop.pop_queues import PopQueues, PopTarget
from duemq.pop.queue_reader import QueueReader, ReadResult
from duemq.pop.receipts import Receipt, message_offset_info, start_offset_info
from duemq.pop.revive_log import ReviveLog
from duemq.pull.long_polls import ResumeReason
from duemq.registry.filter_compiler import FilterCompiler
from duemq.registry.managers import Identity
from duemq.registry.subscriptions import ExpressionError, Subscription, parse_expression
from duemq_common.clock import Clock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request, Response

if TYPE_CHECKING:
    from message_store.store import MessageStore

MESSAGES_MAX: Final = 32
ATTEMPT_CHARS_MAX: Final = 255
READS_MAX: Final = 8  # per queue and turn, while no message passes the filter


class PopRequest(Struct):
    """Arguments of a pop: the checked PopMessageRequestHeader.

    Attributes:
        count_max: Maximum number of messages.
        invisible_ms: Invisible time of the messages, in ms.
        until_ms: Time until which the pop is held without messages, in ms since the epoch; 0: not.
        init_mode: Offset at which a new group begins: `FROM_FIRST` or `FROM_LAST`.
        attempt_id: Id of an orderly pop that the client may repeat; None: no id.
    """

    target: PopTarget
    count_max: int
    invisible_ms: int
    until_ms: int
    init_mode: int
    subscription: Subscription
    is_orderly: bool = False
    attempt_id: str | None = None


class QueueResult(Struct):
    """Result of one pop in one queue; may have no messages."""

    queue: GroupQueue
    messages: ReadResult


class PopResult(Struct):
    """Result of one pop: messages of one or more queues.

    Attributes:
        pop_ms: Time of the pop, in ms since the epoch.
        revive_queue: Revive queue of the checkpoints.
        results: Results by queue, in the order of reading.
        count: Number of messages in all results.
        rest: Number of messages in the queues after the popped ones.
    """

    pop_ms: int
    revive_queue: int
    results: list[QueueResult] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    order_counts: list[str] = field(default_factory=list)


class PopProcessor:
    """Handler of 200050."""

    def __init__(
        self,
        store: MessageStore,
        queues: PopQueues,
        offsets: PopOffsets,
        revive_log: ReviveLog,
        orderly: Orderly,
        stats: BrokerStats,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        filters: FilterCompiler,
        compiled: Callable[[], bool],
    ) -> None:
        self._store, self._queues, self._offsets = store, queues, offsets
        self._revive_log, self._stats, self._identity = revive_log, stats, identity
        self._orderly, self._clock, self._config = orderly, clock, config
        self._reader, self._filters = QueueReader(store, compiled), filters
        self._pops = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_MESSAGE: self._filters.after_compiling(self.pop)}

    async def pop(self, request: Request) -> Response | None:
        """Respond with messages as soon as one is visible, or without messages at the deadline."""
        return await self.pop_admitted(request, self.admit(request))

    async def pop_admitted(self, request: Request, arguments: PopRequest) -> Response | None:
        """Respond to an admitted request in the same way as `pop`."""
        try:
            popped = await self._take_when_any(request, arguments)
        except BaseException:  # messages that resumed this request may still be in the queues
            self._queues.messages_left(arguments.target)
            raise
        if popped is ResumeReason.DROPPED:
            return None
        if not isinstance(popped, PopResult):
            return self._empty_response(arguments, is_full=popped is None)
        if not arguments.is_orderly:
            await self._revive_log.confirm("the messages were popped")
        return self.popped_response(arguments, popped)

    async def _take_when_any(
        self, request: Request, arguments: PopRequest
    ) -> PopResult | ResumeReason | None:
        """Read messages once one is visible; otherwise return the result of `PopQueues.wait`."""
        while not (popped := self._pop_messages(arguments)).count:
            if popped.rest and arguments.until_ms > self._clock.now_ms():
                await asyncio.sleep(0)  # more messages to filter: other requests run first
                self._queues.check(arguments.target, request)
                continue
            reason = await self._queues.wait(
                request, arguments.target, arguments.subscription, arguments.until_ms, takes=True
            )
            if reason is not ResumeReason.ARRIVED:
                return reason
        return popped

    def admit(self, request: Request) -> PopRequest:
        """Return the arguments of a request, after checking them.

        Raises:
            RequestError: The request is invalid.
        """
        count, invisible_ms = (
            fields.integer(request, "maxMsgNums"),
            fields.long(request, "invisibleTime"),
        )
        until_ms = self._queues.until_ms(request)
        if not 0 < count <= MESSAGES_MAX:
            raise _invalid(f"maxMsgNums is {count}; the valid range is 1 to {MESSAGES_MAX}")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise _invalid(
                f"invisibleTime is {invisible_ms}; the valid range is 0 to {INVISIBLE_MS_MAX} ms"
            )
        target = self._queues.target(request)
        return PopRequest(
            target=target,
            count_max=count,
            invisible_ms=invisible_ms,
            until_ms=until_ms,
            init_mode=fields.integer(request, "initMode"),
            subscription=self._subscription(request, target.topic),
            is_orderly=fields.boolean(request, "order"),
            attempt_id=request.fields.get("attemptId", "")[:ATTEMPT_CHARS_MAX] or None,
        )

    def admit_like(
        self, arguments: PopRequest, queue_id: int, poll_ms: int, born_ms: int
    ) -> PopRequest:
        """Return the arguments of a pop that differs from another pop in queue and times only.

        Args:
            arguments: Arguments of the other pop; its subscription has no filter expression.
        Raises:
            RequestError: The pop is refused.
        """
        until_ms = self._queues.end_of_poll(poll_ms, born_ms)
        target = arguments.target
        if queue_id != target.queue_id:
            target = target._replace(queue_id=queue_id)
        self._queues.check(target)
        return PopRequest(
            target=target,
            count_max=arguments.count_max,
            invisible_ms=arguments.invisible_ms,
            until_ms=until_ms,
            init_mode=arguments.init_mode,
            subscription=arguments.subscription,
            is_orderly=arguments.is_orderly,
            attempt_id=arguments.attempt_id,
        )

    def _subscription(self, request: Request, topic: str) -> Subscription:
        expression, kind = request.fields.get("exp"), request.fields.get("expType")
        try:
            subscription = parse_expression(topic, expression or None, kind)
        except ExpressionError as fault:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {fault}",
            ) from fault
        if subscription.is_tag:
            return subscription
        if not self._config().property_filter_enable:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"The broker does not support consumer to filter message by {subscription.kind}",
            )
        try:
            return replace(
                subscription,
                filter=self._filters.compile(subscription.kind, subscription.expression),
            )
        except FilterError as fault:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(fault)) from fault

    # -- reading --------------------------------------------------------------------------------

    def _pop_messages(self, arguments: PopRequest) -> PopResult:
        """Read messages, put their checkpoints and advance the offsets, in one event loop turn.

        Raises:
            RequestError: The store refused the checkpoints; the pop is undone.
        """
        if arguments.is_orderly:
            self._pops += 1
            popped = self._take_orderly(arguments)
            self._resume_next(arguments, popped)
            return popped
        popped = self.collect(arguments)
        try:
            if entries := self.checkpoints(arguments, popped):
                log_offset = self._revive_log.end
                self._revive_log.put(entries)
                self.stored(popped, log_offset)
        except Exception:
            self.undo(arguments, popped)
            raise
        return popped

    def collect(self, arguments: PopRequest) -> PopResult:
        """Read messages, and advance the offsets so that the next pop begins after them.

        The caller puts their checkpoints, or calls `undo`.
        """
        self._pops += 1
        popped = PopResult(self._clock.now_ms(), self._pops % REVIVE_QUEUES)
        group = arguments.target.group
        for topic, queue_id in self._queues.of(arguments.target, self._pops):
            self._read(arguments, popped, GroupQueue(group, topic, queue_id))
        results = popped.results
        popped.results = []
        for result in results:
            if not result.messages.offsets:
                self._offsets.skip(result.queue, result.messages.end)
        for result in results:
            if result.messages.offsets:
                self._offsets.move(result.queue, result.messages.end)
                popped.results.append(result)
        self._resume_next(arguments, popped)
        return popped

    def _resume_next(self, arguments: PopRequest, popped: PopResult) -> None:
        """Resume the next long poll if a pop leaves messages that it has not examined."""
        if popped.count and popped.rest:
            self._queues.messages_left(arguments.target)

    def checkpoints(self, arguments: PopRequest, popped: PopResult) -> list[Entry]:
        """Return the records that a pop needs in the revive log."""
        queue = popped.revive_queue
        return [(queue, self._checkpoint(arguments, popped, result)) for result in popped.results]

    def stored(self, popped: PopResult, log_offset: int) -> None:
        """Record that the checkpoints of a pop were put after a log offset."""
        ends = [(result.queue, result.messages.end) for result in popped.results]
        self._offsets.put(log_offset, ends)

    def undo(self, arguments: PopRequest, popped: PopResult) -> None:
        """Undo a pop and later pops of its queues: the next pop begins where this one began."""
        for result in popped.results:
            self._offsets.move_back(result.queue, result.messages.start, result.messages.end)
        self._queues.messages_left(arguments.target)

    def popped_response(self, arguments: PopRequest, popped: PopResult) -> Response:
        """Return the response with the messages of a pop whose checkpoints are confirmed."""
        body, target = self._bodies(arguments, popped), arguments.target
        if not arguments.is_orderly:
            self._offsets.settle()
        self._stats.messages_got(target.topic, target.group, count=popped.count, body=body)
        return self._response(0, "FOUND", arguments, popped, body)

    def _take_orderly(self, arguments: PopRequest) -> PopResult:
        """Read messages of queues that are not blocked, and block these; put no checkpoint."""
        popped, target = PopResult(self._clock.now_ms(), ORDER_QUEUE), arguments.target
        table = self._orderly.table
        for topic, queue_id in self._queues.of(target, self._pops, is_orderly=True):
            group_queue = GroupQueue(target.group, topic, queue_id)
            if topic != target.topic:
                continue  # messages of orderly pops stay in their queue
            if self._offsets.is_reset(group_queue):
                table.clear(group_queue)
            if table.blocked_until(group_queue, arguments.attempt_id, popped.pop_ms) is None:
                self._read(arguments, popped, group_queue)
        for result in popped.results:  # a refused offset refuses the pop: no queue is blocked yet
            if result.messages.offsets:
                self._offsets.stay(result.queue, result.messages.start)
        for result in popped.results:
            if not result.messages.offsets:
                self._offsets.skip(result.queue, result.messages.end)
                continue
            counts = table.record_pop(
                result.queue,
                result.messages.offsets,
                pop_ms=popped.pop_ms,
                invisible_ms=arguments.invisible_ms,
                attempt_id=arguments.attempt_id,
            )
            popped.order_counts.append(counts)
            self._orderly.changed(result.queue)
        popped.results = [result for result in popped.results if result.messages.offsets]
        return popped

    def _read(self, arguments: PopRequest, popped: PopResult, queue: GroupQueue) -> None:
        """Add the next messages of a queue to a pop, or their number to its rest."""
        start = self._offsets.following(queue, arguments.init_mode)
        left = arguments.count_max - popped.count
        low, high = self._store.readable_bounds(queue.topic, queue.queue_id)
        if left <= 0:
            popped.rest += max(high - max(start, low), 0)
            return
        for _ in range(READS_MAX):
            result = self._reader.read(
                queue.topic, queue.queue_id, start, left, arguments.subscription
            )
            if result is None:
                start = max(start, high)
                break
            popped.results.append(QueueResult(queue, result))
            popped.count += len(result.offsets)
            start = result.end
            if result.offsets:
                break
        popped.rest += max(high - max(start, low), 0)

    def _checkpoint(
        self, arguments: PopRequest, popped: PopResult, result: QueueResult
    ) -> PopCheckpoint:
        return PopCheckpoint(
            topic=result.queue.topic,
            group=arguments.target.group,
            queue_id=result.queue.queue_id,
            start_offset=result.messages.start,
            pop_ms=popped.pop_ms,
            invisible_ms=arguments.invisible_ms,
            offsets=result.messages.offsets,
            broker_name=self._identity.broker_name,
            log_offset=result.messages.log_offset,
        )

    # -- responses --------------------------------------------------------------------------------

    def _bodies(self, arguments: PopRequest, popped: PopResult) -> bytes:
        parts = []
        for result in popped.results:
            if result.queue.topic == arguments.target.topic:
                parts.append(self._reader.records(result.messages))
            else:
                receipt = self._receipt(arguments, popped, result)
                parts.append(
                    self._reader.retry_records(result.messages, arguments.target.topic, receipt)
                )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _receipt(self, arguments: PopRequest, popped: PopResult, result: QueueResult) -> Receipt:
        return Receipt(
            start_offset=result.messages.start,
            pop_ms=popped.pop_ms,
            invisible_ms=arguments.invisible_ms,
            revive_queue=popped.revive_queue,
            retry=retry_flag(result.queue.topic),
            broker_name=self._identity.broker_name,
            queue_id=result.queue.queue_id,
        )

    def _empty_response(self, arguments: PopRequest, *, is_full: bool) -> Response:
        self._stats.got_nothing()
        code = ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT
        popped = PopResult(self._clock.now_ms(), self._pops % REVIVE_QUEUES)
        return self._response(code, "NO_MESSAGE_IN_QUEUE", arguments, popped, b"")

    def _response(
        self, code: int, status: str, arguments: PopRequest, popped: PopResult, body: bytes
    ) -> Response:
        places = [(p.queue.topic, p.queue.queue_id, p) for p in popped.results]
        return Response(
            code,
            status,
            {
                "popTime": str(popped.pop_ms),
                "invisibleTime": str(arguments.invisible_ms),
                "reviveQid": str(popped.revive_queue),
                "restNum": str(popped.rest),
                "startOffsetInfo": start_offset_info(
                    (t, q, p.messages.start) for t, q, p in places
                ),
                "msgOffsetInfo": message_offset_info(
                    (t, q, p.messages.offsets) for t, q, p in places
                ),
                **(
                    {"orderCountInfo": ";".join(popped.order_counts)}
                    if arguments.is_orderly
                    else {}
                ),
            },
            body,
        )


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
