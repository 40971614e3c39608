"""Deleted topics and the log offset of each deletion: recovery skips their messages.

The log keeps the records of a deleted topic until retention takes them. When every queue is
written again from the log, what lies before the deletion belongs to no queue.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from message_store.json_dialect import dumps, load_config, write_config
from message_store.layout import Rows
from message_store.queues.topic_table import TopicTable

DELETIONS_MAX = 65_536


class Deletions:
    """Topic name to the log offset before which its records are in no queue.

    Args:
        path: the file, `config/deletedTopics.json`.
    Attributes:
        unwritten: the file lacks a change.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, int] = {}
        self._lock = threading.Lock()  # of the file: one write at a time
        self.unwritten = False

    def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            CorruptStore: Neither it nor its backup can be read.
        """
        self._offsets = load_config(self._path, _decode) or {}

    @property
    def is_full(self) -> bool:
        """Whether no further topic can be noted until retention has removed records."""
        return len(self._offsets) >= DELETIONS_MAX

    def add(self, name: str, log_end: int) -> None:
        """Note a deletion; `write` brings it to the disk."""
        self._offsets[name] = log_end
        self.unwritten = True

    def fit(self, log_min: int, log_end: int) -> None:
        """Forget what retention made void; nothing after the log's end was deleted before it.

        `write` brings that to the disk.
        """
        kept = {name: min(at, log_end) for name, at in self._offsets.items() if at > log_min}
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
        """Replace the file, unless it has all of it; on the disk when this returns. Any thread.

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
