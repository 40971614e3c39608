"""Check that consumers can reach deliveries: the unit of the queue agrees with each of them.

    delivery  T, queue 2, queue offset 7  -->  consumequeue/T/2, unit 7  -->  its log offset, size,
                                                                              tags code?

Queues lag behind the log, so the newest records may have no units yet; the next start of the broker
writes them. `read_queue_coverage` returns the log offset up to which a store's queues are complete:

    config/duemq.mark    of DueMQ: the log offset up to which queues are on the disk
    abort, checkpoint    of Apache's broker: the whole log after a clean stop, else records stored
                         some seconds before the newest message that its queues had

A deleted topic has no queues, and a rebuilt queue is numbered from 0 again, so earlier deliveries
of these need not be reachable. DueMQ notes deletions in config/deletedTopics.json: a topic of the
same name may exist again, without units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from message_store.layout import CHECKPOINT, packer
from message_store.queues.apache_names import ROCKSDB_FILE, ROCKSDB_TABLES
from message_store.recovery.checkpoint import MIN_TIMESTAMP_SLACK_MS, newest_marks
from spark_reconciliation.arrays import Mask, Numbers, Rows
from spark_reconciliation.audit.unit_times import Places, QueueFiles, UnitTimes
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import MARK_FILE, OFFSET_MAX
from spark_reconciliation.scan.store_state import BAD_INPUT, QueueCoverage, read_json

TOPICS_FILE: Final = "config/topics.json"
DELETIONS_FILE: Final = "config/deletedTopics.json"
CHECKPOINT_FILE: Final = "checkpoint"


def read_queue_coverage(root: Root) -> QueueCoverage:
    """Return the coverage of the queues: the offset up to which each record must have a unit.

    Raises:
        OSError: A file cannot be read.
    """
    _, marks, _ = newest_marks(root.small_file(MARK_FILE) or b"")
    if marks is not None:
        return QueueCoverage(marks.durable)
    data = root.small_file(CHECKPOINT_FILE) or b""
    if len(data) < CHECKPOINT.itemsize or _are_in_rocksdb(root):
        return QueueCoverage()  # not a broker's store, or queues in a database: unknown
    if "abort" not in _names(root, ""):
        return QueueCoverage(OFFSET_MAX)
    times = packer(CHECKPOINT).unpack_from(data)
    return QueueCoverage(0, int(min(times[:2])) - MIN_TIMESTAMP_SLACK_MS)


def _are_in_rocksdb(root: Root) -> bool:
    return any(ROCKSDB_FILE in _names(root, f"config/{name}") for name in ROCKSDB_TABLES)


def _names(root: Root, below: str) -> set[str]:
    return {entry.name for entry in root.files(below)}


class DeliveryUnits:
    """Lookup of the units of deliveries; each task makes one."""

    def __init__(self, files: QueueFiles, coverage: QueueCoverage) -> None:
        self._root, self._files, self._coverage = files.root, files, coverage
        self._topics: dict[str, UnitTimes] = {}

    def is_required(self, offsets: Numbers, stored_ms: Numbers) -> Mask:
        """Return (n,) whether the queues must have a unit for each record."""
        required = (offsets < self._coverage.end) | (stored_ms <= self._coverage.until_ms)
        return np.asarray(required)

    def of_queue(self, topic: str, queue_id: int, numbers: Numbers, places: Places) -> Mask:
        """Return (n,) whether records of one queue are reachable.

        Args:
            numbers: Queue offsets of the records.
            places: Their log offsets, sizes, and the tags codes that their units must have.
        """
        units = self._topics.get(topic)
        if units is None:
            units = self._topics[topic] = UnitTimes(self._files, topic)
        reachable: Mask = units.agree(queue_id, numbers, places)
        if reachable.all():
            return reachable
        if self._is_excused(topic):
            return np.ones_like(reachable)
        reachable |= places[0] < self._deletions.get(topic, 0)
        first = units.first_unit(queue_id)
        if first is not None:  # rebuilt: its first unit points after the record
            reachable |= (numbers >= first[0]) & (places[0] < first[1])
        return reachable

    def _is_excused(self, topic: str) -> bool:
        """Return whether a topic was deleted, or has queues of another kind."""
        return (self._kept is not None and topic not in self._kept) or topic in self._in_batches

    @cached_property
    def _kept(self) -> frozenset[str] | None:
        """Topics of the broker; None: unknown."""
        try:
            table = read_json(self._root, TOPICS_FILE).get("topicConfigTable")
            return frozenset(table) if table else None
        except BAD_INPUT:
            return None

    @cached_property
    def _deletions(self) -> dict[str, int]:
        """Log offsets of the deletions of topics; see `message_store.queues.deleted_topics`."""
        try:
            table = read_json(self._root, DELETIONS_FILE).get("deletedTopics") or {}
            return {str(name): int(offset) for name, offset in table.items()}
        except BAD_INPUT:
            return {}

    @cached_property
    def _in_batches(self) -> frozenset[str]:
        try:
            return frozenset(self._root.folders("batchconsumequeue"))
        except OSError:
            return frozenset()


def check_delivery_units(
    units: DeliveryUnits,
    name_of: Callable[[int], str],
    rows: Rows,
    sent: Mask,
    codes: Numbers,
) -> tuple[Mask, Mask]:
    """Return which of (n,) SCANNED rows were checked, and which of them are reachable.

    Args:
        name_of: Returns the name of a topic by its `topic_index`.
        sent: Rows that are deliveries.
        codes: Tags codes that the units must have.
    """
    checked = sent & units.is_required(rows["phys_offset"], rows["store_ms"])
    reachable = np.ones(rows.size, np.bool_)
    indexes = np.flatnonzero(checked)
    if indexes.size:
        topics, queues = rows["topic_index"][indexes], rows["queue_id"][indexes].astype(np.int64)
        numbers, offsets = rows["queue_offset"], rows["phys_offset"]
        sizes = rows["record_size"]
        pairs = topics * np.int64(1 << 32) + queues
        order = np.argsort(pairs, kind="stable")
        ends = np.flatnonzero(np.diff(pairs[order])) + 1
        for here in np.split(order, ends):
            first, position = here[0], indexes[here]
            reachable[position] = units.of_queue(
                name_of(int(topics[first])),
                int(queues[first]),
                numbers[position],
                (offsets[position], sizes[position], codes[position]),
            )
    return checked, reachable
