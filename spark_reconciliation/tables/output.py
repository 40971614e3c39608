"""Parquet files of one step: written into `staging`, then moved into their tables.

    staging/scheduled/day=2026-11-21/b0-s000007-0.parquet    a kill leaves nothing in the tables
    state: step 7 is committed, its files are being moved    from here on a restart moves the rest
    scheduled/day=2026-11-21/b0-s000007-0.parquet
    state: no files are being moved

Names consist of the broker and the step, so a file is moved once, and the files of a step that is
replaced are found by their names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duemq_common.directories import sync_directory
from spark_reconciliation.tables.schemas import DAY, TABLES
from spark_reconciliation.tables.state import FOLDER

DAY_MS: Final = 86_400_000
TIME_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31
ROWS_OF_GROUP: Final = 131_072
ROWS_OF_FILE: Final = 4_194_304
OPEN_MAX: Final = 16


def day_of(number: int) -> str:
    """Return a day since the epoch as an ISO date."""
    return str(np.datetime64(number, "D"))


def staging_of(out: Path) -> Path:
    """Return the directory for files that are not committed."""
    return out / FOLDER / "staging"


class StagedFile:
    """File that is written, and rows for its next row group."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._schema = path, schema
        self._writer = pq.ParquetWriter(path, schema)
        self._batches: list[pa.RecordBatch] = []
        self._waiting = self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._waiting += batch.num_rows
        self.rows += batch.num_rows
        if self._waiting >= ROWS_OF_GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches, self._waiting = [], 0

    def close(self) -> None:
        """Write all rows to the disk."""
        if self._batches:
            self._flush()
        self._writer.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


class StepFiles:
    """Writer of the files of one step.

    Args:
        out: Directory of the export.
        index: Number of the broker.
        step: Number of the step.
    """

    def __init__(self, out: Path, index: int, step: int) -> None:
        self._staging, self._name = staging_of(out), f"b{index}-s{step:06d}"
        self._files: dict[tuple[str, str], StagedFile] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self.counts: dict[str, int] = dict.fromkeys(TABLES, 0)

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        """Add rows to the files of their days.

        Raises:
            OSError: The disk is full, or cannot be written.
        """
        self.counts[table] += batch.num_rows
        times = batch.column(TABLES[table].time).to_numpy()
        days = np.clip(times, 0, TIME_MS_MAX) // DAY_MS
        values = np.unique(days).tolist()
        for day in values:
            rows = batch if len(values) == 1 else batch.filter(pa.array(days == day))
            self._file(table, day_of(day)).add(rows)

    def add_missing(self, day: str) -> None:
        """Write an empty file for each table without rows, so that each table can be read."""
        with_rows = {table for table, _ in self._numbers}
        for table in TABLES.keys() - with_rows:
            self._file(table, day)

    def _file(self, table: str, day: str) -> StagedFile:
        key = (table, day)
        file = self._files.pop(key, None)
        if file is not None and file.rows >= ROWS_OF_FILE:
            file.close()
            file = None
        if file is None:
            if len(self._files) >= OPEN_MAX:
                self._files.pop(next(iter(self._files))).close()
            number = self._numbers[key] = self._numbers.get(key, -1) + 1
            name = f"{self._name}-{number}.parquet"
            path = self._staging / table / f"{DAY}={day}" / name
            file = StagedFile(path, TABLES[table].arrow)
        self._files[key] = file  # the last one of the dictionary was used last
        return file

    def close(self) -> None:
        """Write all rows to the disk."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._numbers:
            folders = {self._staging / table / f"{DAY}={day}" for table, day in self._numbers}
            sync_folders(folders, self._staging.parent)


def staged_files(out: Path) -> list[Path]:
    """Return the paths of all staged files, relative to the output."""
    staging = staging_of(out)
    return sorted(path.relative_to(staging) for path in staging.glob("*/*/*.parquet"))


def step_files(out: Path, table: str, index: int, steps: Iterable[int]) -> Iterator[Path]:
    """Yield the files of a table that steps of a broker have written."""
    for step in steps:
        yield from sorted((out / table).glob(f"{DAY}=*/b{index}-s{step:06d}-*.parquet"))


def files_of_broker(
    out: Path, table: str, index: int, dropped: frozenset[int], day: str = "*"
) -> list[Path]:
    """Return the published files of a table with rows of a broker, without those of some steps."""
    paths = sorted((out / table).glob(f"{DAY}={day}/b{index}-s*.parquet"))
    return [path for path in paths if int(path.name.split("-")[1][1:]) not in dropped]


def publish(out: Path, index: int, dropped: Iterable[int]) -> None:
    """Move the staged files into their tables, and remove those of the dropped steps.

    Can be repeated after an interruption.

    Raises:
        OSError: A file cannot be moved.
    """
    steps = tuple(dropped)
    for table in TABLES:
        for path in step_files(out, table, index, steps):
            path.unlink()
    folders = set()
    for path in staged_files(out):
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging_of(out) / path, target)
        folders.add(target.parent)
    sync_folders(folders, out)
    clear_staging(out)


def sync_folders(folders: Iterable[Path], top: Path) -> None:
    """Write the names in folders to the disk, and their own names in the folders up to `top`."""
    names = set(folders)
    for folder in tuple(names):
        names.update(each for each in folder.parents if each == top or top in each.parents)
    for folder in sorted(names, reverse=True):  # files before the folders that name them
        sync_directory(folder)


def clear_staging(out: Path) -> None:
    """Remove the files of a step that was not committed."""
    shutil.rmtree(staging_of(out), ignore_errors=True)
