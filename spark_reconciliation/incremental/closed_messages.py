"""Closed messages: an audit has counted them, and need not read their records again.

    pending     offset, time_ms, unit         not due: slot of a timer, due time of a level message;
                                              queue and queue offset of the latter, else TIMER
    delivered   offset, delivered, late_ms    delivered once, in time, unchanged
    records     offset                        records of all other messages

`offset` is the log offset of the pending record, or of a record. Rows are columns in Parquet files,
in groups that are sorted by `offset`. Files do not change; a file of the former state whose
messages are all as before is a file of the next one, too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duemq_common.disk_errors import naming
from spark_reconciliation.arrays import Mask, Numbers
from spark_reconciliation.audit.plain_sums import BucketRows
from spark_reconciliation.audit.tally import (
    COUNT_MASK,
    LEVEL,
    PLACE_MAX,
    REMOVED,
    REMOVED_MASK,
    SENT,
)
from spark_reconciliation.incremental.audit_state import TABLES, SavedFile, crc_of

COLUMNS: Final = {
    "pending": ("offset", "time_ms", "unit"),
    "delivered": ("offset", "delivered", "late_ms"),
    "records": ("offset",),
}
TIMER: Final = -1
ROWS_OF_GROUP: Final = 1 << 20
WITHOUT_REMOVED: Final = ~(REMOVED_MASK << REMOVED)


class ColumnFile:
    """Writer of one file; threads may add rows."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._path, self._lock = path, Lock()
        self._schema = pa.schema([(name, pa.int64()) for name in names])
        encodings = dict.fromkeys(names, "DELTA_BINARY_PACKED")
        with naming(path):
            self._writer = pq.ParquetWriter(
                path,
                self._schema,
                use_dictionary=False,
                column_encoding=encodings,
                compression="none",
            )
        self._waiting: list[tuple[Numbers, ...]] = []
        self._rows = self._written = 0

    def add(self, *columns: Numbers) -> None:
        """Add rows: (n,) of each column.

        Raises:
            OSError: The file cannot be written.
        """
        if not columns[0].size:
            return
        with self._lock:
            self._waiting.append(columns)
            self._rows += columns[0].size
            if self._rows >= ROWS_OF_GROUP:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        columns = [np.concatenate(parts) for parts in zip(*self._waiting, strict=True)]
        if (columns[0][1:] < columns[0][:-1]).any():
            order = np.argsort(columns[0])
            columns = [column[order] for column in columns]
        arrays = [pa.array(column) for column in columns]
        with naming(self._path):
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._note(columns)
        self._written += self._rows
        self._waiting, self._rows = [], 0

    def _note(self, columns: Sequence[Numbers]) -> None:
        """Take facts of written rows."""

    def close(self) -> SavedFile:
        """Write all rows to the disk; return the facts of the file.

        Raises:
            OSError: The file cannot be written.
        """
        self._flush()
        with naming(self._path):
            self._writer.close()
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
        crc = crc_of(self._path)
        assert crc is not None
        return self._saved(crc)

    def _saved(self, crc: int) -> SavedFile:
        return SavedFile(crc, self._written)

    def abandon(self) -> None:
        """Remove the file."""
        with suppress(OSError):  # the disk is full
            self._writer.close()
        self._path.unlink(missing_ok=True)


