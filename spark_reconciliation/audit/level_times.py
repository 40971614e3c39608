"""Possible delays of each level, to detect changed times in queue units.

    unit of level 3   tags code = store time of its record + delay of level 3

DueMQ stores every level table that was in force (config/delayLevels.json). An Apache broker stores
none, and its levels may differ from the default. Therefore some units of each queue are compared
with their records: a delay that many of them have in common is a delay of the level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from duemq_common.errors import UsageError
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import CQ_UNIT, RECORD_HEAD, native_columns
from spark_reconciliation.arrays import Rows
from spark_reconciliation.scan.files import Entry, Root
from spark_reconciliation.scan.levels import DEFAULT_LEVELS_MS, tables_of
from spark_reconciliation.scan.planning import LogPlan, files_of_row
from spark_reconciliation.scan.tables import TIME_MIN

SAMPLE: Final = 64  # units of each queue that are compared
SHARE: Final = 8  # a delay of at least one eighth of the samples is a delay of the level
LEVELS_MAX: Final = 1_000
UNIT_BYTES: Final = CQ_UNIT.itemsize
Delays = Mapping[int, tuple[int, ...]]


def read_delays(root: Root, plan: LogPlan) -> Delays:
    """Return the possible delays of each level, in ms; none for an unknown level.

    Raises:
        OSError: A queue cannot be read.
    """
    queues = [name for name in root.folders(f"consumequeue/{SCHEDULE_TOPIC}") if name.isdigit()]
    sampled = {int(name) + 1: _sample(root, plan, name) for name in queues[:LEVELS_MAX]}
    try:
        tables = tables_of(root)
    except UsageError:
        tables = ()
    return delays_of(sampled, tables or (DEFAULT_LEVELS_MS,), certain=bool(tables))


def delays_of(
    sampled: Mapping[int, Sequence[int]], tables: Sequence[Sequence[int]], *, certain: bool
) -> Delays:
    """Return the delays of levels, derived from samples and tables.

    Args:
        sampled: Level to the delays of some of its messages.
        certain: Whether the tables are the store's own; others need a message that confirms them.
    """
    table_delays = {level: {t[min(level, len(t)) - 1] for t in tables if t} for level in sampled}
    shown = any(
        delay in table_delays[level] for level, delays in sampled.items() for delay in delays
    )
    delays_by_level: dict[int, tuple[int, ...]] = {}
    for level, delays in sampled.items():
        counts = Counter(delays)
        least = max(2, len(delays) // SHARE)
        common = {delay for delay, count in counts.items() if count >= least}
        if not certain and not shown:  # no message confirms the table
            common |= set(counts) if len(counts) == 1 else set()
            delays_by_level[level] = tuple(sorted(common))
        else:
            delays_by_level[level] = tuple(sorted(common | table_delays[level]))
    return delays_by_level


def _sample(root: Root, plan: LogPlan, queue: str) -> list[int]:
    """Return the delays of some messages of a level, spread evenly over its queue."""
    files = files_of_row(root, f"consumequeue/{SCHEDULE_TOPIC}/{queue}")
    files = files if root.is_local else files[-1:]
    units = [unit for entry in files for unit in _units(root, entry, SAMPLE // len(files) + 1)]
    delays = []
    for unit in units:
        stored_ms = _stored_ms(root, plan, int(unit["phys_offset"]), int(unit["size"]))
        if stored_ms is not None and int(unit["tags_code"]) >= TIME_MIN:
            delays.append(int(unit["tags_code"]) - stored_ms)
    return delays


def _units(root: Root, entry: Entry, count: int) -> Rows:
    size = entry.size if root.is_local else min(entry.size, SAMPLE * UNIT_BYTES)
    data = root.read(entry.path, 0, size)
    units = np.frombuffer(data[: data.size // UNIT_BYTES * UNIT_BYTES], CQ_UNIT)
    empty = np.flatnonzero(units["size"] <= 0)
    end = int(empty[0]) if empty.size else units.size
    if not end:
        return units[:0]
    return native_columns(units[np.unique(np.linspace(0, end - 1, count, dtype=np.int64))])


def _stored_ms(root: Root, plan: LogPlan, position: int, size: int) -> int | None:
    """Return the store time of the record that a unit points at, None without a record."""
    data = plan.read(root, position, RECORD_HEAD.itemsize)
    if data.size < RECORD_HEAD.itemsize:
        return None
    head = np.frombuffer(data, RECORD_HEAD)[0]
    if int(head["total_size"]) != size or int(head["phys_offset"]) != position:
        return None
    return int(np.clip(head["store_ms"], 0, 10**18))
