"""Due times in the units of level queues.

A record contains its queue offset, so the units of a chunk of records are gathered without a join.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from message_store.kernels.verify import EXTENDED_CODE_MAX
from message_store.layout import CQ_UNIT
from spark_reconciliation.arrays import Mask, Numbers, Rows
from spark_reconciliation.scan.files import Entry, Root
from spark_reconciliation.scan.planning import files_of_row

NONE: Final = -(1 << 62)
UNIT_BYTES: Final = CQ_UNIT.itemsize
Places = tuple[Numbers, Numbers, Numbers]
MAPPED_MAX: Final = 64  # maximum files that are mapped at a time: each takes a descriptor


@dataclass(frozen=True, slots=True)
class _Queue:
    """Files of one queue in order, with the queue offset of the first unit of each."""

    files: tuple[Entry, ...]
    firsts: tuple[int, ...]


class QueueFiles:
    """Mapped files of queues, at most MAPPED_MAX, for the lookups of one thread."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._mapped: dict[str, Rows] = {}

    def units(self, entry: Entry) -> Rows:
        """Return the units of a file.

        Raises:
            OSError: It cannot be read.
        """
        if entry.path not in self._mapped:
            if len(self._mapped) >= MAPPED_MAX:
                self._mapped.pop(next(iter(self._mapped)))
            data = self.root.read(entry.path, 0, entry.size)
            whole = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], CQ_UNIT)
            self._mapped[entry.path] = whole
        return self._mapped[entry.path]


class UnitTimes:
    """Lookup of the units of a topic's queues by queue offset."""

    def __init__(self, files: QueueFiles, topic: str) -> None:
        self._root, self._files, self._topic = files.root, files, topic
        self._queues: dict[int, _Queue] = {}

    def find(self, rows: Rows) -> Numbers:
        """Return (n,) tags codes; NONE where no unit agrees with the record (SCANNED)."""
        queue_ids, offsets = rows["queue_id"], rows["queue_offset"]
        phys_offsets, sizes = rows["phys_offset"], rows["record_size"]
        codes = np.full(offsets.size, NONE, np.int64)
        for queue_id in np.unique(queue_ids).tolist():
            indexes = np.flatnonzero(queue_ids == queue_id)
            for here, units in self._gathered(queue_id, offsets[indexes]):
                good = units["phys_offset"] == phys_offsets[indexes[here]]
                good &= units["size"] == sizes[indexes[here]]
                codes[indexes[here[good]]] = units["tags_code"][good]
        return codes

    def agree(self, queue_id: int, numbers: Numbers, places: Places) -> Mask:
        """Return (n,) whether the unit at the queue offset of each record agrees with it.

        Args:
            numbers: Queue offsets of the records.
            places: Their log offsets, sizes, and the tags codes that the units must have.
        """
        units = self._row(queue_id, numbers)
        if units is not None:
            return _agreement(units, *places)
        agreement = np.zeros(numbers.size, np.bool_)
        for here, units in self._gathered(queue_id, numbers):
            agreement[here] = _agreement(units, *(column[here] for column in places))
        return agreement

    def first_unit(self, queue_id: int) -> tuple[int, int] | None:
        """Return queue offset and log offset of a queue's first unit, None without units."""
        queue = self._queue(queue_id)
        if not queue.files:
            return None
        unit = self._units(queue.files[0], 0, 1)
        if not unit.size or unit[0]["size"] <= 0:
            return None
        return queue.firsts[0], int(unit[0]["phys_offset"])

    def _row(self, queue_id: int, offsets: Numbers) -> Rows | None:
        """Return the units of consecutive queue offsets in one file; None for other offsets."""
        first, count = int(offsets[0]), offsets.size
        if int(offsets[-1]) - first != count - 1 or (offsets[1:] - offsets[:-1] != 1).any():
            return None
        queue = self._queue(queue_id)
        position = bisect_right(queue.firsts, first) - 1
        if position < 0:
            return None
        units = self._units(
            queue.files[position],
            first - queue.firsts[position],
            first + count - queue.firsts[position],
        )
        return units if units.size == count else None

    def _gathered(
        self, queue_id: int, offsets: Numbers
    ) -> Iterator[tuple[npt.NDArray[np.intp], Rows]]:
        """Yield indexes into `offsets` and the units there, file by file."""
        queue = self._queue(queue_id)
        if not queue.files or not offsets.size:
            return
        low, high = int(offsets.min()), int(offsets.max())
        position = max(bisect_right(queue.firsts, low) - 1, 0)
        while position < len(queue.files) and queue.firsts[position] <= high:
            entry, first = queue.files[position], queue.firsts[position]
            end = first + entry.size // UNIT_BYTES
            here = np.flatnonzero((offsets >= first) & (offsets < end))
            position += 1
            if here.size:
                start = max(low - first, 0)
                units = self._units(entry, start, min(high + 1, end) - first)
                places = offsets[here] - first - start
                inside = places < units.size
                yield here[inside], units[places[inside]]

    def _units(self, entry: Entry, low: int, high: int) -> Rows:
        """Return units low..high of a file; fewer if it is unreadable (reported elsewhere)."""
        try:
            if not self._root.is_local:
                data = self._root.read(entry.path, low * UNIT_BYTES, high * UNIT_BYTES)
                return np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], CQ_UNIT)
            return self._files.units(entry)[low:high]
        except OSError:
            return np.empty(0, CQ_UNIT)

    def _queue(self, queue_id: int) -> _Queue:
        if queue_id not in self._queues:
            below = f"consumequeue/{self._topic}/{queue_id}"
            try:
                files = files_of_row(self._root, below)
            except OSError:
                files = []
            firsts = tuple(int(entry.name) // UNIT_BYTES for entry in files)
            self._queues[queue_id] = _Queue(tuple(files), firsts)
        return self._queues[queue_id]


def _agreement(units: Rows, offsets: Numbers, sizes: Numbers, codes: Numbers) -> Mask:
    """Return (n,) whether units have the log offsets, sizes and tags codes of records."""
    places: Mask = (units["phys_offset"] == offsets) & (units["size"] == sizes)
    same = units["tags_code"] == codes
    if not same.all():
        same |= units["tags_code"] <= EXTENDED_CODE_MAX
    return np.asarray(places & same)
