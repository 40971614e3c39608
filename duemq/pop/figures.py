"""Figures of POP: messages in flight, and counters of the revive topic.

A message is in flight from its pop until it is acknowledged or visible again. Pops from before the
start are not counted; an acknowledgement that is repeated counts each time, down to 0.
Source: PopInflightMessageCounter, PopMetricsManager
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from duemq.metrics.meters import Counts
from duemq.pop.checkpoints import Acknowledgement, Checkpoint
from duemq.pop.names import normal_topic

PLACES_MAX: Final = 100_000
PAIRS_MAX: Final = 10_000
PUT, REFUSED = "PUT_OK", "UNKNOWN_ERROR"  # names of PutMessageStatus
CHECKPOINT, ACKNOWLEDGEMENT = "CK", "ACK"  # names of PopReviveMessageType


class PopFigures:
    """Figures of one broker since its start.

    Args:
        started_ms: Pops before this time are not counted as in flight.
    Attributes:
        puts: Records put into the revive topic, by (group, topic, type, status).
        reads: Records read from it, by (group, topic, revive queue, type).
        retries: Copies put into retry topics, by (group, topic, status).
    """

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._in_flight: dict[tuple[str, str, int], int] = {}
        self._pairs: dict[tuple[str, str], None] = {}
        self.puts, self.reads, self.retries = Counts(), Counts(), Counts()

    def note_put(self, record: Checkpoint | Acknowledgement, status: str) -> None:
        """Count a record that was put into the revive topic, or refused."""
        self.puts.add(record.group, record.topic, _type(record), status)
        if status != PUT:
            return
        if isinstance(record, Acknowledgement):
            self._remove(record, len(record.offsets))
            return
        topic = normal_topic(record.topic, record.group)
        if len(self._pairs) < PAIRS_MAX:
            self._pairs[record.group, topic] = None
        key = record.group, record.topic, record.queue_id
        if key in self._in_flight or len(self._in_flight) < PLACES_MAX:
            self._in_flight[key] = self._in_flight.get(key, 0) + len(record.offsets)

    def note_read(self, record: Checkpoint | Acknowledgement, revive_queue: int) -> None:
        """Count a record that was read from the revive topic."""
        self.reads.add(record.group, record.topic, str(revive_queue), _type(record))

    def note_settled(self, checkpoint: Checkpoint, count: int) -> None:
        """Have `count` messages of a checkpoint no longer in flight: they are visible again."""
        self._remove(checkpoint, count)

    def _remove(self, record: Checkpoint | Acknowledgement, count: int) -> None:
        key = record.group, record.topic, record.queue_id
        found = self._in_flight.get(key, 0)
        if record.pop_ms < self._started_ms or not found:
            return
        if found > count:
            self._in_flight[key] = found - count
        else:
            del self._in_flight[key]

    def in_flight(self, group: str, topic: str, queue_id: int) -> int:
        """Return the number of messages of a queue that are in flight."""
        return self._in_flight.get((group, topic, queue_id), 0)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield (group, topic) of all pops since the start; retry topics are of their topic."""
        return iter(tuple(self._pairs))


def _type(record: Checkpoint | Acknowledgement) -> str:
    return ACKNOWLEDGEMENT if isinstance(record, Acknowledgement) else CHECKPOINT
