"""Topics of scanned records, with facts of each that columns need, by topic index.

The scans of one task share a table, so that the facts of a topic are computed once, not for each
chunk of records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duemq_common.topics import (
    CHECK_MAX_TIME_TOPIC,
    DECISION_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    QUARANTINE_TOPIC,
    RETRY_PREFIX,
    ROCKSDB_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from message_store.queues.topic_table import TopicTable
from spark_reconciliation.arrays import Mask, Words
from spark_reconciliation.kernels import columns as kernels
from spark_reconciliation.scan.hashes import hash_text

KINDS: Final = {
    SCHEDULE_TOPIC: kernels.KIND_LEVEL,
    TIMER_TOPIC: kernels.KIND_TIMER,
    DECISION_TOPIC: kernels.KIND_DECISION,
    QUARANTINE_TOPIC: kernels.KIND_QUARANTINE,
}
"""Topics with other records than deliveries."""
HALVES: Final = (HALF_TOPIC, ROCKSDB_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
COPY_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)
Number = TypeVar("Number", bound=np.generic)


class ScannedTopics(TopicTable):
    """Topic table of scans; not for several threads at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds = np.empty(0, np.int8)
        self._hashes = np.empty(0, np.uint64)
        self._texts = pa.array([], pa.string())
        self._have_copies = np.empty(0, np.bool_)

    @property
    def kinds(self) -> npt.NDArray[np.int8]:
        """(n,) KIND_* of each topic, see KINDS; 0: any other."""
        self._kinds = self._grown(self._kinds, lambda name: KINDS.get(name, kernels.KIND_OTHER))
        return self._kinds

    @property
    def hashes(self) -> Words:
        """(n,) hash of the name of each topic."""
        self._hashes = self._grown(self._hashes, lambda name: hash_text(name.encode()))
        return self._hashes

    @property
    def have_copies(self) -> Mask:
        """(n,) whether each topic has copies of messages of other topics: half messages, retries
        and dead letters, which keep the properties of the message.
        """
        self._have_copies = self._grown(self._have_copies, _has_copies)
        return self._have_copies

    def _grown(
        self, facts: npt.NDArray[Number], fact: Callable[[str], object]
    ) -> npt.NDArray[Number]:
        """Return facts of all topics.

        Args:
            facts: (m,) facts of the first topics.
            fact: Returns the fact of a name.
        """
        new = [fact(self.name(index)) for index in range(facts.size, len(self))]
        return np.concatenate([facts, np.array(new, facts.dtype)]) if new else facts

    @property
    def texts(self) -> pa.Array:
        """(n,) name of each topic."""
        new = range(len(self._texts), len(self))
        if new:
            names = pa.array([self.name(index) for index in new], pa.string())
            self._texts = pa.concat_arrays([self._texts, names])
        return self._texts


def _has_copies(name: str) -> bool:
    return name in HALVES or name.startswith(COPY_PREFIXES)
