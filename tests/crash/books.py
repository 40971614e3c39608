"""The books of a crash run: what was sent, what was acknowledged, what arrived.

A client of ours sends level messages and timers over real sockets and keeps one line per message;
at the end the topic is read through a client from its first offset on and compared:

    acknowledged       -> there exactly once
    not acknowledged   -> there once or not at all
    anything           -> stored not before its promise
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from dataclasses import dataclass, field

from delivery.plugin import Request, Response
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode, ResponseCode
from message_store.clock import SystemClock
from message_store.log.record import Record, decode_record

BODY = struct.Struct("!qqi")  # sequence, born ms, which of the delays
IN_FLIGHT = 64
PULL_FLAGS = 4  # the subscription is in the request; do not hold it
CALL_TIMEOUT_S = 5.0


@dataclass(slots=True)
class PendingCounts:
    """Every message of a run. `acknowledged` and `attempted` hold sequence numbers.

    Attributes:
        delays_ms: of the levels.
        timers_ms: delays of timers; a message has one of either, by its number.
    """

    topic: str
    queues: int
    delays_ms: tuple[int, ...]
    timers_ms: tuple[int, ...] = ()
    attempted: int = 0
    acknowledged: set[int] = field(default_factory=set)
    refused: Counter[int] = field(default_factory=Counter)

    def choice(self, number: int) -> int:
        """Return which of all delays a message has."""
        return number % (len(self.delays_ms) + len(self.timers_ms))

    def faults(self, arrived: list[Record]) -> list[str]:
        """Return every line of the books that does not add up."""
        found = []
        counts = Counter(number_of(record) for record in arrived)
        lost = sorted(self.acknowledged - counts.keys())
        doubled = sorted(number for number, count in counts.items() if count > 1)
        foreign = sorted(number for number in counts if not 0 <= number < self.attempted)
        for what, numbers in (("lost", lost), ("doubled", doubled), ("unknown", foreign)):
            if numbers:
                found.append(f"{len(numbers)} {what}, the first: {numbers[:5]}")
        for record in arrived:
            number, born_ms, choice = BODY.unpack_from(record.body)
            early_ms = born_ms + (*self.delays_ms, *self.timers_ms)[choice] - record.store_ms
            if early_ms > 0:
                found.append(f"message {number} of delay {choice} is {early_ms} ms early")
        return found


def number_of(record: Record) -> int:
    """Return the sequence number in a message's body."""
    return int(BODY.unpack_from(record.body)[0])


def send_request(books: PendingCounts, number: int, now_ms: int) -> Request:
    """Return the send of message `number`; its delay and queue follow from the number."""
    choice = books.choice(number)
    delay = _delay(books, choice, number, now_ms)
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02{delay}\x02"
    fields = {
        "a": "crash_producer",
        "b": books.topic,
        "c": "TBW102",
        "d": str(books.queues),
        "e": str(number % books.queues),
        "f": "0",
        "g": str(now_ms),
        "h": "0",
        "i": properties,
        "j": "0",
    }
    body = BODY.pack(number, now_ms, choice)
    return Request(RequestCode.SEND_MESSAGE_V2, fields, body)


def _delay(books: PendingCounts, choice: int, number: int, now_ms: int) -> str:
    """Return the property that asks for a delay: a level, or a time in one of two ways."""
    timer = choice - len(books.delays_ms)
    if timer < 0:
        return f"DELAY\x01{choice + 1}"
    delay_ms = books.timers_ms[timer]
    if number // 16 % 2:
        return f"TIMER_DELAY_MS\x01{delay_ms}"
    return f"TIMER_DELIVER_MS\x01{now_ms + delay_ms}"


async def send_until(books: PendingCounts, address: str, stop: asyncio.Event) -> None:
    """Keep `IN_FLIGHT` sends under way until `stop` is set or the broker is gone."""
    clock = SystemClock()
    async with RemotingClient(address) as client:

        async def one_lane() -> None:
            while not stop.is_set():
                number = books.attempted
                books.attempted += 1
                request = send_request(books, number, clock.now_ms())
                answer = await client.call(request, timeout_s=CALL_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    books.acknowledged.add(number)
                else:
                    books.refused[answer.code] += 1

        lanes = [asyncio.create_task(one_lane()) for _ in range(IN_FLIGHT)]
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, (OSError, TimeoutError)):
                raise ended


def pull_request(topic: str, queue_id: int, offset: int) -> Request:
    """Return a pull that is answered at once."""
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


def records_of(answer: Response) -> list[Record]:
    """Return the messages in a pull's answer."""
    body, found = bytes(answer.body), []  # type: ignore[arg-type]
    view = memoryview(body)
    while view:
        size = int.from_bytes(view[:4], "big")
        found.append(decode_record(view[:size], 0))
        view = view[size:]
    return found


async def read_all(books: PendingCounts, address: str) -> list[Record]:
    """Return every message of the topic, from the first offset of each queue on."""
    found: list[Record] = []
    async with RemotingClient(address) as client:
        for queue_id in range(books.queues):
            offset = 0
            while True:
                answer = await client.call(pull_request(books.topic, queue_id, offset))
                if answer.code != ResponseCode.SUCCESS:
                    break
                found += records_of(answer)
                assert answer.fields is not None
                offset = int(answer.fields["nextBeginOffset"])
    return found
