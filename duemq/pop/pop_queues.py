"""Queues of a POP request: checks, the queues that it reads, and the wait for messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from duemq.configuration.config import BrokerConfig
from duemq.net import fields
from duemq.net.retry_topics import retry_flag, retry_topic, retry_topics
from duemq.pull.long_polls import LongPolls, ResumeReason
from duemq.registry.groups import GroupManager
from duemq.registry.internal_topics import FULL_ACCESS, TopicAccess, client_access
from duemq.registry.shared_retries import SharedRetries
from duemq.registry.subscriptions import Subscription
from duemq.registry.topic_config import (
    PRIORITY_TYPE,
    TopicConfig,
    message_type,
    priority_factor,
)
from duemq.registry.topics import TopicManager, check_name
from duemq_common.clock import Clock
from duemq_common.codes import ResponseCode
from duemq_common.errors import RequestError
from duemq_common.request import Request
from duemq_common.topics import PERM_READ

if TYPE_CHECKING:
    from message_store.store import MessageStore

LATE_MS: Final = 500  # a request that is this late is not served: PopMessageRequestHeader
TURNS: Final = 100  # of which `priority.factor` read queues by priority
EARLY_TOPICS_MAX: Final = 65_536  # retry topics that held requests add to the store's topic table
RETRY_EVERY: Final = 5  # popFromRetryProbability=20: each fifth pop reads the retry topics first


class PopTarget(NamedTuple):
    """Queues of a POP request: one queue of a topic for a group, or all of them (-1)."""

    group: str
    topic: str
    queue_id: int


class PopQueues:
    """Queues of all POP requests of one broker.

    Args:
        serves: Returns the reason why POP requests are not served; empty: they are served.
        long_polls: Pops and pulls on hold; its `on_append` must be a dispatcher of the store.
        retries: Check of the permissions for retry topics; None: no accounts.
    Attributes:
        polling: Long polls by their target.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        long_polls: LongPolls,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        serves: Callable[[], str],
        access_version: Callable[[], int] = lambda: 0,
        retries: SharedRetries | None = None,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._long_polls, self._clock, self._config = long_polls, clock, config
        self._serves, self._access_version, self._retries = serves, access_version, retries
        self.polling: Counter[PopTarget] = Counter()
        self._early_topics = 0

    # -- checks, in Apache's order --------------------------------------------------------------

    def target(self, request: Request) -> PopTarget:
        """Return the target of a request, after checking it.

        Raises:
            RequestError: As `check`.
        """
        target = PopTarget(
            fields.text(request, "consumerGroup"),
            fields.text(request, "topic"),
            fields.integer(request, "queueId"),
        )
        self.check(target, request)
        return target

    def check(self, target: PopTarget, request: Request | None = None) -> None:
        """Check whether clients may read a target now.

        Args:
            request: The request; None: there are no accounts.

        Raises:
            RequestError: Reading is not permitted, or the queue or the group does not exist.
        """
        if reason := self._serves():
            raise RequestError(ResponseCode.NO_PERMISSION, reason)
        if not self._config().permission & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker has no permission to read")
        self._check_topic(target.topic, target.queue_id)
        self._check_group(target.group, target.topic)
        if request is not None and self._retries is not None:
            own = target.group, target.topic
            self._retries.check(request, retry_topic(target.topic, target.group), own)

    def _check_topic(self, name: str, queue_id: int) -> None:
        topic = self._topics.find(name)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        access = client_access(name)
        is_readable = access is FULL_ACCESS or TopicAccess.READ in access
        if not topic.perm & PERM_READ or not is_readable:
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
        group = self._groups.find_or_create(name)
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
        """Return the time until which a request polls, in ms since the epoch; 0: no polling.

        Raises:
            RequestError: POLLING_TIMEOUT: the polling time ended before the request arrived.
        """
        poll_ms = fields.long(request, "pollTime")
        return self.end_of_poll(poll_ms, fields.long(request, "bornTime", 0))

    def end_of_poll(self, poll_ms: int, born_ms: int) -> int:
        """Return the time until which a request polls, in ms since the epoch; 0: no polling.

        Args:
            poll_ms: Polling time, in ms.
            born_ms: Birth time of the request, in ms since the epoch; 0: now.
        Raises:
            RequestError: POLLING_TIMEOUT: the polling time ended before the request arrived.
        """
        now_ms = self._clock.now_ms()
        born_ms = born_ms or now_ms
        if now_ms - born_ms - poll_ms > LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT,
                f"the request arrived {now_ms - born_ms} ms after it was sent; it polls for "
                f"{poll_ms} ms",
            )
        return min(born_ms, now_ms) + poll_ms if poll_ms > 0 else 0

    # -- queues ---------------------------------------------------------------------------------

    def of(
        self, target: PopTarget, turn: int, *, is_orderly: bool = False
    ) -> Iterator[tuple[str, int]]:
        """Yield the queues that a request reads.

        Each turn begins with another queue, unless the queues are read by priority: then the retry
        topics are last.
        """
        normal = self._topics.find(target.topic)
        by_priority = not is_orderly and self._is_by_priority(target.group, normal, turn)
        retries_first = turn % RETRY_EVERY == 0 and not by_priority
        retries = self._retry_queues(target)
        if retries_first:
            yield from retries
        if target.queue_id >= 0:
            yield target.topic, target.queue_id
        elif normal is not None:
            yield from self._by_priority(normal) if by_priority else _in_turn(normal, turn)
        if not retries_first:
            yield from retries

    def _is_by_priority(self, group: str, topic: TopicConfig | None, turn: int) -> bool:
        """Return whether a turn of a group reads the queues of a topic by priority.

        Source: PopMessageProcessor, usePriorityMode
        """
        if topic is None or message_type(topic.attributes) != PRIORITY_TYPE:
            return False
        config = self._groups.find_or_create(group)
        return config is not None and turn % TURNS < priority_factor(config.attributes)

    def _by_priority(self, topic: TopicConfig) -> Sequence[tuple[str, int]]:
        """Return the queues of a topic, that of the highest priority first."""
        queues = _in_turn(topic, 0)
        return queues[::-1] if self._config().priority_ascends else queues

    def _retry_queues(self, target: PopTarget) -> list[tuple[str, int]]:
        """Return the queues of the retry topics that exist; their flags in handles differ."""
        topics: dict[str, TopicConfig] = {}
        for name in retry_topics(target.topic, target.group):
            topic = self._topics.find(name)
            if topic is not None:
                topics.setdefault(retry_flag(name), topic)
        return [queue for topic in topics.values() for queue in _in_turn(topic, 0)]

    # -- long polls -----------------------------------------------------------------------------

    async def wait(
        self,
        request: Request,
        target: PopTarget,
        subscription: Subscription,
        until_ms: int,
        *,
        takes: bool,
    ) -> ResumeReason | None:
        """Wait until one of the queues grows; return the reason of the resumption.

        None: no more requests can be held.

        TIMED_OUT also means that the accounts have changed: the next request is checked again. A
        resumed request is checked as a new one is, because permissions may have changed.

        Args:
            takes: Whether the request pops the messages. If so, a message resumes one request of
                its target, and the caller calls `messages_left` if it leaves messages.

        Raises:
            RequestError: As `check`.
        """
        left_ms = until_ms - self._clock.now_ms()
        if left_ms <= 0:
            return ResumeReason.TIMED_OUT
        version, peer = self._access_version(), request.peer
        slots, share = self._slots(target), target if takes else None
        poll = None
        if slots:
            first, *also = slots
            poll = self._long_polls.hold(first, subscription, peer, left_ms, also=also, share=share)
        if poll is None:
            return None
        if any(self._is_unconfirmed(*queue) for queue in self.of(target, 0)):
            self._long_polls.resume_when_confirmed([poll])
        self.polling[target] += 1
        try:
            resumed = reason = await poll.resumed
        finally:
            self._long_polls.release(poll)
            self.polling[target] -= 1
            if not self.polling[target]:
                del self.polling[target]
        if peer is not None and peer.closed:
            reason = ResumeReason.DROPPED
        elif version != self._access_version():
            reason = ResumeReason.TIMED_OUT
        if takes and resumed is ResumeReason.ARRIVED and reason is not resumed:
            self.messages_left(target)
        if reason is ResumeReason.ARRIVED:
            self.check(target, request)
        return reason

    def messages_left(self, target: PopTarget) -> None:
        """Resume the next long poll of a target: messages are left in its queues."""
        self._long_polls.resume_shared(target)

    def resized(self, topic: str) -> None:
        """Resume all long polls of a topic with another number of queues."""
        table = self._store.topics
        index = table.find(topic)
        if index >= 0 and (slot := table.slot(index, 0)) >= 0:
            self._long_polls.resume_queue(slot)

    def _is_unconfirmed(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has messages that consumers may not read yet."""
        _, readable = self._store.readable_bounds(topic, queue_id)
        return readable < self._store.queue_bounds(topic, queue_id)[1]

    def _slots(self, target: PopTarget) -> list[int]:
        """Return the slots of the queues that a request reads.

        The retry topic is included even if it does not exist yet. A client can name any group and
        any topic, and the table keeps what is added: beyond `EARLY_TOPICS_MAX`, the first message
        of a new retry topic does not resume the requests on hold.
        """
        table = self._store.topics
        queues = list(self.of(target, 0))
        retries = retry_topic(target.topic, target.group)
        if table.find(retries) >= 0:
            queues.insert(0, (retries, 0))
        elif self._early_topics < EARLY_TOPICS_MAX:
            self._early_topics += 1
            queues.insert(0, (retries, 0))
        return [table.slot(table.add(topic), queue, create=True) for topic, queue in queues]


def _in_turn(topic: TopicConfig, first: int) -> Sequence[tuple[str, int]]:
    """Return the queues of a topic in turn, beginning with queue `first` modulo their number."""
    count = topic.read_queues
    return [(topic.name, (first + n) % count) for n in range(count)]
