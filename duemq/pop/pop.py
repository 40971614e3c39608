"""Pops (200050): messages with a checkpoint for each queue they are from. PopMessageProcessor.

    queues of the topic, and of its retry topics --read--> pieces --checkpoints--> revive log
                                                              |         |
                                                       answer <---------+  confirmed

Reading, and putting the checkpoints, are one turn of the event loop: no message is in two pops.
A pop without messages is held on all its queues and reads again when one of them grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from delivery.plugin import Request, Response
from duemq.configuration.config import BrokerConfig
from duemq.metrics.put_get_stats import BrokerStats
from duemq.net import fields
from duemq.net.codes import RequestCode, ResponseCode
from duemq.net.dispatcher import Handler
from duemq.pop.checkpoints import Checkpoint
from duemq.pop.names import REVIVE_QUEUES, retry_flag, retry_topic, retry_topics
from duemq.pop.pop_offsets import Place, PopOffsets
from duemq.pop.queue_reader import QueueReader
from duemq.pop.receipts import Receipt, message_offset_info, start_offset_info
from duemq.pop.revive_log import ReviveLog
from duemq.ports import PERM_READ, Groups, Identity, Topics, TopicView
from duemq.pull.held_pulls import HeldPulls, Wake
from duemq.registry.internal_topics import Access, client_access
from duemq.registry.subscriptions import ExpressionError, Subscription, parse_expression
from duemq.registry.topics import check_name
from message_store.clock import Clock
from message_store.errors import RequestError
from message_store.layout import Rows

if TYPE_CHECKING:
    from message_store.store import MessageStore

MESSAGES_MAX: Final = 32
LATE_MS: Final = 500  # a pop that is this late is not served: PopMessageRequestHeader
READS_MAX: Final = 8  # of one queue in one turn, while nothing passes the filter
RETRY_EVERY: Final = 5  # popFromRetryProbability=20: each fifth pop reads the retry topics first


@dataclass(slots=True)
class PopRequest:
    """Arguments of a pop; PopMessageRequestHeader."""

    group: str
    topic: str
    queue_id: int
    count_max: int
    invisible_ms: int
    until_ms: int
    init_mode: int
    subscription: Subscription


@dataclass(slots=True)
class Piece:
    """Messages of one queue in a pop.

    Attributes:
        start, end: Queue offsets before and after what was read.
        units: (n,) layout.UNIT of its messages; n may be 0.
        offsets: Their queue offsets.
    """

    place: Place
    start: int
    end: int
    units: Rows
    offsets: tuple[int, ...]


@dataclass(slots=True)
class Popped:
    """All pieces of one pop."""

    pop_ms: int
    revive_queue: int
    pieces: list[Piece] = field(default_factory=list)
    rest: int = 0

    @property
    def count(self) -> int:
        return sum(len(piece.offsets) for piece in self.pieces)


class PopProcessor:
    """Answers 200050.

    Args:
        serves: Returns why no pop is served here; empty: they are.
        held: Held pulls; its `on_append` must be a dispatcher of the store.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: PopOffsets,
        revive_log: ReviveLog,
        held: HeldPulls,
        stats: BrokerStats,
        identity: Identity,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        serves: Callable[[], str],
        access_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._offsets, self._revive_log = offsets, revive_log
        self._held, self._stats, self._identity = held, stats, identity
        self._clock, self._config, self._serves = clock, config, serves
        self._access_version = access_version
        self._reader = QueueReader(store)
        self._pops = 0

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.POP_MESSAGE: self.pop}

    async def pop(self, request: Request) -> Response | None:
        """Respond with messages, at once or when there are some, or at the deadline."""
        wanted = self._admit(request)
        popped = self._take(wanted)
        if not popped.count:
            found = await self._wait(request, wanted, popped)
            if not isinstance(found, Popped):
                return found
            popped = found
        body = self._bodies(wanted, popped)
        await self._revive_log.confirm("the messages were popped")
        for piece in popped.pieces:
            self._offsets.commit(piece.place, piece.end)
        self._stats.messages_got(wanted.topic, wanted.group, count=popped.count, size=len(body))
        return self._answer(0, "FOUND", wanted, popped, body)

    async def _wait(
        self, request: Request, wanted: PopRequest, popped: Popped
    ) -> Popped | Response | None:
        """Return the messages that arrive in time, or the answer without any."""
        version = self._access_version()
        while True:
            left_ms = wanted.until_ms - self._clock.now_ms()
            if popped.rest and left_ms > 0:  # there is more to filter: others run before it
                await asyncio.sleep(0)
                popped = self._take(wanted)
                if popped.count:
                    return popped
                continue
            if left_ms <= 0:
                return self._nothing(ResponseCode.POLLING_TIMEOUT, wanted)
            slots = self._slots(wanted)
            held = self._held.hold(
                slots[0], wanted.subscription, request.peer, left_ms, also=slots[1:]
            )
            if held is None:
                return self._nothing(ResponseCode.POLLING_FULL, wanted)
            if any(self._unconfirmed(*queue) for queue in self._queues(wanted)):
                self._held.wake_when_confirmed([held])
            try:
                why = await held.woken
            finally:
                self._held.release(held)
            if why is Wake.DROPPED:
                return None
            if why is not Wake.ARRIVED or version != self._access_version():
                return self._nothing(ResponseCode.POLLING_TIMEOUT, wanted)
            popped = self._take(wanted)
            if popped.count:
                return popped

    def _unconfirmed(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has messages that consumers may not read yet."""
        _, readable = self._store.readable_bounds(topic, queue_id)
        return readable < self._store.queue_bounds(topic, queue_id)[1]

    def _slots(self, wanted: PopRequest) -> list[int]:
        """Return the slots of the queues that a pop reads, and of retry topics yet to come."""
        table = self._store.topics
        queues = [(retry_topic(wanted.topic, wanted.group), 0), *self._queues(wanted)]
        return [table.slot(table.add(topic), queue, create=True) for topic, queue in queues]

    # -- checks, in Apache's order --------------------------------------------------------------

    def _admit(self, request: Request) -> PopRequest:
        group, topic = fields.text(request, "consumerGroup"), fields.text(request, "topic")
        queue_id, count = fields.integer(request, "queueId"), fields.integer(request, "maxMsgNums")
        invisible_ms = fields.long(request, "invisibleTime")
        poll_ms, now_ms = fields.long(request, "pollTime"), self._clock.now_ms()
        born_ms = fields.long(request, "bornTime", 0) or now_ms
        if why := self._serves():
            raise RequestError(ResponseCode.NO_PERMISSION, why)
        if now_ms - born_ms - poll_ms > LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT,
                f"the pop of group {group} arrived {now_ms - born_ms} ms after it was sent; it "
                f"polls for {poll_ms} ms",
            )
        if not self._config().permission & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker has no permission to read")
        if not 0 < count <= MESSAGES_MAX:
            raise _invalid(f"maxMsgNums is {count}; pops of 1 to {MESSAGES_MAX} are possible")
        if invisible_ms < 0:
            raise _invalid(f"invisibleTime is {invisible_ms}; it cannot be negative")
        if fields.boolean(request, "order"):
            raise RequestError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "orderly pops are not served yet"
            )
        self._check_topic(topic, queue_id)
        self._check_group(group, topic)
        return PopRequest(
            group=group,
            topic=topic,
            queue_id=queue_id,
            count_max=count,
            invisible_ms=invisible_ms,
            until_ms=min(born_ms, now_ms) + poll_ms if poll_ms > 0 else 0,
            init_mode=fields.integer(request, "initMode"),
            subscription=self._subscription(request, topic),
        )

    def _check_topic(self, name: str, queue_id: int) -> None:
        topic = self._topics.find(name)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if not topic.perm & PERM_READ or not client_access(name) & Access.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden"
            )
        if queue_id >= topic.read_queues:
            raise _invalid(
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]"
            )

    def _check_group(self, name: str, topic: str) -> None:
        check_name(retry_topic(topic, name))
        group = self._groups.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}"
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
        if not found.is_tag and not self._config().property_filter_enable:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"The broker does not support consumer to filter message by {found.kind}",
            )
        return found

    # -- reading --------------------------------------------------------------------------------

    def _queues(self, wanted: PopRequest) -> Iterator[tuple[str, int]]:
        """Yield the queues of a pop in turn: each pop begins with another one."""
        self_first = self._pops % RETRY_EVERY != 0
        normal = self._topics.find(wanted.topic)
        retries = self._retry_queues(wanted)
        if not self_first:
            yield from retries
        if wanted.queue_id >= 0:
            yield wanted.topic, wanted.queue_id
        elif normal is not None:
            yield from _in_turn(normal, self._pops)
        if self_first:
            yield from retries

    def _retry_queues(self, wanted: PopRequest) -> list[tuple[str, int]]:
        """Return the queues of the retry topics that exist; their flags in handles differ."""
        found: dict[str, TopicView] = {}
        for name in retry_topics(wanted.topic, wanted.group):
            topic = self._topics.find(name)
            if topic is not None:
                found.setdefault(retry_flag(name), topic)
        return [queue for topic in found.values() for queue in _in_turn(topic, 0)]

    def _take(self, wanted: PopRequest) -> Popped:
        """Take messages: read, put their checkpoints, and move on, in one turn of the loop.

        Raises:
            RequestError: The checkpoints were refused; nothing was taken.
        """
        self._pops += 1
        popped = Popped(self._clock.now_ms(), self._pops % REVIVE_QUEUES)
        for topic, queue_id in self._queues(wanted):
            self._read(wanted, popped, Place(wanted.group, topic, queue_id))
        given = [piece for piece in popped.pieces if piece.offsets]
        if given:
            queue = popped.revive_queue
            self._revive_log.put([(queue, self._checkpoint(wanted, popped, p)) for p in given])
        for piece in popped.pieces:
            move = self._offsets.move if piece.offsets else self._offsets.skip
            move(piece.place, piece.end)
        popped.pieces = given
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
            popped.pieces.append(Piece(place, found.start, found.end, found.units, found.offsets))
            start = found.end
            if found.offsets:
                break
        popped.rest += max(high - max(start, low), 0)

    def _checkpoint(self, wanted: PopRequest, popped: Popped, piece: Piece) -> Checkpoint:
        return Checkpoint(
            topic=piece.place.topic,
            group=wanted.group,
            queue_id=piece.place.queue_id,
            start_offset=piece.start,
            pop_ms=popped.pop_ms,
            invisible_ms=wanted.invisible_ms,
            offsets=piece.offsets,
            broker_name=self._identity.broker_name,
        )

    # -- answers --------------------------------------------------------------------------------

    def _bodies(self, wanted: PopRequest, popped: Popped) -> bytes:
        parts = []
        for piece in popped.pieces:
            topic, queue_id = piece.place.topic, piece.place.queue_id
            receipt = Receipt(
                start_offset=piece.start,
                pop_ms=popped.pop_ms,
                invisible_ms=wanted.invisible_ms,
                revive_queue=popped.revive_queue,
                retry=retry_flag(topic),
                broker_name=self._identity.broker_name,
                queue_id=queue_id,
            )
            if topic == wanted.topic:
                parts.append(self._reader.records(topic, queue_id, piece.start, piece.units))
            else:
                parts.append(self._reader.retry_records(piece.units, wanted.topic, receipt))
        return b"".join(parts)

    def _nothing(self, code: ResponseCode, wanted: PopRequest) -> Response:
        self._stats.got_nothing()
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
                "startOffsetInfo": start_offset_info((t, q, p.start) for t, q, p in places),
                "msgOffsetInfo": message_offset_info((t, q, p.offsets) for t, q, p in places),
            },
            body,
        )


def _in_turn(topic: TopicView, first: int) -> Sequence[tuple[str, int]]:
    """Return the queues of a topic, from one of them on."""
    count = topic.read_queues
    return [(topic.name, (first + n) % count) for n in range(count)]


def _invalid(text: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, text)
