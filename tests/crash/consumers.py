"""Consumers that stay alive while the broker dies and comes back, and what they were given.

    a steady one      keeps its offsets in memory, as a client does that reconnects
    a restarting one  begins at the committed offset whenever the broker comes back

For both a queue offset names one message for ever: what was given with it is never replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from delivery.plugin import Request, Response
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode, ResponseCode
from message_store.log.record import Record
from tests.crash.books import CALL_TIMEOUT_S, PendingCounts, number_of, records_of

PULL_FLAGS = 2 | 4  # hold it; the subscription is in the request
HOLD_MS = 300
COUNTS = ("1", "8", "32")
GONE = (OSError, TimeoutError)


@dataclass(slots=True)
class Given:
    """What one group was given, over all lives of the broker.

    Attributes:
        restarts: whether it begins at its committed offset in every life.
        at: by queue, the offset it consumes next.
        committed: by queue, the highest offset it committed or was about to commit.
        messages: by queue and queue offset, the number of the message given.
        times: by number, how often it was given.
    """

    group: str
    restarts: bool
    at: Counter[int] = field(default_factory=Counter)
    committed: Counter[int] = field(default_factory=Counter)
    messages: dict[tuple[int, int], int] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def take(self, queue_id: int, records: list[Record]) -> None:
        """Note messages in the order they were given."""
        for record in records:
            number, offset = number_of(record), record.queue_offset
            known = self.messages.setdefault((queue_id, offset), number)
            if known != number:
                self._fault(f"queue {queue_id} offset {offset}: {number}, it was {known}")
            if offset < self.at[queue_id]:
                self._fault(f"queue {queue_id}: {self.at[queue_id]} is next, {offset} was given")
            self.times[number] += 1
            self.at[queue_id] = offset + 1

    def begin(self, queue_id: int, offset: int) -> None:
        """Note the committed offset that the group goes on at."""
        if offset > self.committed[queue_id]:
            self._fault(
                f"queue {queue_id}: offset {offset} was never committed, at most "
                f"{self.committed[queue_id]}"
            )
        self.at[queue_id] = offset

    def answered(self, queue_id: int, answer: Response) -> None:
        """Note an answer without messages: the offset is never moved back, and never too far.

        It is moved on past units whose records a power cut took before they were on the disk.
        """
        told, now = int((answer.fields or {}).get("nextBeginOffset", -1)), self.at[queue_id]
        passes = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY and told > now
        if not passes and not (answer.code == ResponseCode.PULL_NOT_FOUND and told == now):
            self._fault(f"queue {queue_id} at {now}: code {answer.code}, next {told}")
        self.at[queue_id] = told

    def _fault(self, text: str) -> None:
        self.faults.append(f"{self.group}: {text}")

    def check(self, books: PendingCounts, stored: dict[tuple[int, int], int]) -> list[str]:
        """Return what does not add up, once everything was consumed."""
        found = list(self.faults)
        lost = sorted(books.acknowledged - self.times.keys())
        if lost:
            found.append(f"{self.group}: {len(lost)} never given, the first: {lost[:5]}")
        twice = sorted(number for number, count in self.times.items() if count > 1)
        if twice and not self.restarts:
            found.append(f"{self.group}: {len(twice)} given twice, the first: {twice[:5]}")
        if self.messages != stored:
            places = sorted(dict(self.messages.items() ^ stored.items()))
            found.append(f"{self.group}: {len(places)} places not as stored: {places[:5]}")
        return found

    def has_all(self, books: PendingCounts) -> bool:
        """Return whether everything acknowledged was given."""
        return books.acknowledged <= self.times.keys()


async def consume_until(
    given: Given, books: PendingCounts, address: str, chance: random.Random, stop: asyncio.Event
) -> None:
    """Consume all queues until `stop` is set or the broker is gone."""
    async with RemotingClient(address) as client:
        lanes = [
            asyncio.create_task(_lane(given, books.topic, queue_id, client, chance, stop))
            for queue_id in range(books.queues)
        ]
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, GONE):
                raise ended


async def _lane(
    given: Given,
    topic: str,
    queue_id: int,
    client: RemotingClient,
    chance: random.Random,
    stop: asyncio.Event,
) -> None:
    place = {"consumerGroup": given.group, "topic": topic, "queueId": str(queue_id)}
    if given.restarts:
        given.begin(queue_id, await _committed(client, place))
    while not stop.is_set():
        answer = await client.call(
            _pull(place, given.at[queue_id], chance), timeout_s=CALL_TIMEOUT_S
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            await asyncio.sleep(0.05)
            continue
        if answer.code != ResponseCode.SUCCESS:
            given.answered(queue_id, answer)
            continue
        given.take(queue_id, records_of(answer))
        if chance.random() < 0.3:
            offset = given.at[queue_id]
            given.committed[queue_id] = max(given.committed[queue_id], offset)
            fields = place | {"commitOffset": str(offset)}
            request = Request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            await client.call(request, timeout_s=CALL_TIMEOUT_S)


async def _committed(client: RemotingClient, place: dict[str, str]) -> int:
    fields = place | {"setZeroIfNotFound": "false"}
    answer = await client.call(Request(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    return int((answer.fields or {})["offset"]) if answer.code == ResponseCode.SUCCESS else 0


def _pull(place: dict[str, str], offset: int, chance: random.Random) -> Request:
    fields = place | {
        "queueOffset": str(offset),
        "maxMsgNums": chance.choice(COUNTS),
        "sysFlag": str(PULL_FLAGS),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return Request(RequestCode.PULL_MESSAGE, fields)
