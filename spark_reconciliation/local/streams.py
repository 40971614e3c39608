"""Rows that are read as they are needed: scans of stores too large for memory.

    parts of a store --threads--> batches --+--> DuckDB, once for each scan of a query
                                            +--> partitions by key, in a temporary file --threads-->

Batches keep the order of their parts. At most READ_AHEAD parts per thread are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import TemporaryFile
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import compute

from spark_reconciliation.local.temporary_folder import naming_folder

READ_AHEAD: Final = 2
SPILL_BYTES: Final = 256 << 20
"""Maximum bytes of rows that `split` has in memory; more are in a temporary file."""
Batches = Iterator[pa.RecordBatch]
Change = Callable[[Batches], Iterable[pa.RecordBatch]]
T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], values: Sequence[T], threads: int) -> Iterator[R]:
    """Yield the results of `work` in the order of the values; one value needs no thread."""
    if len(values) <= 1:
        yield from map(work, values)
        return
    with ThreadPoolExecutor(threads) as pool:
        results: deque[Future[R]] = deque()
        try:
            for value in values:
                if len(results) == READ_AHEAD * threads:
                    yield results.popleft().result()
                results.append(pool.submit(work, value))
            while results:
                yield results.popleft().result()
        finally:  # the reader may stop early
            for result in results:
                result.cancel()


class StreamedRows:
    """Rows that DuckDB reads from their start in each scan."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Batches]) -> None:
        self._schema, self._batches = schema, batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)


def split(batches: Batches, key: str, count: int, change: Change, threads: int) -> Batches:
    """Yield the results of `change` on the rows of each key below `count`.

    Raises:
        OSError: The temporary file cannot be written; the text has the remedy.
    """
    rows = _collected(batches)
    if rows is None:
        return

    def changed(number: int) -> list[pa.RecordBatch]:
        own = rows.filter(compute.equal(rows[key], number))
        return list(change(iter(own.to_batches())))

    for result in in_threads(changed, range(count), threads):
        yield from result


def _collected(batches: Batches) -> pa.Table | None:
    """Return rows as a table, mapped from a temporary file without a name if they are many."""
    first: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        first.append(batch)
        size += batch.nbytes
        if size > SPILL_BYTES:
            return _spilled(first, batches)
    return pa.Table.from_batches(first) if first else None


def _spilled(first: list[pa.RecordBatch], batches: Batches) -> pa.Table:
    with naming_folder(), TemporaryFile() as file:  # its close writes the rest
        with pa.ipc.new_stream(file, first[0].schema) as writer:
            while first:
                writer.write_batch(first.pop(0))
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        return pa.ipc.open_stream(pa.memory_map(f"/dev/fd/{file.fileno()}")).read_all()
