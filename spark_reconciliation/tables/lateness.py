"""Rows of `lateness`: percentiles of the deliveries of each topic and minute.

A step computes the hours again in which it, or a step that it replaces, has deliveries. One file
has one hour of a broker, so a newer one replaces it by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_reconciliation.tables.output import (
    DAY_MS,
    TIME_MS_MAX,
    StagedFile,
    day_of,
    files_of_broker,
    staging_of,
    sync_folders,
)
from spark_reconciliation.tables.schemas import DAY, TABLES

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
READ: Final = ("topic", "delivered_ms", "late_ms")
PER_MILLE: Final = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999, "max_ms": 1_000}


def lateness_rows(broker: str, delivered: pa.Table) -> pa.Table:
    """Return the rows of `lateness` for deliveries; those without a promised time do not count."""
    schema = TABLES["lateness"].arrow
    delivered = delivered.filter(pc.is_valid(delivered.column("late_ms")))
    if not delivered.num_rows:
        return schema.empty_table()
    topics = delivered.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    minutes = delivered.column("delivered_ms").to_numpy() // MINUTE_MS
    late_ms = delivered.column("late_ms").to_numpy()
    order = np.lexsort((late_ms, codes, minutes))
    codes, minutes, late_ms = codes[order], minutes[order], late_ms[order]
    is_first = (codes[1:] != codes[:-1]) | (minutes[1:] != minutes[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(is_first) + 1))
    sizes = np.diff(np.append(firsts, codes.size))
    early = np.add.reduceat((late_ms < 0).astype(np.int64), firsts)
    deliveries = sizes - early
    columns = {
        "broker": pa.repeat(pa.scalar(broker), firsts.size),
        "topic": topics.dictionary.take(pa.array(codes[firsts])),
        "minute_ms": pa.array(minutes[firsts] * MINUTE_MS),
        "deliveries": pa.array(deliveries),
        "early": pa.array(early),
    }
    for name, per_mille in PER_MILLE.items():  # nearest rank
        ranks = np.maximum(-(-deliveries * per_mille // 1_000) - 1, 0)
        values = late_ms[np.minimum(firsts + early + ranks, codes.size - 1)]
        columns[name] = pa.array(values, mask=deliveries == 0)
    return pa.table([columns[field.name] for field in schema], schema=schema)


def hours_of(batch: pa.RecordBatch) -> set[int]:
    """Return the hours of rows of `delivered`, as numbers since the epoch."""
    times = np.clip(batch.column("delivered_ms").to_numpy(), 0, TIME_MS_MAX)
    return set(np.unique(times // HOUR_MS).tolist())


def hours_of_files(files: Iterable[Path]) -> set[int]:
    """Return the hours of files of `delivered`."""
    hours: set[int] = set()
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(columns=["delivered_ms"]):
            hours |= hours_of(batch)
    return hours


def stage_lateness(
    out: Path, broker: str, index: int, hours: Iterable[int], dropped: frozenset[int]
) -> int:
    """Write the hours into `staging`, to the disk; return the number of rows.

    Raises:
        OSError: The disk is full, or cannot be written.
    """
    count, folders, staging = 0, set[Path](), staging_of(out)
    for hour in sorted(hours):
        day = day_of(hour * HOUR_MS // DAY_MS)
        staged = (staging / "delivered" / f"{DAY}={day}").glob("*.parquet")
        files = [*files_of_broker(out, "delivered", index, dropped, day=day), *sorted(staged)]
        rows = lateness_rows(broker, _deliveries(files, hour))
        name = f"b{index}-h{hour % 24:02d}.parquet"
        path = staging / "lateness" / f"{DAY}={day}" / name
        file = StagedFile(path, rows.schema)
        for batch in rows.to_batches():
            file.add(batch)
        file.close()
        folders.add(path.parent)
        count += rows.num_rows
    sync_folders(folders, staging.parent)
    return count


def _deliveries(files: Sequence[Path], hour: int) -> pa.Table:
    """Return the deliveries of an hour; times out of range belong to the first or the last."""
    times, begin_ms = ds.field("delivered_ms"), hour * HOUR_MS
    selected = (times < begin_ms + HOUR_MS) if hour == 0 else (times >= begin_ms)
    if 0 < hour < TIME_MS_MAX // HOUR_MS:
        selected &= times < begin_ms + HOUR_MS
    schema = TABLES["delivered"].arrow
    source = ds.dataset([str(path) for path in files], schema=schema, format="parquet")
    return source.to_table(columns=list(READ), filter=selected)
