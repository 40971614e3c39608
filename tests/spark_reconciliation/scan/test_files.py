"""The same store on the local disk and through fsspec."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.tables import TABLES
from tests.support.golden_stores import copy_golden_store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return copy_golden_store("apache-5.3.3-clean", tmp_path)


@pytest.fixture
def remote(store: Path) -> Iterator[str]:
    """Return the store in the memory file system."""
    system: Any = fsspec.filesystem("memory")
    system.put(str(store), "/audit/store", recursive=True)
    yield "memory://audit/store"
    system.rm("/audit", recursive=True)


def rows(path: str, table: str) -> list[Any]:
    names = [name for name, _ in TABLES[table] if name != "store"]
    reader = TableReader(
        parse_options({"path": path, "table": table, "partitionBytes": "20000"}), names
    )
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


@pytest.mark.parametrize("table", TABLES)
def test_a_url_gives_the_same_rows(store: Path, remote: str, table: str) -> None:
    assert rows(remote, table) == rows(str(store), table)


def test_a_missing_store_has_no_files(tmp_path: Path, remote: str) -> None:
    for root in (Root(str(tmp_path)), Root(f"file://{tmp_path}"), Root(remote)):
        assert root.files("nothing") == []
        assert root.folders("nothing") == []
        assert root.small_file("config/nothing.json") is None


def test_without_fsspec_a_url_is_refused_with_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(UsageError, match="fsspec is not installed"):
        Root("s3://bucket/store").files("commitlog")


def test_a_file_url_is_local(store: Path) -> None:
    shutil.rmtree(store / "index")
    assert rows(f"file://{store}", "cursors") == rows(str(store), "cursors")


def test_zeros_without_blocks_at_the_end_of_a_file_are_not_data(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / "0").open("wb") as file:
        file.write(b"x" * 5_000)
        file.seek(1 << 20)
        file.write(b"y")
        file.truncate(1 << 24)
    root = Root(str(tmp_path))
    [entry] = root.files("commitlog")
    assert (1 << 20) < root.data_end(entry, 0) <= (1 << 20) + (1 << 17)
    end = root.data_end(entry, 0)
    assert root.data_end(entry, end) == end, "no data follows"
