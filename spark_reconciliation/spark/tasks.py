"""Parts of a table for Spark's tasks: a worker unpacks those of its own tasks only.

A store may have 100,000 log files, and each task gets the function with the parts of all tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO

from spark_reconciliation.audit.table_reader import ScanPart
from spark_reconciliation.scan.planning import LogPlan
from spark_reconciliation.scan.store_state import Progress


class PackedTasks:
    """Attributes:
    packed: Parts of each task, pickled. Progress and log of a store, which many parts share, are
        apart.
    """

    def __init__(self, tasks: Sequence[Sequence[ScanPart]]) -> None:
        self._shared: list[Progress | LogPlan] = []
        indexes: dict[int, int] = {}

        def shared(value: object) -> int | None:
            if not isinstance(value, Progress | LogPlan):
                return None
            if id(value) not in indexes:
                indexes[id(value)] = len(self._shared)
                self._shared.append(value)
            return indexes[id(value)]

        self.packed = [_packed(parts, shared) for parts in tasks]

    def __len__(self) -> int:
        return len(self.packed)

    def parts(self, number: int) -> Sequence[ScanPart]:
        """Return the parts of a task."""
        unpickler = pickle.Unpickler(BytesIO(self.packed[number]))
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        parts: Sequence[ScanPart] = unpickler.load()
        return parts


def _packed(parts: Sequence[ScanPart], shared: Callable[[object], int | None]) -> bytes:
    packed = BytesIO()
    pickler = pickle.Pickler(packed)
    pickler.persistent_id = shared  # type: ignore[method-assign]
    pickler.dump(parts)
    return packed.getvalue()
