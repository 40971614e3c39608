"""Rows as Parquet files: all or none after a kill at any step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.local.parquet_folders import ParquetFolders

ROWS = pa.table({"day": ["1", "2", "3"], "value": [7, 8, 9]})
STEPS = [(shutil, "move"), (shutil, "rmtree"), (os, "replace"), (os, "rename")]


class Killed(BaseException):
    """Kill of the process."""


def write(path: Path) -> None:
    ParquetFolders(lambda: ROWS).partitionBy("day").parquet(str(path))


def rows_of(path: Path) -> list[Any]:
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    return sorted(table["value"].to_pylist())


@pytest.mark.parametrize("number", range(4))
def test_a_kill_at_any_step_leaves_all_rows_or_none(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls = tmp_path / "out", list[object]()

    def killing(step: Callable[..., object]) -> Callable[..., object]:
        def killed(*args: Any, **more: Any) -> object:
            calls.append(args)
            if len(calls) > number:
                raise Killed
            return step(*args, **more)

        return killed

    with monkeypatch.context() as patched, suppress(Killed):
        for module, name in STEPS:
            patched.setattr(module, name, killing(getattr(module, name)))
        write(out)
    if out.exists():
        assert rows_of(out) == [7, 8, 9]
        assert (out / "_SUCCESS").exists()
    else:
        write(out)
        assert rows_of(out) == [7, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "remains are removed"


def test_an_empty_directory_is_filled_and_another_one_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write(out)
    assert rows_of(out) == [7, 8, 9]
    with pytest.raises(UsageError, match="exists: name a new directory"):
        write(out)


def test_without_rows(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    ParquetFolders(lambda: ROWS.slice(0, 0)).parquet(str(out))
    assert (out / "_SUCCESS").exists()


def test_a_file_system_without_renames(tmp_path: Path) -> None:
    out = "memory://parquet-folders/out"
    ParquetFolders(lambda: ROWS).partitionBy("day").parquet(out)
    from fsspec.implementations.memory import MemoryFileSystem

    names = sorted(name.rpartition("/out/")[2][:6] for name in MemoryFileSystem().find(out))
    assert names == ["_SUCCE", "day=1/", "day=2/", "day=3/"]
    MemoryFileSystem().rm(out, recursive=True)
