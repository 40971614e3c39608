"""Consumer lag: distance of online groups from the end of their queues.

    committed <= pulled <= end of queue
        |-- in flight --|-- ready --|
        |----------- lag -----------|

The age of a lag is that of the first of the first messages of its queues, which is the one with the
lowest log offset: one record is read for each lag, not one for each queue. To find it, a unit of
each queue with a lag is read. A broker with lags in thousands of queues cannot read all of them
within the time of a scrape: the lags after that have no age.

Source: ConsumerLagCalculator
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from delayed_delivery.steps import Steps
from duemq.net.retry_topics import retry_topics
from duemq.pop.pop_offsets import GroupQueue
from duemq_common.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from duemq.broker.components import BrokerComponents
    from message_store.store import MessageStore

CONSUME_POP: Final = "CONSUME_POP"
QUEUES_PER_STEP: Final = 256
READS_PER_STEP: Final = 8
QUEUES_MAX: Final = 100_000
SYSTEM_GROUP_PREFIX: Final = "cid_rmq_sys_"
Position = tuple[str, int, int]
"""Topic, queue id and queue offset of a message."""


class GroupLag(Struct):
    """Lag of one group in one topic, over all of its queues.

    Attributes:
        system: Whether the group or the topic is internal.
        retry: Whether this is the lag in the topic's pop retry topics.
        lag_messages: Messages between the committed offset and the end.
        has_ages: Whether the ages are known.
        lag_latency: Age of the first uncommitted message in ms; 0 if there is none.
        inflight_messages: Messages between the committed and the pulled offset; for a group that
            pops, messages that are invisible and not acknowledged.
        queueing_latency: Age of the first message that is not pulled in ms; 0 if there is none.
        ready_messages: Messages between the pulled offset and the end.
        uncommitted, unpulled: First message of each queue that is not committed, and not pulled.
    """

    group: str
    topic: str
    system: bool
    retry: bool = False
    has_ages: bool = True
    lag_messages: int = 0
    lag_latency: int = 0
    inflight_messages: int = 0
    queueing_latency: int = 0
    ready_messages: int = 0
    uncommitted: list[Position] = field(default_factory=list)
    unpulled: list[Position] = field(default_factory=list)

    def set_ages(self, store: MessageStore, now_ms: int) -> Steps[None]:
        """Set the ages of the first messages; a step reads READS_PER_STEP units."""
        offsets: dict[Position, int] = {}
        for position in {*self.uncommitted, *self.unpulled}:
            offsets[position] = store.log_offset_at(*position)
            if len(offsets) % READS_PER_STEP == 0:
                yield
        first, first_unpulled = (
            min((offsets[each] for each in positions if offsets[each] >= 0), default=-1)
            for positions in (self.uncommitted, self.unpulled)
        )
        self.lag_latency = _age_ms(store, first, now_ms)
        self.queueing_latency = _age_ms(store, first_unpulled, now_ms)


def group_lags(
    parts: BrokerComponents, now_ms: int, has_time: Callable[[], bool]
) -> Steps[list[GroupLag]]:
    """Return the lag of every online group in each topic it subscribes to or has popped.

    At most QUEUES_MAX queues are included.

    Args:
        has_time: Whether there is time to read the ages of another lag.
    """
    lags = yield from _counted(parts)
    for lag in lags:
        if not (lag.uncommitted or lag.unpulled):
            continue
        lag.has_ages = has_time()
        if lag.has_ages:
            yield from lag.set_ages(parts.store, now_ms)
            yield
    return lags


def _counted(parts: BrokerComponents) -> Steps[list[GroupLag]]:
    """Return the lags without their ages; a step looks at QUEUES_PER_STEP queues."""
    lags: list[GroupLag] = []
    queues = step_queues = 0
    for group, name, pops in _consumed(parts):
        topic = parts.topics.find(name)
        if topic is None or name.startswith(RETRY_PREFIX) or not topic.perm & 6:
            continue
        system = parts.topics.is_system(name)
        system |= is_system_group(group)
        lag = GroupLag(group, name, system)
        retry = GroupLag(group, name, system, retry=True)
        read = [(lag, name)] + [(retry, each) for each in retry_topics(name, group) if pops]
        for row, queue_topic in read:
            of_queues = parts.topics.find(queue_topic)
            count = of_queues.write_queues if of_queues is not None else 0
            if queues + count > QUEUES_MAX:
                return lags
            for first in range(0, count, QUEUES_PER_STEP):
                part = range(first, min(first + QUEUES_PER_STEP, count))
                (_add_popped if pops else _add_queues)(parts, row, queue_topic, part)
                queues += len(part)
                step_queues += len(part)
                if step_queues >= QUEUES_PER_STEP:
                    step_queues = 0
                    yield
        lags += [lag, retry] if pops else [lag]
    return lags


def is_system_group(name: str) -> bool:
    """Return whether a consumer group is internal."""
    return name.lower().startswith(SYSTEM_GROUP_PREFIX)


def _consumed(parts: BrokerComponents) -> Iterator[tuple[str, str, bool]]:
    """Yield group, topic, and whether the group pops the topic."""
    pairs = dict.fromkeys(parts.pop.figures.pairs()) if parts.pop is not None else {}
    for group in list(parts.clients.consumer_groups()):
        for topic in list(group.subscriptions):
            pops = (group.name, topic) in pairs or group.consume_type == CONSUME_POP
            pairs.pop((group.name, topic), None)
            yield group.name, topic, pops
    for name, topic in pairs:  # without a heartbeat
        if parts.groups.find(name) is not None:
            yield name, topic, True


def _add_queues(parts: BrokerComponents, lag: GroupLag, topic: str, queue_ids: range) -> None:
    """Add queues of a topic to the lag of a group that pulls.

    A group without a committed offset has no lag: it starts at the end. Source:
    ConsumerLagCalculator.getConsumerLagStats, getInFlightMsgStats, getAvailableMsgCount
    """
    all_committed, all_pulled = parts.offsets.of_pair(lag.group, topic)
    bounds = parts.store.readable_bounds
    for queue_id in queue_ids:
        end = bounds(topic, queue_id)[1]
        committed, pulled = all_committed.get(queue_id), all_pulled.get(queue_id)
        start = end if committed is None else committed
        next_pull = end if pulled is None else pulled
        if start < end or next_pull < end:  # most of a scrape's ten thousands of queues have no lag
            add_lag(lag, (topic, queue_id), start, next_pull, end)
            lag.lag_messages += max(end - start, 0)
        if committed is not None and pulled is not None and pulled > start:
            lag.inflight_messages += pulled - start


def _add_popped(parts: BrokerComponents, lag: GroupLag, topic: str, queue_ids: range) -> None:
    """Add queues of a topic to the lag of a group that pops.

    Source: ConsumerLagCalculator, `isPop`
    """
    assert parts.pop is not None
    for queue_id in queue_ids:
        queue = GroupQueue(lag.group, topic, queue_id)
        end = parts.store.readable_bounds(topic, queue_id)[1]
        popped = parts.pop.offsets.popped(queue)
        following = end if popped is None else popped
        in_flight = parts.pop.figures.in_flight(lag.group, topic, queue_id)
        add_lag(lag, (topic, queue_id), following - in_flight, following, end)
        lag.lag_messages += max(end - following, 0) + in_flight
        lag.inflight_messages += in_flight


def add_lag(lag: GroupLag, queue: tuple[str, int], start: int, pulled: int, end: int) -> None:
    """Add a queue's ready messages, and its first uncommitted and its first unpulled message.

    Args:
        queue: Topic and queue id.
        start, pulled, end: Queue offsets.
    """
    lag.ready_messages += max(end - pulled, 0)
    if start < end:
        lag.uncommitted.append((*queue, start))
    if pulled < end:
        lag.unpulled.append((*queue, pulled))


def _age_ms(store: MessageStore, log_offset: int, now_ms: int) -> int:
    store_ms = store.store_ms(log_offset) if log_offset >= 0 else -1
    return max(now_ms - store_ms, 0) if store_ms >= 0 else 0
