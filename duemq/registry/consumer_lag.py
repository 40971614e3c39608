"""Consumer lag: distance of online groups from the ends of their topics.

    committed <= pulled <= end of queue
        |-- in flight --|-- ready --|
        |----------- lag -----------|

ConsumerLagCalculator
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from duemq.pull.queue_times import store_ms_at

if TYPE_CHECKING:
    from duemq.assembly import Parts

QUEUES_OF_TURN: Final = 256
QUEUES_MAX: Final = 100_000
RETRY_PREFIX: Final = "%RETRY%"
SYSTEM_GROUP_PREFIX: Final = "cid_rmq_sys_"


@dataclass(slots=True)
class LagOfGroup:
    """Lag of one group in one topic, over all of its queues.

    Attributes:
        system: Whether the group or the topic is the broker's own.
        lag_messages: Messages between the committed offset and the end.
        lag_latency: Age in ms of the first message that is not committed; 0 without one.
        inflight_messages: Messages between the committed and the pulled offset.
        queueing_latency: Age in ms of the first message that is not pulled; 0 without one.
        ready_messages: Messages between the pulled offset and the end.
    """

    group: str
    topic: str
    system: bool
    lag_messages: int = 0
    lag_latency: int = 0
    inflight_messages: int = 0
    queueing_latency: int = 0
    ready_messages: int = 0


async def lag_of_groups(parts: Parts, now_ms: int) -> list[LagOfGroup]:
    """Return the lag of every online group in each topic it subscribes to.

    Other work runs between pieces of QUEUES_OF_TURN queues; after QUEUES_MAX queues the rest is
    left out.
    """
    found: list[LagOfGroup] = []
    queues = 0
    for group in list(parts.clients.consumer_groups()):
        for name in list(group.subscriptions):
            topic = parts.topics.find(name)
            if topic is None or name.startswith(RETRY_PREFIX) or not topic.perm & 6:
                continue
            if queues + topic.write_queues > QUEUES_MAX:
                return found
            system = parts.topics.is_system(name)
            system |= group.name.lower().startswith(SYSTEM_GROUP_PREFIX)
            lag = LagOfGroup(group.name, name, system)
            for queue_id in range(topic.write_queues):
                _add_queue(parts, lag, queue_id, now_ms)
                queues += 1
                if queues % QUEUES_OF_TURN == 0:
                    await asyncio.sleep(0)
            found.append(lag)
    return found


def _add_queue(parts: Parts, lag: LagOfGroup, queue_id: int, now_ms: int) -> None:
    """Add one queue to the lag of a group.

    A group without a committed offset has no lag: it starts at the end. Source:
    ConsumerLagCalculator.getConsumerLagStats, getInFlightMsgStats, getAvailableMsgCount
    """
    end = max(parts.store.readable_bounds(lag.topic, queue_id)[1], 0)
    committed = parts.offsets.query(lag.group, lag.topic, queue_id)
    pulled = parts.offsets.query_pull(lag.group, lag.topic, queue_id)
    start = end if committed is None else committed
    next_pull = end if pulled is None else pulled
    lag.lag_messages += max(end - start, 0)
    lag.inflight_messages += max((pulled or 0) - start, 0) if committed is not None else 0
    lag.ready_messages += max(end - next_pull, 0)
    lag.lag_latency = max(lag.lag_latency, _age_ms(parts, lag.topic, queue_id, start, now_ms))
    lag.queueing_latency = max(
        lag.queueing_latency, _age_ms(parts, lag.topic, queue_id, next_pull, now_ms)
    )


def _age_ms(parts: Parts, topic: str, queue_id: int, offset: int, now_ms: int) -> int:
    store_ms = store_ms_at(parts.store, topic, queue_id, offset)
    return max(now_ms - store_ms, 0) if store_ms >= 0 else 0
