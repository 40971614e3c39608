"""Queues of a POP request: its checks, which queues it reads, and its wait for messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delivery.plugin import Request
from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.net.codes import ResponseCode
from duemq.pop.names import retry_flag, retry_topic, retry_topics
from duemq.ports import PERM_READ, Groups, Topics, TopicView
from duemq.pull.held_pulls import HeldPulls, Wake
from duemq.registry.internal_topics import Access, client_access
from duemq.registry.subscriptions import Subscription
from duemq.registry.topics import check_name
from message_store.clock import Clock
from message_store.errors import RequestError

if TYPE_CHECKING:
    from message_store.store import MessageStore

LATE_MS: Final = 500  # a request that is this late is not served: PopMessageRequestHeader
RETRY_EVERY: Final = 5  # popFromRetryProbability=20: each fifth pop reads the retry topics first


@dataclass(frozen=True, slots=True)
class Target:
    """What a POP request reads: one queue of a topic for a group, or all of them (-1)."""

    group: str
    topic: str
    queue_id: int


class PopQueues:
    """Queues of all POP requests of one broker.

    Args:
        serves: Returns why no POP request is served here; empty: they are.
        held: Held pulls; its `on_append` must be a dispatcher of the store.
    Attributes:
        polling: Held requests by their target.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        held: HeldPulls,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        serves: Callable[[], str],
        access_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._held, self._clock, self._config = held, clock, config
        self._serves, self._access_version = serves, access_version
        self.polling: Counter[Target] = Counter()

    # -- checks, in Apache's order --------------------------------------------------------------

    def target(self, request: Request) -> Target:
        """Return what a request reads.

        Raises:
            RequestError: It may not, or there is no such queue or group.
        """
        found = Target(
            fields.text(request, "consumerGroup"),
            fields.text(request, "topic"),
            fields.integer(request, "queueId"),
        )
        if why := self._serves():
            raise RequestError(ResponseCode.NO_PERMISSION, why)
        if not self._config().permission & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker has no permission to read")
        self._check_topic(found.topic, found.queue_id)
        self._check_group(found.group, found.topic)
        return found

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
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{name}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}]",
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

    def until_ms(self, request: Request) -> int:
        """Return the time until which a request polls.

        Raises:
            RequestError: With POLLING_TIMEOUT if its time was over when it arrived.
        """
        poll_ms, now_ms = fields.long(request, "pollTime"), self._clock.now_ms()
        born_ms = fields.long(request, "bornTime", 0) or now_ms
        if now_ms - born_ms - poll_ms > LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT,
                f"the request arrived {now_ms - born_ms} ms after it was sent; it polls for "
                f"{poll_ms} ms",
            )
        return min(born_ms, now_ms) + poll_ms if poll_ms > 0 else 0

    # -- queues ---------------------------------------------------------------------------------

    def of(self, target: Target, turn: int) -> Iterator[tuple[str, int]]:
        """Yield the queues that a request reads; each turn begins with another one."""
        retries_first = turn % RETRY_EVERY == 0
        normal = self._topics.find(target.topic)
        retries = self._retry_queues(target)
        if retries_first:
            yield from retries
        if target.queue_id >= 0:
            yield target.topic, target.queue_id
        elif normal is not None:
            yield from _in_turn(normal, turn)
        if not retries_first:
            yield from retries

    def _retry_queues(self, target: Target) -> list[tuple[str, int]]:
        """Return the queues of the retry topics that exist; their flags in handles differ."""
        found: dict[str, TopicView] = {}
        for name in retry_topics(target.topic, target.group):
            topic = self._topics.find(name)
            if topic is not None:
                found.setdefault(retry_flag(name), topic)
        return [queue for topic in found.values() for queue in _in_turn(topic, 0)]

    # -- held requests --------------------------------------------------------------------------

    async def wait(
        self, request: Request, target: Target, subscription: Subscription, until_ms: int
    ) -> Wake | None:
        """Return when one of the queues grows, or why not; None: no request may wait any more.

        TIMED_OUT also means that the accounts have changed: the next request is checked again.
        """
        left_ms = until_ms - self._clock.now_ms()
        if left_ms <= 0:
            return Wake.TIMED_OUT
        version = self._access_version()
        first, *also = self._slots(target)
        held = self._held.hold(first, subscription, request.peer, left_ms, also=also)
        if held is None:
            return None
        if any(self._is_unconfirmed(*queue) for queue in self.of(target, 0)):
            self._held.wake_when_confirmed([held])
        self.polling[target] += 1
        try:
            why = await held.woken
        finally:
            self._held.release(held)
            self.polling[target] -= 1
            if not self.polling[target]:
                del self.polling[target]
        if request.peer is not None and request.peer.closed:
            return Wake.DROPPED
        return Wake.TIMED_OUT if version != self._access_version() else why

    def _is_unconfirmed(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has messages that consumers may not read yet."""
        _, readable = self._store.readable_bounds(topic, queue_id)
        return readable < self._store.queue_bounds(topic, queue_id)[1]

    def _slots(self, target: Target) -> list[int]:
        """Return the slots of the queues that a request reads, and of a retry topic yet to come."""
        table = self._store.topics
        queues = [(retry_topic(target.topic, target.group), 0), *self.of(target, 0)]
        return [table.slot(table.add(topic), queue, create=True) for topic, queue in queues]


def _in_turn(topic: TopicView, first: int) -> Sequence[tuple[str, int]]:
    """Return the queues of a topic, from one of them on."""
    count = topic.read_queues
    return [(topic.name, (first + n) % count) for n in range(count)]