class DeliveredFile(ColumnFile):
    """Writer of delivered messages, with their numbers by lateness."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        super().__init__(path, names)
        self._lowest = PLACE_MAX
        self._late_ms: Counter[int] = Counter()

    def _note(self, columns: Sequence[Numbers]) -> None:
        offset, delivered, late_ms = columns
        self._lowest = min(self._lowest, int(offset.min()), int(delivered.min()))
        self._late_ms.update(counts_of(late_ms))

    def _saved(self, crc: int) -> SavedFile:
        return SavedFile(crc, self._written, self._lowest, dict(self._late_ms))


def counts_of(values: Numbers) -> dict[int, int]:
    """Return the number of times that each value occurs."""
    entries = pa.array(values).value_counts()
    counts = zip(
        entries.field("values").to_pylist(), entries.field("counts").to_pylist(), strict=True
    )
    return dict(counts)


def has_offsets(path: Path, sought: Numbers) -> bool:
    """Return whether a file has one of some ascending log offsets; reads groups that may have one.

    Raises:
        OSError: The file cannot be read.
    """
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            limits = file.metadata.row_group(number).column(0).statistics
            first, end = (
                np.searchsorted(sought, limits.min),
                np.searchsorted(sought, limits.max + 1),
            )
            if first == end:
                continue
            [offset] = file.read_row_group(number, [COLUMNS["delivered"][0]]).columns
            offset = offset.combine_chunks().to_numpy()
            positions = np.searchsorted(offset, sought[first:end])
            if (offset[positions] == sought[first:end]).any():
                return True
    return False


def read_columns(path: Path) -> Iterator[list[Numbers]]:
    """Yield the columns of each group of rows.

    Raises:
        OSError: The file cannot be read.
    """
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            yield [column.combine_chunks().to_numpy() for column in table.columns]


WRITERS: Final = {"delivered": DeliveredFile}


class ClosedFiles:
    """Files of the next state.

    Args:
        number: Number of the audit.
    Attributes:
        pending, delivered, records: Their writers.
    Raises:
        OSError: A file cannot be written; none remains.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._files: dict[str, ColumnFile] = {}
        try:
            for kind in TABLES:
                name = f"{kind}-{number}.parquet"
                writer = WRITERS.get(kind, ColumnFile)
                self._files[name] = writer(folder / name, COLUMNS[kind])
        except OSError:
            (folder / name).unlink(missing_ok=True)
            self.abandon()
            raise
        self._kept: dict[str, SavedFile] = {}
        self.pending, self.delivered, self.records = self._files.values()

    def keep(self, name: str, file: SavedFile) -> None:
        """Add a file of the former state."""
        self._kept[name] = file

    def close(self) -> dict[str, SavedFile]:
        """Write all rows to the disk; return all files by name.

        Raises:
            OSError: A file cannot be written.
        """
        return self._kept | {name: file.close() for name, file in self._files.items()}

    def abandon(self) -> None:
        """Remove the new files."""
        for file in self._files.values():
            file.abandon()


class Closing:
    """Sorter of the messages of an audit: closed ones, and records to read again.

    Args:
        log_min: First log offset.
        covered_end: Log offset before which records were compared with the units of their queues.
    """

    def __init__(self, files: ClosedFiles, log_min: int, covered_end: int) -> None:
        self._files, self._log_min, self._covered_end = files, log_min, covered_end

    def take(self, rows: BucketRows) -> None:
        """Add the messages of one bucket of tallies; threads may call it.

        Raises:
            OSError: The files cannot be written.
        """
        keys, tally, places = rows.records[0], rows.records[1], rows.records[-1]
        is_sent, is_held = tally >> SENT != 0, tally & COUNT_MASK != 0
        message = np.zeros(keys.size, np.int64)
        message[rows.first[1:]] = 1
        message = np.cumsum(message)
        offset = rows.sums[:, 0] & PLACE_MAX
        own = np.zeros((2, offset.size), np.int64)  # places of the pending record, of the delivery
        own[0, message[is_held]], own[1, message[is_sent]] = places[is_held], places[is_sent]
        # its delivery is all that the log has of such a message
        alone = (rows.sums[:, 1] & WITHOUT_REMOVED == 1 << SENT) & (offset < self._log_min)
        delivered = alone | (rows.delivered & (own[1] < self._covered_end))
        late_ms = np.where(alone, 0, rows.sums[:, 4])
        self._files.delivered.add(offset[delivered], own[1, delivered], late_ms[delivered])
        pending = rows.pending & (offset < self._covered_end)
        pending &= self._add_pending(offset, own[0], rows.sums, pending)
        others = ~(delivered | pending)[message]
        offsets = np.where(is_sent, places, keys & PLACE_MAX)
        self._files.records.add(offsets[others & (is_sent | is_held)])

    def _add_pending(self, offset: Numbers, places: Numbers, sums: Numbers, pending: Mask) -> Mask:
        """Add pending messages; return which of all could be added."""
        is_level = sums[:, 1] >> LEVEL & 1 != 0
        closable: Mask = ~is_level | (places >= 0)
        closed = pending & closable
        time_ms = np.where(is_level, -sums[:, 4], places)
        unit = np.where(is_level, places, TIMER)
        self._files.pending.add(offset[closed], time_ms[closed], unit[closed])
        return closable
