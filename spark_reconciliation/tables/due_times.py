"""Promised times of pending records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from spark_reconciliation.arrays import Numbers
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.tables import TIME_MIN
from timer_store.layout import DUE_MS_MAX

NONE: Final = -(1 << 62)
"""Number of an absent value."""
LEVEL_ROLES: Final = (Role.LEVEL, Role.LEVEL_COPY)
NEEDED: Final = ("role", "store_ms", "level", "due_ms", "out_ms", "unit_ms")
"""Columns of `messages` that `due_times` reads."""


def numbers(batch: pa.RecordBatch, name: str) -> Numbers:
    """Return a column as (n,) i8; NONE for null."""
    column = batch.column(name).cast(pa.int64())
    return np.asarray(column.fill_null(NONE).to_numpy(zero_copy_only=False))


def due_times(batch: pa.RecordBatch, levels_ms: Sequence[int]) -> Numbers:
    """Return the promised times of rows of `messages`; NONE where a timer has no valid time.

    The time of a level message is that of its unit; a record at the end of a running broker's log
    may not have one yet, and gets the time that its level defines. As `audit.keyed_events`.
    """
    role, due_ms = numbers(batch, "role"), numbers(batch, "due_ms")
    is_level = np.isin(role, LEVEL_ROLES)
    if not is_level.any():
        return due_ms
    unit_ms, level = numbers(batch, "unit_ms"), numbers(batch, "level")
    store_ms = np.clip(numbers(batch, "store_ms"), 0, DUE_MS_MAX)
    delays = np.array((0, *levels_ms), np.int64)
    by_level = store_ms + delays[np.clip(level, 0, delays.size - 1)]
    own = np.where((numbers(batch, "out_ms") == NONE) & (due_ms != NONE), due_ms, by_level)
    in_unit = (unit_ms >= TIME_MIN) & (unit_ms <= DUE_MS_MAX)
    return np.where(is_level, np.where(in_unit, unit_ms, own), due_ms)
