"""Original properties of a delivered record: the text that its consumer receives.

    FROM_TIMER   a record of the timer queue
    FROM_LEVEL   a record in a level's queue that was transferred to the timers
    FROM_ROUTE   a record of the timer queue that was made of a message with a level

For the last two, consumers receive the same properties as from the level service: DELAY (which is
DELAy in some records, for Apache's broker), no TIMER_*. A routed record has DELAY or DELAy,
DUEMQ_DUE_MS and none of the three TIMER_ times. No client can send such a record: a message with a
level is put into that level, a timer without a level has one of the three times, and the put hook
removes or refuses DUEMQ_DUE_MS. The compiled twin is `kernels.gather`.
"""

from __future__ import annotations

from delayed_delivery.redirected import LEVEL_NAME, MOVED_NAME, renamed, without
from duemq_common.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from message_store.log.record import Record
from timer_store.layout import FROM_LEVEL, FROM_NOTHING, FROM_ROUTE, FROM_TIMER
from timer_store.names import DUE_NAMES, TIMER_QUEUE

DROPPED = {
    FROM_TIMER: (b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS", b"__CRC32#"),
    FROM_LEVEL: (b"__CRC32#",),
    FROM_ROUTE: (
        b"TIMER_ENQUEUE_MS",
        b"TIMER_DEQUEUE_MS",
        b"__CRC32#",
        b"TIMER_OUT_MS",
        b"DUEMQ_DUE_MS",
        b"TIMER_ROLL_TIMES",
    ),
}


def kind_of(record: Record) -> int:
    """Return the kind of a record: FROM_*."""
    if record.topic == SCHEDULE_TOPIC:
        return FROM_LEVEL
    if record.topic != TIMER_TOPIC or record.queue_id != TIMER_QUEUE:
        return FROM_NOTHING
    properties = record.properties
    has_level = bool(properties.get("DELAY") or properties.get("DELAy"))
    if (
        has_level
        and properties.get("DUEMQ_DUE_MS")
        and not any(name in properties for name in DUE_NAMES)
    ):
        return FROM_ROUTE
    return FROM_TIMER


def delivered_text(record: Record, kind: int) -> bytes:
    """Return the property text of a delivered message, before a delivery adds to it."""
    text = without(record.property_text, *DROPPED[kind])
    return text if kind == FROM_TIMER else renamed(text, MOVED_NAME, LEVEL_NAME)
