"""Consumers that survive kills of the broker, and a record of the consumed messages.

    steady      keeps its offsets in memory, like a client that reconnects
    restarting  resumes at the committed offset after every start of the broker

Both check that a queue offset always identifies the same message.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response, bytes_of
from message_store.log.record import Record, split_records
from tests.crash.sent_messages import CALL_TIMEOUT_S, SentMessages, number_of

PULL_FLAGS = 2 | 4  # long polling; the request contains the subscription
HOLD_MS = 300
PULL_COUNTS = ("1", "8", "32")
FIRST_TIMEOUT_S = 60.0  # of the first call to a broker that has just started
GONE = (OSError, TimeoutError)


@dataclass(slots=True)
class ConsumedMessages:
    """Messages that a consumer group consumed in all runs of the broker.

    Attributes:
        restarts: Whether the group resumes at its committed offset in each run.
        at: Next offset to consume, by queue.
        committed: Highest offset committed, or in a commit in flight, by queue.
        messages: Sequence numbers of the messages, by queue and queue offset.
        times: Number of deliveries, by sequence number.
    """

    group: str
    restarts: bool
    at: Counter[int] = field(default_factory=Counter)
    committed: Counter[int] = field(default_factory=Counter)
    messages: dict[tuple[int, int], int] = field(default_factory=dict)
    times: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def take(self, queue_id: int, records: list[Record]) -> None:
        """Record consumed messages, in order."""
        for record in records:
            number, offset = number_of(record), record.queue_offset
            known = self.messages.setdefault((queue_id, offset), number)
            if known != number:
                self._fault(f"queue {queue_id} offset {offset}: {number}, it was {known}")
            if offset < self.at[queue_id]:
                self._fault(f"queue {queue_id}: offset {offset} was consumed again")
            self.times[number] += 1
            self.at[queue_id] = offset + 1

    def begin(self, queue_id: int, offset: int) -> None:
        """Record the committed offset at which the group resumes."""
        if offset > self.committed[queue_id]:
            self._fault(
                f"queue {queue_id}: offset {offset} was never committed, at most "
                f"{self.committed[queue_id]}"
            )
        self.at[queue_id] = offset

    def take_empty(self, queue_id: int, response: Response) -> None:
        """Record a response without messages.

        The next offset must be unchanged, or after units whose records a power cut destroyed.
        """
        following, now = int((response.fields or {}).get("nextBeginOffset", -1)), self.at[queue_id]
        skips = response.code == ResponseCode.PULL_RETRY_IMMEDIATELY and following > now
        if not skips and not (response.code == ResponseCode.PULL_NOT_FOUND and following == now):
            self._fault(f"queue {queue_id} at {now}: code {response.code}, next {following}")
        self.at[queue_id] = following

    def _fault(self, text: str) -> None:
        self.faults.append(f"{self.group}: {text}")

    def check(self, sent: SentMessages, stored: dict[tuple[int, int], int]) -> list[str]:
        """Return descriptions of all faults, once all messages are consumed."""
        found = list(self.faults)
        lost = sorted(sent.acknowledged - self.times.keys())
        if lost:
            found.append(f"{self.group}: {len(lost)} never consumed, the first: {lost[:5]}")
        twice = sorted(number for number, count in self.times.items() if count > 1)
        if twice and not self.restarts:
            found.append(f"{self.group}: {len(twice)} consumed twice, the first: {twice[:5]}")
        if self.messages != stored:
            places = sorted(dict(self.messages.items() ^ stored.items()))
            found.append(f"{self.group}: {len(places)} places differ from the store: {places[:5]}")
        return found

    def has_all(self, sent: SentMessages) -> bool:
        """Return whether all acknowledged messages were consumed."""
        return sent.acknowledged <= self.times.keys()


async def consume_until(
    consumed: ConsumedMessages,
    sent: SentMessages,
    address: str,
    chance: random.Random,
    stop: asyncio.Event,
) -> None:
    """Consume all queues until `stop` is set or the broker ends."""
    async with RemotingClient(address) as client:
        lanes = [
            asyncio.create_task(_lane(consumed, sent.topic, queue_id, client, chance, stop))
            for queue_id in range(sent.queues)
        ]
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException) and not isinstance(ended, GONE):
                raise ended


async def _lane(
    consumed: ConsumedMessages,
    topic: str,
    queue_id: int,
    client: RemotingClient,
    chance: random.Random,
    stop: asyncio.Event,
) -> None:
    place = {"consumerGroup": consumed.group, "topic": topic, "queueId": str(queue_id)}
    if consumed.restarts:
        consumed.begin(queue_id, await _committed(client, place))
    while not stop.is_set():
        try:
            response = await client.call(
                _pull(place, consumed.at[queue_id], chance), timeout_s=CALL_TIMEOUT_S
            )
        except TimeoutError:  # the machine is busy: pull the same messages again
            continue
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            await asyncio.sleep(0.05)
            continue
        if response.code != ResponseCode.SUCCESS:
            consumed.take_empty(queue_id, response)
            continue
        consumed.take(queue_id, split_records(bytes_of(response)))
        if chance.random() < 0.3:
            offset = consumed.at[queue_id]
            consumed.committed[queue_id] = max(consumed.committed[queue_id], offset)
            fields = place | {"commitOffset": str(offset)}
            request = Request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            with suppress(TimeoutError):
                await client.call(request, timeout_s=CALL_TIMEOUT_S)


async def _committed(client: RemotingClient, place: dict[str, str]) -> int:
    fields = place | {"setZeroIfNotFound": "false"}
    request = Request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    response = await client.call(request, timeout_s=FIRST_TIMEOUT_S)
    return int((response.fields or {})["offset"]) if response.code == ResponseCode.SUCCESS else 0


def _pull(place: dict[str, str], offset: int, chance: random.Random) -> Request:
    fields = place | {
        "queueOffset": str(offset),
        "maxMsgNums": chance.choice(PULL_COUNTS),
        "sysFlag": str(PULL_FLAGS),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return Request(RequestCode.PULL_MESSAGE, fields)
