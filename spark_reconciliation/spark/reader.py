"""Reader of a table as Spark's data sources need it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.scan.options import ScanOptions


class SparkStoreReader(DataSourceReader):
    """Reader of one table; the value of a partition is a `ScanPart`."""

    def __init__(self, options: ScanOptions, columns: Sequence[str]) -> None:
        self._options, self._columns = options, columns

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts.

        Raises:
            UsageError: A path is not a store.
        """
        return [InputPartition(part) for part in self._reader.partitions()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of a part."""
        settle_worker()
        return self._reader.read(partition.value)

    @property
    def _reader(self) -> TableReader:
        return TableReader(self._options, self._columns)


@cache
def settle_worker() -> None:
    """Exclude imported objects from the garbage collection that Spark runs after each task."""
    if "pyspark.worker" in sys.modules:
        gc.collect()
        gc.freeze()
