"""Promises of records that retention has removed from the log, read from the exported tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_reconciliation.arrays import Numbers
from spark_reconciliation.tables.due_times import numbers
from spark_reconciliation.tables.output import files_of_broker
from spark_reconciliation.tables.promises import Promised

LOADED_MAX: Final = 16
"""Maximum files in memory, of at most `output.ROWS_OF_FILE` rows with 24 bytes."""


@dataclass(frozen=True, slots=True)
class _ExportedRows:
    """Rows of a file, by sorted log offset."""

    offsets: Numbers
    promised: Promised


@dataclass(frozen=True, slots=True)
class _ExportedFile:
    """File of `scheduled` or `decisions`: its path, and its first and last log offset."""

    path: Path
    low: int
    high: int

    @classmethod
    def of_path(cls, path: Path) -> _ExportedFile | None:
        """Read the range of a file; None without rows."""
        metadata = pq.read_metadata(path)
        index = metadata.schema.names.index("log_offset")
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        ranges = [group.column(index).statistics for group in groups if group.num_rows]
        if not ranges:
            return None
        return cls(path, min(one.min for one in ranges), max(one.max for one in ranges))

    def read(self) -> _ExportedRows:
        """Read the rows."""
        is_scheduled = self.path.parent.parent.name == "scheduled"
        root = "log_offset" if is_scheduled else "scheduled_offset"
        columns = ["log_offset", *({root} - {"log_offset"}), "due_ms"]
        table = pq.read_table(self.path, columns=columns, partitioning=None).combine_chunks()
        batch = pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in table.columns], names=table.column_names
        )
        offsets, roots, due_ms = (numbers(batch, name) for name in ("log_offset", root, "due_ms"))
        order = np.argsort(offsets, kind="stable")
        return _ExportedRows(offsets[order], Promised(roots[order], due_ms[order]))


class ExportedPromises:
    """Lookup of the promises of one broker in an output.

    Args:
        dropped: Steps whose files are replaced.
    """

    def __init__(self, out: Path, index: int, dropped: frozenset[int]) -> None:
        self._out, self._index, self._dropped = out, index, dropped
        self._files: Sequence[_ExportedFile] | None = None
        self._loaded: dict[Path, _ExportedRows] = {}

    def find(self, offsets: Numbers) -> Promised:
        """Return the promises of records at (n,) sorted log offsets."""
        made = Promised.unknown(offsets.size)
        for file in self._all_files():
            first, end = np.searchsorted(offsets, (file.low, file.high + 1))
            if first == end:
                continue
            rows = self._rows(file)
            indexes = np.searchsorted(rows.offsets, offsets[first:end])
            indexes = np.minimum(indexes, rows.offsets.size - 1)
            matches = np.flatnonzero(rows.offsets[indexes] == offsets[first:end])
            made.roots[first + matches] = rows.promised.roots[indexes[matches]]
            made.due_ms[first + matches] = rows.promised.due_ms[indexes[matches]]
        return made

    def _all_files(self) -> Sequence[_ExportedFile]:
        if self._files is None:
            paths = [
                path
                for table in ("scheduled", "decisions")
                for path in files_of_broker(self._out, table, self._index, self._dropped)
            ]
            ranges = map(_ExportedFile.of_path, paths)
            self._files = [file for file in ranges if file is not None]
        return self._files

    def _rows(self, file: _ExportedFile) -> _ExportedRows:
        if file.path not in self._loaded:
            if len(self._loaded) >= LOADED_MAX:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[file.path] = file.read()
        return self._loaded[file.path]
