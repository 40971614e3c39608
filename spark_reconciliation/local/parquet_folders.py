"""Rows as Parquet files, in a folder for each value of some columns, as Spark writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

import pyarrow as pa

from duemq_common.disk_errors import naming
from duemq_common.errors import UsageError

DONE_FILE = "_SUCCESS"
UNFINISHED = "_temporary"
"""Folder for files that readers of Parquet ignore, as in Spark's output."""


class ParquetFolders:
    """Writer of a frame's rows."""

    def __init__(self, load: Callable[[], pa.Table], names: Sequence[str] = ()) -> None:
        self._load, self._names = load, list(names)

    def partitionBy(self, *names: str) -> ParquetFolders:
        return ParquetFolders(self._load, names)

    def parquet(self, path: str) -> None:
        """Write the rows; they are visible once all are written. DONE_FILE is the last file.

        Raises:
            UsageError: There are files at the path.
            OSError: The disk is full, or cannot be written.
        """
        import fsspec
        from pyarrow import parquet

        system, folder = fsspec.core.url_to_fs(path)
        if system.find(folder):
            raise UsageError(f"{path} exists: name a new directory")
        rows, unfinished = self._load(), f"{folder}/{UNFINISHED}"
        name = f"part-{{i}}-{uuid4()}.parquet"
        try:
            with naming(path):
                parquet.write_to_dataset(
                    rows, unfinished, self._names or None, basename_template=name, filesystem=system
                )
        except OSError:
            system.rm(folder, recursive=True)
            raise
        for written in system.ls(unfinished, detail=False):
            system.mv(written, f"{folder}/{written.rpartition('/')[2]}", recursive=True)
        system.rm(unfinished, recursive=True)
        with system.open(f"{folder}/{DONE_FILE}", "wb"):
            pass
