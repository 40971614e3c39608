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

from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode, ResponseCode
from duemq_common.clock import SystemClock
from duemq_common.request import Request, Response
from message_store.log.record import Record, decode_record

BODY = struct.Struct("!qqi")  # sequence number, send time in ms, index of the delay
IN_FLIGHT = 64
PULL_FLAGS = 4  # the request contains the subscription; no long polling
CALL_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0  # of a pull while no broker is killed


@dataclass(slots=True)
class SentMessages:
    """All messages of a run, identified by sequence numbers.

    Attributes:
        delays_ms: Delays of the levels.
        timers_ms: Delays of the timers.
        attempted: Number of messages sent, and the next sequence number.
        refused: Number of refusals, by response code.
    """

    topic: str
    queues: int
    delays_ms: tuple[int, ...]
    timers_ms: tuple[int, ...] = ()
    attempted: int = 0
    acknowledged: set[int] = field(default_factory=set)
    refused: Counter[int] = field(default_factory=Counter)

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


def send_request(sent: SentMessages, number: int, now_ms: int) -> Request:
    """Return the send request of a message; its number determines delay and queue."""
    index = sent.delay_index(number)
    delay = _delay_property(sent, index, number, now_ms)
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02{delay}\x02"
    fields = {
        "a": "crash_producer",
        "b": sent.topic,
        "c": "TBW102",
        "d": str(sent.queues),
        "e": str(number % sent.queues),
        "f": "0",
        "g": str(now_ms),
        "h": "0",
        "i": properties,
        "j": "0",
    }
    body = BODY.pack(number, now_ms, index)
    return Request(RequestCode.SEND_MESSAGE_V2, fields, body)


def _delay_property(sent: SentMessages, index: int, number: int, now_ms: int) -> str:
    """Return the property for a delay: a level, or a relative or an absolute time."""
    timer = index - len(sent.delays_ms)
    if timer < 0:
        return f"DELAY\x01{index + 1}"
    delay_ms = sent.timers_ms[timer]
    if number // 16 % 2:
        return f"TIMER_DELAY_MS\x01{delay_ms}"
    return f"TIMER_DELIVER_MS\x01{now_ms + delay_ms}"


async def send_until(
    sent: SentMessages, address: str, stop: asyncio.Event, in_flight: int = IN_FLIGHT
) -> None:
    """Send with `in_flight` concurrent requests, until `stop` is set or the broker ends."""
    clock = SystemClock()
    async with RemotingClient(address) as client:

        async def one_lane() -> None:
            while not stop.is_set():
                number = sent.attempted
                sent.attempted += 1
                request = send_request(sent, number, clock.now_ms())
                response = await client.call(request, timeout_s=CALL_TIMEOUT_S)
                if response.code == ResponseCode.SUCCESS:
                    sent.acknowledged.add(number)
                else:
                    sent.refused[response.code] += 1

        lanes = [asyncio.create_task(one_lane()) for _ in range(in_flight)]
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, (OSError, TimeoutError)):
                raise ended


def pull_request(topic: str, queue_id: int, offset: int) -> Request:
    """Return a pull request without long polling."""
    fields = {
        "consumerGroup": "crash_reader",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(PULL_FLAGS),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return Request(RequestCode.PULL_MESSAGE, fields)


def records_of(response: Response) -> list[Record]:
    """Return the messages in the response to a pull."""
    body, found = bytes(response.body), []
    view = memoryview(body)
    while view:
        size = int.from_bytes(view[:4], "big")
        found.append(decode_record(view[:size], 0))
        view = view[size:]
    return found


async def read_all(sent: SentMessages, address: str) -> list[Record]:
    """Return all messages of the topic.

    A pull that begins in a run of blank units, where a power cut destroyed records, is retried at
    the next offset of its response, as Apache's clients do.
    """
    found: list[Record] = []
    async with RemotingClient(address) as client:
        for queue_id in range(sent.queues):
            offset = 0
            while True:
                request = pull_request(sent.topic, queue_id, offset)
                response = await client.call(request, timeout_s=READ_TIMEOUT_S)
                if response.code == ResponseCode.SUCCESS:
                    found += records_of(response)
                elif response.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                    break
                assert response.fields is not None
                following = int(response.fields["nextBeginOffset"])
                assert following > offset
                offset = following
    return found
