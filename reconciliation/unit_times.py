"""What the units of a level's queue say of the records that they point at: when these are due."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from message_store.layout import CQ_UNIT
from reconciliation.files import Entry, Root
from reconciliation.planning import row_of_files

Offsets = npt.NDArray[np.int64]
NONE: Final = -(1 << 62)
UNIT_BYTES: Final = CQ_UNIT.itemsize


class UnitTimes:
    """Looks units up by queue offset: a gather for each chunk of records, no join."""

    def __init__(self, root: Root, topic: str) -> None:
        self._root, self._topic = root, topic
        self._files: dict[int, list[Entry]] = {}

    def find(self, queue_ids: Any, offsets: Offsets, phys_offsets: Offsets) -> Offsets:
        """Return (n,) tags codes; NONE where no unit points at the record."""
        found = np.full(offsets.size, NONE, np.int64)
        for queue_id in np.unique(queue_ids).tolist():
            mine = np.flatnonzero(queue_ids == queue_id)
            for entry in self._entries(queue_id):
                first = int(entry.name) // UNIT_BYTES
                end = first + entry.size // UNIT_BYTES
                here = mine[(offsets[mine] >= first) & (offsets[mine] < end)]
                if here.size:
                    found[here] = self._codes(entry, offsets[here] - first, phys_offsets[here])
        return found

    def _codes(self, entry: Entry, places: Offsets, phys_offsets: Offsets) -> Offsets:
        low, high = int(places.min()), int(places.max()) + 1
        try:
            data = self._root.read(entry.path, low * UNIT_BYTES, high * UNIT_BYTES)
        except OSError:  # told by whoever reads the queues
            return np.full(places.size, NONE, np.int64)
        units = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], CQ_UNIT)
        inside = places - low < units.size
        units = (
            units[np.where(inside, places - low, 0)]
            if units.size
            else np.zeros(places.size, CQ_UNIT)
        )
        good = inside & (units["phys_offset"] == phys_offsets) & (units["size"] > 0)
        return np.where(good, units["tags_code"].astype(np.int64), NONE)

    def _entries(self, queue_id: int) -> list[Entry]:
        if queue_id not in self._files:
            below = f"consumequeue/{self._topic}/{queue_id}"
            try:
                self._files[queue_id], _ = row_of_files("", self._root.files(below))
            except OSError:
                self._files[queue_id] = []
        return self._files[queue_id]
