"""Deleted topics and the log offset of each deletion: recovery skips their messages.

The log keeps the records of a deleted topic until retention removes them. When queues are rebuilt
from the log, records before the deletion belong to no queue.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duemq_common.json_dialect import dumps, load_config, write_config
from message_store.layout import Rows
from message_store.queues.topic_table import TopicTable

DELETIONS_MAX = 65_536


class Deletions:
    """Deletions: for each deleted topic the log offset before which its records are in no queue.

    Args:
        path: The file, `config/deletedTopics.json`.
    Attributes:
        unwritten: Whether the file lacks a change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, int] = {}
        self._lock = threading.Lock()  # lock for one write of the file at a time
        self.unwritten = False

    def load(self) -> None:
        """Read the file if it exists.

        Raises:
            CorruptStore: Neither it nor its backup can be read.
        """
        self._offsets = load_config(self._path, _decode) or {}

    @property
    def is_full(self) -> bool:
        """Whether no more deletions can be recorded until retention removes records."""
        return len(self._offsets) >= DELETIONS_MAX

    def add(self, name: str, log_end: int) -> None:
        """Record a deletion in memory; `write` brings it to the disk."""
        self._offsets[name] = log_end
        self.unwritten = True

    def fit(self, log_min: int, log_end: int) -> None:
        """Remove deletions before `log_min`; set those after `log_end` to `log_end`.

        `write` brings the change to the disk.
        """
        kept = {
            name: min(position, log_end)
            for name, position in self._offsets.items()
            if position > log_min
        }
        if kept != self._offsets:
            self._offsets = kept
            self.unwritten = True

    def before(self, name: str) -> int:
        """Return the log offset before which a topic's records are in no queue."""
        return self._offsets.get(name, 0)

    def kept(self, rows: Rows, topics: TopicTable) -> npt.NDArray[np.bool_]:
        """Return which scanned records, (n,) `layout.SCANNED`, were not deleted."""
        if not self._offsets:
            return np.ones(rows.size, np.bool_)
        limits = np.zeros(len(topics) + 1, np.int64)  # the last: no topic, index -1
        for name, offset in self._offsets.items():
            limits[topics.find(name)] = offset
        limits[-1] = 0
        return np.asarray(rows["phys_offset"] >= limits[rows["topic_index"]])

    def write(self) -> None:
        """Write the file if it lacks a change, and sync it. Any thread may call it.

        Raises:
            OSError: The disk refused it; `unwritten` stays true.
        """
        with self._lock:
            if not self.unwritten:
                return
            self.unwritten = False
            try:
                write_config(self._path, dumps({"deletedTopics": dict(self._offsets)}))
            except BaseException:
                self.unwritten = True
                raise


def _decode(value: Any) -> dict[str, int]:
    return {str(name): int(offset) for name, offset in value["deletedTopics"].items()}
