"""Counters of POP: messages in flight, and records of the revive topic.

A message is in flight from its pop until it is acknowledged or visible again. Pops before the start
of the broker are not counted. A repeated acknowledgement reduces the count again, down to 0.

Source: PopInflightMessageCounter, PopMetricsManager
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duemq.net.meters import Counts
from duemq.net.retry_topics import normal_topic
from duemq.pop.checkpoints import Acknowledgement, PopCheckpoint

PLACES_MAX: Final = 100_000  # queues of groups with messages in flight
PAIRS_MAX: Final = 10_000  # pairs of group and topic
PUT, REFUSED = "PUT_OK", "UNKNOWN_ERROR"  # names of PutMessageStatus
CHECKPOINT, ACKNOWLEDGEMENT = "CK", "ACK"  # names of PopReviveMessageType


class PopFigures:
    """Counters of one broker since its start.

    Args:
        started_ms: Start of the broker, in ms since the epoch.
    Attributes:
        puts: Records put into the revive topic, by (group, topic, type, status).
        reads: Records read from the revive topic, by (group, topic, revive queue, type).
        retries: Copies put into retry topics, by (group, topic, status).
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._in_flight: dict[tuple[str, str, int], int] = {}
        self._pairs: dict[tuple[str, str], None] = {}
        self.puts, self.reads, self.retries = Counts(), Counts(), Counts()

    def on_put(self, record: PopCheckpoint | Acknowledgement, status: str) -> None:
        """Count a record that the store accepted or refused (`PUT`, `REFUSED`)."""
        self.puts.add(record.group, record.topic, _type(record), status)
        if status != PUT:
            return
        if isinstance(record, Acknowledgement):
            self.on_settled(record, len(record.offsets))
            return
        topic = normal_topic(record.topic, record.group)
        if len(self._pairs) < PAIRS_MAX:
            self._pairs[record.group, topic] = None
        key = record.group, record.topic, record.queue_id
        before = self._in_flight.get(key, 0)
        if before or len(self._in_flight) < PLACES_MAX:
            self._in_flight[key] = before + len(record.offsets)

    def on_read(self, record: PopCheckpoint | Acknowledgement, revive_queue: int) -> None:
        """Count a record that was read from the revive topic."""
        self.reads.add(record.group, record.topic, str(revive_queue), _type(record))

    def on_settled(self, record: PopCheckpoint | Acknowledgement, count: int) -> None:
        """Remove `count` messages of a record from the messages in flight."""
        key = record.group, record.topic, record.queue_id
        in_flight = self._in_flight.get(key, 0)
        if record.pop_ms < self._started_ms or not in_flight:
            return
        if in_flight > count:
            self._in_flight[key] = in_flight - count
        else:
            del self._in_flight[key]

    def in_flight(self, group: str, topic: str, queue_id: int) -> int:
        """Return the number of messages of a queue that are in flight."""
        return self._in_flight.get((group, topic, queue_id), 0)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield group and topic of all pops; a pop of a retry topic counts for its topic."""
        return iter(tuple(self._pairs))


def _type(record: PopCheckpoint | Acknowledgement) -> str:
    return ACKNOWLEDGEMENT if isinstance(record, Acknowledgement) else CHECKPOINT
