"""Properties of the rows of a chunk: spans, numbers, levels, and hashes, vectorized."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from spark_reconciliation.arrays import Mask, Numbers, Rows, Words
from spark_reconciliation.kernels import columns as kernels
from spark_reconciliation.scan.hashes import name_table
from spark_reconciliation.scan.record_scan import RecordScan

# Properties that brokers write come first, because they are not part of the message.
BROKERS: Final = (
    "DELAY",
    "DELAy",
    "REAL_TOPIC",
    "REAL_QID",
    "TIMER_OUT_MS",
    "TIMER_DELIVER_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "DUEMQ_DUE_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_ROLL_LABEL",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "WAIT",
    "__CRC32#",
)
NAMES: Final = (*BROKERS, "UNIQ_KEY", "KEYS", "TAGS", "TIMER_DEL_UNIQKEY")
NAME_TABLE: Final = name_table(NAMES)
ABSENT: Final = -(1 << 62)
LEVEL_MAX: Final = 0x7FFFFFFF


class PropertyColumns:
    """Values of the properties in NAMES; each is computed once.

    Args:
        scan: Scan that the rows belong to.
        rows: (n,) SCANNED rows.
        seen: Scratch memory of `kernels.spans`.
    """

    def __init__(self, scan: RecordScan, rows: Rows, seen: Words) -> None:
        self._scan, self._rows, self._seen = scan, rows, seen
        self._starts = rows["phys_offset"] - scan.base
        self._numbers: dict[str, Numbers] = {}

    @cached_property
    def _spans_and_hashes(self) -> tuple[npt.NDArray[np.int32], Words]:
        size, scan = self._rows.size, self._scan
        spans, hashes = np.zeros((len(NAMES), size, 2), np.int32), np.zeros(size, np.uint64)
        kernels.spans(
            scan.data,
            scan.base,
            self._rows,
            NAME_TABLE,
            len(BROKERS),
            self._seen,
            spans,
            hashes,
        )
        return spans, hashes

    def spans(self, name: str) -> npt.NDArray[np.int32]:
        """Return the (n, 2) spans of the values of a property, from each record's start."""
        return np.asarray(self._spans_and_hashes[0][NAMES.index(name)])

    @property
    def own_hashes(self) -> Words:
        """Hash of the properties of each message that brokers do not write."""
        return self._spans_and_hashes[1]

    def has(self, name: str) -> Mask:
        """Return which records have a value of a property."""
        spans = self.spans(name)
        return np.asarray(spans[:, 0] < spans[:, 1])

    def numbers(self, name: str) -> Numbers:
        """Return the values of a property as numbers; ABSENT: none."""
        numbers = self._numbers.get(name)
        if numbers is None:
            numbers = self._numbers[name] = np.full(self._rows.size, ABSENT, np.int64)
            spans = self.spans(name)
            if spans[:, 1].any():
                kernels.numbers(self._scan.data, self._starts, spans, ABSENT, numbers)
        return numbers

    @cached_property
    def tag_codes(self) -> Numbers:
        """Tags codes of the units that records of ordinary topics have."""
        codes, spans = np.zeros(self._rows.size, np.int64), self.spans("TAGS")
        if spans[:, 1].any():
            kernels.tag_codes(self._scan.data, self._starts, spans, codes)
        return codes

    @cached_property
    def levels(self) -> Numbers:
        """DELAY, or else DELAy, as 32-bit numbers; 0 without both."""
        delay, moved = self._level_of("DELAY"), self._level_of("DELAy")
        return np.where(delay != 0, delay, moved)

    def _level_of(self, name: str) -> Numbers:
        values = self.numbers(name)
        if not self.spans(name)[:, 1].any():
            return np.zeros(values.size, np.int64)
        wrong = (np.abs(values) > LEVEL_MAX) & self.has(name)
        return np.where(wrong, -1, np.where(values == ABSENT, 0, values))
