"""Rows as Parquet files, in a folder for each value of some columns, as Spark writes them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from duemq_common.disk_errors import naming
from duemq_common.errors import UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

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
        """Write the rows. On a local disk all become visible at once; in an object store, DONE_FILE
        is the last file.

        Raises:
            UsageError: There are files at the path.
            OSError: The disk is full, or cannot be written.
        """
        import fsspec
        from fsspec.implementations.local import LocalFileSystem

        system, folder = fsspec.core.url_to_fs(path)
        if system.find(folder):
            raise UsageError(f"{path} exists: name a new directory")
        rows = self._load()
        if isinstance(system, LocalFileSystem):
            with naming(path):
                self._write_at_once(rows, Path(folder), system)
            return
        unfinished = f"{folder}/{UNFINISHED}"
        self._write(rows, unfinished, system)
        for written in system.find(unfinished):  # one by one: S3 has no folders that can be moved
            system.mv(written, folder + written.removeprefix(unfinished))
        with suppress(FileNotFoundError):  # S3 has no empty folder
            system.rm(unfinished, recursive=True)
        with system.open(f"{folder}/{DONE_FILE}", "wb"):
            pass

    def _write_at_once(self, rows: pa.Table, folder: Path, system: AbstractFileSystem) -> None:
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a killed run
        try:
            unfinished.mkdir(parents=True)
            self._write(rows, str(unfinished), system)
            (unfinished / DONE_FILE).touch()
            os.replace(unfinished, folder)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _write(self, rows: pa.Table, folder: str, system: AbstractFileSystem) -> None:
        from pyarrow import parquet

        name = f"part-{{i}}-{uuid4()}.parquet"
        parquet.write_to_dataset(
            rows, folder, self._names or None, basename_template=name, filesystem=system
        )
