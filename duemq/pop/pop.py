"""Pops (200050): messages with a checkpoint for each queue they are from. PopMessageProcessor.

    queues of the topic, and of its retry topics --read--> pieces --checkpoints--> revive log
                                                              |         |
                                                       answer <---------+  confirmed

Reading, and putting the checkpoints, are one turn of the event loop: no message is in two pops.
A pop without messages is held on all its queues and reads again when one of them grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from delivery.plugin import Request, Response
from duemq.configuration.config import BrokerConfig
from duemq.filters import Expression, FilterError
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.dispatcher import Handler
from duemq.pop.checkpoints import INVISIBLE_MS_MAX, Checkpoint
from duemq.pop.names import ORDER_QUEUE, REVIVE_QUEUES, retry_flag
from duemq.pop.orderly import Orderly
from duemq.pop.pop_offsets import Place, PopOffsets
from duemq.pop.pop_queues import PopQueues, Target
from duemq.pop.queue_reader import Found, QueueReader
from duemq.pop.receipts import Receipt, message_offset_info, start_offset_info
from duemq.pop.revive_log import Entry, ReviveLog
from duemq.ports import Identity
from duemq.pull.held_pulls import Wake
from duemq.registry.subscriptions import ExpressionError, Subscription, parse_expression
from message_store.clock import Clock
from message_store.errors import RequestError

if TYPE_CHECKING:
    from message_store.store import MessageStore

MESSAGES_MAX: Final = 32
ATTEMPT_CHARS_MAX: Final = 255
READS_MAX: Final = 8  # of one queue in one turn, while nothing passes the filter


@dataclass(slots=True)
class PopRequest:
    """Arguments of a pop; PopMessageRequestHeader."""

    target: Target
    count_max: int
    invisible_ms: int
    until_ms: int
    init_mode: int
    subscription: Subscription
    is_orderly: bool = False
    attempt_id: str | None = None


@dataclass(slots=True)
class Piece:
    """Messages of one queue in a pop; there may be none."""

    place: Place
    found: Found


@dataclass(slots=True)
class Popped:
    """All pieces of one pop."""

    pop_ms: int
    revive_queue: int
    pieces: list[Piece] = field(default_factory=list)
    rest: int = 0
    order_counts: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(len(piece.found.offsets) for piece in self.pieces)


class PopProcessor:
    """Answers 200050."""

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
        compile_filter: Callable[[str, str], Expression],
        compiled: Callable[[], bool],
    ) -> None:
        self._store, self._queues, self._offsets = store, queues, offsets
        self._revive_log, self._stats, self._identity = revive_log, stats, identity
        self._orderly, self._clock, self._config = orderly, clock, config
        self._reader, self._compile = QueueReader(store, compiled), compile_filter
        self._pops = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_MESSAGE: self.pop}

    async def pop(self, request: Request) -> Response | None:
        """Respond with messages, at once or when there are some, or at the deadline."""
        wanted = self.admit(request)
        popped = self._take(wanted)
        while not popped.count:
            if popped.rest and wanted.until_ms > self._clock.now_ms():
                await asyncio.sleep(0)  # there is more to filter: others run before it
            else:
                why = await self._queues.wait(
                    request, wanted.target, wanted.subscription, wanted.until_ms
                )
                if why is Wake.DROPPED:
                    return None
                if why is not Wake.ARRIVED:
                    return self._nothing(wanted, is_full=why is None)
            popped = self._take(wanted)
        if not wanted.is_orderly:
            await self._revive_log.confirm("the messages were popped")
        return self.found(wanted, popped)

    def admit(self, request: Request) -> PopRequest:
        """Return what a request asks for.

        Raises:
            RequestError: It is refused.
        """
        count, invisible_ms = (
            fields.integer(request, "maxMsgNums"),
            fields.long(request, "invisibleTime"),
        )
        until_ms = self._queues.until_ms(request)
        if not 0 < count <= MESSAGES_MAX:
            raise _invalid(f"maxMsgNums is {count}; pops of 1 to {MESSAGES_MAX} are possible")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise _invalid(f"invisibleTime is {invisible_ms}; 0 to {INVISIBLE_MS_MAX} is possible")
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

    def _subscription(self, request: Request, topic: str) -> Subscription:
        expression, kind = request.fields.get("exp"), request.fields.get("expType")
        try:
            found = parse_expression(topic, expression or None, kind)
        except ExpressionError as fault:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {fault}",
            ) from fault
        if found.is_tag:
            return found
        if not self._config().property_filter_enable:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"The broker does not support consumer to filter message by {found.kind}",
            )
        try:
            return replace(found, filter=self._compile(found.kind, found.expression))
        except FilterError as fault:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(fault)) from fault

    # -- reading --------------------------------------------------------------------------------

    def _take(self, wanted: PopRequest) -> Popped:
        """Take messages: read, put their checkpoints, and move on, in one turn of the loop.

        Raises:
            RequestError: The checkpoints were refused; nothing was taken.
        """
        if wanted.is_orderly:
            self._pops += 1
            return self._take_orderly(wanted)
        popped = self.collect(wanted)
        try:
            if entries := self.checkpoints(wanted, popped):
                log_offset = self._revive_log.end
                self._revive_log.put(entries)
                self.stored(popped, log_offset)
        except Exception:
            self.give_back(popped)
            raise
        return popped

    def collect(self, wanted: PopRequest) -> Popped:
        """Read messages and move on. Their checkpoints must be put, or they must be given back."""
        self._pops += 1
        popped = Popped(self._clock.now_ms(), self._pops % REVIVE_QUEUES)
        for topic, queue_id in self._queues.of(wanted.target, self._pops):
            self._read(wanted, popped, Place(wanted.target.group, topic, queue_id))
        for piece in popped.pieces:
            if not piece.found.offsets:
                self._offsets.skip(piece.place, piece.found.end)
        popped.pieces = [piece for piece in popped.pieces if piece.found.offsets]
        for piece in popped.pieces:
            self._offsets.move(piece.place, piece.found.end)
        return popped

    def checkpoints(self, wanted: PopRequest, popped: Popped) -> list[Entry]:
        """Return the records that a pop needs in the revive log."""
        queue = popped.revive_queue
        return [(queue, self._checkpoint(wanted, popped, piece)) for piece in popped.pieces]

    def stored(self, popped: Popped, log_offset: int) -> None:
        """Note that the checkpoints of a pop were put after a log offset."""
        ends = [(piece.place, piece.found.end) for piece in popped.pieces]
        self._offsets.put(log_offset, ends)

    def give_back(self, popped: Popped) -> None:
        """Have the next pop begin where this one did; later pops of its queues are undone, too."""
        for piece in popped.pieces:
            self._offsets.move_back(piece.place, piece.found.start, piece.found.end)

    def found(self, wanted: PopRequest, popped: Popped) -> Response:
        """Return the answer with messages whose checkpoints are confirmed."""
        body, target = self._bodies(wanted, popped), wanted.target
        if not wanted.is_orderly:
            self._offsets.settle()
        self._stats.messages_got(target.topic, target.group, count=popped.count, size=len(body))
        return self._answer(0, "FOUND", wanted, popped, body)

    def _take_orderly(self, wanted: PopRequest) -> Popped:
        """Take messages of queues that are not blocked, and block these; no checkpoint is put."""
        popped, target = Popped(self._clock.now_ms(), ORDER_QUEUE), wanted.target
        table = self._orderly.table
        for topic, queue_id in self._queues.of(target, self._pops):
            place = Place(target.group, topic, queue_id)
            if topic != target.topic:
                continue  # messages of orderly pops stay in their queue
            if self._offsets.is_reset(place):
                table.clear(place)
            if table.blocked_until(place, wanted.attempt_id, popped.pop_ms) is None:
                self._read(wanted, popped, place)
        for piece in popped.pieces:
            if not piece.found.offsets:
                self._offsets.skip(piece.place, piece.found.end)
                continue
            counts = table.note_pop(
                piece.place,
                piece.found.offsets,
                pop_ms=popped.pop_ms,
                invisible_ms=wanted.invisible_ms,
                attempt_id=wanted.attempt_id,
            )
            popped.order_counts.append(counts)
            self._offsets.stay(piece.place, piece.found.start)
            self._orderly.changed(piece.place)
        popped.pieces = [piece for piece in popped.pieces if piece.found.offsets]
        return popped

    def _read(self, wanted: PopRequest, popped: Popped, place: Place) -> None:
        """Add the next messages of a queue to a pop, or their number to its rest."""
        start = self._offsets.following(place, wanted.init_mode)
        left = wanted.count_max - popped.count
        low, high = self._store.readable_bounds(place.topic, place.queue_id)
        if left <= 0:
            popped.rest += max(high - max(start, low), 0)
            return
        for _ in range(READS_MAX):
            found = self._reader.read(place.topic, place.queue_id, start, left, wanted.subscription)
            if found is None:
                start = max(start, high)
                break
            popped.pieces.append(Piece(place, found))
            start = found.end
            if found.offsets:
                break
        popped.rest += max(high - max(start, low), 0)

    def _checkpoint(self, wanted: PopRequest, popped: Popped, piece: Piece) -> Checkpoint:
        return Checkpoint(
            topic=piece.place.topic,
            group=wanted.target.group,
            queue_id=piece.place.queue_id,
            start_offset=piece.found.start,
            pop_ms=popped.pop_ms,
            invisible_ms=wanted.invisible_ms,
            offsets=piece.found.offsets,
            broker_name=self._identity.broker_name,
        )

    # -- answers --------------------------------------------------------------------------------

    def _bodies(self, wanted: PopRequest, popped: Popped) -> bytes:
        parts = []
        for piece in popped.pieces:
            topic, queue_id = piece.place.topic, piece.place.queue_id
            receipt = Receipt(
                start_offset=piece.found.start,
                pop_ms=popped.pop_ms,
                invisible_ms=wanted.invisible_ms,
                revive_queue=popped.revive_queue,
                retry=retry_flag(topic),
                broker_name=self._identity.broker_name,
                queue_id=queue_id,
            )
            if topic == wanted.target.topic:
                parts.append(self._reader.records(piece.found))
            else:
                parts.append(self._reader.retry_records(piece.found, wanted.target.topic, receipt))
        return b"".join(parts)

    def _nothing(self, wanted: PopRequest, *, is_full: bool) -> Response:
        self._stats.got_nothing()
        code = ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT
        popped = Popped(self._clock.now_ms(), self._pops % REVIVE_QUEUES)
        return self._answer(code, "NO_MESSAGE_IN_QUEUE", wanted, popped, b"")

    def _answer(
        self, code: int, status: str, wanted: PopRequest, popped: Popped, body: bytes
    ) -> Response:
        places = [(p.place.topic, p.place.queue_id, p) for p in popped.pieces]
        return Response(
            code,
            status,
            {
                "popTime": str(popped.pop_ms),
                "invisibleTime": str(wanted.invisible_ms),
                "reviveQid": str(popped.revive_queue),
                "restNum": str(popped.rest),
                "startOffsetInfo": start_offset_info((t, q, p.found.start) for t, q, p in places),
                "msgOffsetInfo": message_offset_info((t, q, p.found.offsets) for t, q, p in places),
                **({"orderCountInfo": ";".join(popped.order_counts)} if wanted.is_orderly else {}),
            },
            body,
        )


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
