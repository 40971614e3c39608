"""Rows as Parquet files, in a folder for each value of some columns, as Spark writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

import pyarrow as pa

from duemq_common.errors import UsageError

DONE_FILE = "_SUCCESS"


class ParquetFolders:
    """Writer of a frame's rows."""

    def __init__(self, load: Callable[[], pa.Table], names: Sequence[str] = ()) -> None:
        self._load, self._names = load, list(names)

    def partitionBy(self, *names: str) -> ParquetFolders:
        return ParquetFolders(self._load, names)

    def parquet(self, path: str) -> None:
        """Write the rows; DONE_FILE at the end shows that they are complete.

        Raises:
            UsageError: There are files at the path.
        """
        import fsspec
        from pyarrow import parquet

        system, folder = fsspec.core.url_to_fs(path)
        if system.find(folder):
            raise UsageError(f"{path} exists: name a new directory")
        name = f"part-{{i}}-{uuid4()}.parquet"
        parquet.write_to_dataset(
            self._load(), folder, self._names or None, basename_template=name, filesystem=system
        )
        with system.open(f"{folder}/{DONE_FILE}", "wb"):
            pass
