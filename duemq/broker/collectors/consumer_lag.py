"""Consumer lag: distance of online groups from the end of their queues.

    committed <= pulled <= end of queue
        |-- in flight --|-- ready --|
        |----------- lag -----------|

ConsumerLagCalculator
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from duemq.net.retry_topics import retry_topics
from duemq.pop.pop_offsets import GroupQueue
from duemq.pull.queue_times import store_ms_at

if TYPE_CHECKING:
    from duemq.broker.components import BrokerComponents

CONSUME_POP: Final = "CONSUME_POP"
QUEUES_PER_TURN: Final = 256
QUEUES_MAX: Final = 100_000
RETRY_PREFIX: Final = "%RETRY%"
SYSTEM_GROUP_PREFIX: Final = "cid_rmq_sys_"


class GroupLag(Struct):
    """Lag of one group in one topic, over all of its queues.

    Attributes:
        system: Whether the group or the topic is internal.
        retry: Whether this is the lag in the topic's pop retry topics.
        lag_messages: Messages between the committed offset and the end.
        lag_latency: Age of the first uncommitted message in ms; 0 if there is none.
        inflight_messages: Messages between the committed and the pulled offset; for a group that
            pops, messages that are invisible and not acknowledged.
        queueing_latency: Age of the first message that is not pulled in ms; 0 if there is none.
        ready_messages: Messages between the pulled offset and the end.
    """

    group: str
    topic: str
    system: bool
    retry: bool = False
    lag_messages: int = 0
    lag_latency: int = 0
    inflight_messages: int = 0
    queueing_latency: int = 0
    ready_messages: int = 0


async def group_lags(parts: BrokerComponents, now_ms: int) -> list[GroupLag]:
    """Return the lag of every online group in each topic it subscribes to or has popped.

    Other tasks run after every QUEUES_OF_TURN queues; at most QUEUES_MAX queues are included.
    """
    lags: list[GroupLag] = []
    queues = rested = 0
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
            for first in range(0, count, QUEUES_PER_TURN):
                part = range(first, min(first + QUEUES_PER_TURN, count))
                (_add_popped if pops else _add_queues)(parts, row, queue_topic, part, now_ms)
                queues += len(part)
                if queues - rested >= QUEUES_PER_TURN:
                    rested = queues
                    await asyncio.sleep(0)
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
        if parts.groups.known(name) is not None:
            yield name, topic, True


def _add_queues(
    parts: BrokerComponents, lag: GroupLag, topic: str, queue_ids: range, now_ms: int
) -> None:
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
            queue = GroupQueue(lag.group, topic, queue_id)
            add_lag(parts, lag, queue, start, next_pull, end, now_ms)
            lag.lag_messages += max(end - start, 0)
        if committed is not None and pulled is not None and pulled > start:
            lag.inflight_messages += pulled - start


def _add_popped(
    parts: BrokerComponents, lag: GroupLag, topic: str, queue_ids: range, now_ms: int
) -> None:
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
        add_lag(parts, lag, queue, following - in_flight, following, end, now_ms)
        lag.lag_messages += max(end - following, 0) + in_flight
        lag.inflight_messages += in_flight


def add_lag(
    parts: BrokerComponents,
    lag: GroupLag,
    queue: GroupQueue,
    start: int,
    pulled: int,
    end: int,
    now_ms: int,
) -> None:
    """Add ready messages, and the ages of the first unconsumed and the first unpulled message."""
    lag.ready_messages += max(end - pulled, 0)
    if start < end:
        lag.lag_latency = max(lag.lag_latency, _age_ms(parts, queue, start, now_ms))
    if pulled < end:
        lag.queueing_latency = max(lag.queueing_latency, _age_ms(parts, queue, pulled, now_ms))


def _age_ms(parts: BrokerComponents, queue: GroupQueue, offset: int, now_ms: int) -> int:
    store_ms = store_ms_at(parts.store, queue.topic, queue.queue_id, offset)
    return max(now_ms - store_ms, 0) if store_ms >= 0 else 0
