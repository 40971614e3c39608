"""Record of the messages sent by a crash test, and its comparison with the delivered messages.

The test's client sends level messages and timers over real sockets and records each of them. At the
end it reads the whole topic and checks these rules:

    acknowledged       -> delivered exactly once
    not acknowledged   -> delivered at most once
    every message      -> delivered no earlier than its due time
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

from duemq.client import Message, MessageQueue, NotSent, Producer, PullConsumer, Refused
from duemq.client.message import time_of
from duemq_common.clock import SystemClock
from message_store.log.record import Record

BODY = struct.Struct("!qqi")  # sequence number, send time in ms, index of the delay
IN_FLIGHT = 64
STORED = "stored"
CALL_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0  # of a pull while no broker is killed


@dataclass(slots=True)
class SentMessages:
    """All messages of a run, identified by sequence numbers.

    Attributes:
        delays_ms: Delays of the levels.
        timers_ms: Delays of the timers.
        attempted: Number of messages sent, and the next sequence number.
        refused: Number of refusals, by response code or status.
    """

    topic: str
    queues: int
    delays_ms: tuple[int, ...]
    timers_ms: tuple[int, ...] = ()
    attempted: int = 0
    acknowledged: set[int] = field(default_factory=set)
    refused: Counter[int | str] = field(default_factory=Counter)

    def delay_index(self, number: int) -> int:
        """Return the index of a message's delay among `delays_ms` and `timers_ms`."""
        return number % (len(self.delays_ms) + len(self.timers_ms))

    def faults(self, arrived: list[Record]) -> list[str]:
        """Return a description of each loss, duplicate, unknown message and early delivery."""
        found = []
        counts = Counter(number_of(record) for record in arrived)
        lost = sorted(self.acknowledged - counts.keys())
        duplicated = sorted(number for number, count in counts.items() if count > 1)
        unknown = sorted(number for number in counts if not 0 <= number < self.attempted)
        for what, numbers in (("lost", lost), ("duplicated", duplicated), ("unknown", unknown)):
            if numbers:
                found.append(f"{len(numbers)} {what}, the first: {numbers[:5]}")
        for record in arrived:
            number, sent_ms, index = BODY.unpack_from(record.body)
            early_ms = sent_ms + (*self.delays_ms, *self.timers_ms)[index] - record.store_ms
            if early_ms > 0:
                found.append(f"message {number} with delay {index} is {early_ms} ms early")
        return found


def number_of(record: Record) -> int:
    """Return the sequence number in a message's body."""
    return int(BODY.unpack_from(record.body)[0])


def message_of(sent: SentMessages, number: int, now_ms: int) -> Message:
    """Return a message; its number determines its delay: a level, a duration or a time."""
    index = sent.delay_index(number)
    body, message_id = BODY.pack(number, now_ms, index), f"{number:032X}"
    if index < len(sent.delays_ms):
        return Message(sent.topic, body, level=index + 1, message_id=message_id)
    delay = timedelta(milliseconds=sent.timers_ms[index - len(sent.delays_ms)])
    if number // 16 % 2:
        return Message(sent.topic, body, delay=delay, message_id=message_id)
    return Message(sent.topic, body, deliver_at=time_of(now_ms) + delay, message_id=message_id)


async def send_until(
    sent: SentMessages, address: str, stop: asyncio.Event, in_flight: int = IN_FLIGHT
) -> None:
    """Send with `in_flight` concurrent requests, until `stop` is set or the broker ends."""
    clock = SystemClock()
    async with Producer(broker=address, retries=0, timeout_s=CALL_TIMEOUT_S) as producer:

        async def one_lane() -> None:
            while not stop.is_set():
                number = sent.attempted
                sent.attempted += 1
                message = message_of(sent, number, clock.now_ms())
                queue = MessageQueue(sent.topic, "", number % sent.queues)
                try:
                    result = await producer.send(message, queue=queue)
                except (Refused, NotSent) as error:
                    refusal = error if isinstance(error, Refused) else error.__cause__
                    if not isinstance(refusal, Refused):
                        return  # the broker has ended
                    sent.refused[refusal.code] += 1
                    continue
                if result.status == STORED:
                    sent.acknowledged.add(number)
                else:
                    sent.refused[result.status] += 1

        await asyncio.gather(*(one_lane() for _ in range(in_flight)))


async def read_all(
    sent: SentMessages, address: str, offsets: dict[int, int] | None = None
) -> list[Record]:
    """Return all messages of the topic.

    A pull that begins in a run of blank units, where a power cut destroyed records, returns no
    message and the offset after them.

    Args:
        offsets: Offset of each queue from which it is read; set to its end.
    """
    records: list[Record] = []
    ends = dict[int, int](offsets or {})
    async with PullConsumer(
        broker=address, group="crash_reader", timeout_s=READ_TIMEOUT_S
    ) as consumer:
        for queue_id in range(sent.queues):
            queue, offset = MessageQueue(sent.topic, "", queue_id), ends.get(queue_id, 0)
            while (pulled := await consumer.pull(queue, offset)).next_offset > offset:
                records += [message.record for message in pulled.messages]
                offset = pulled.next_offset
            ends[queue_id] = offset
    if offsets is not None:
        offsets.update(ends)
    return records
