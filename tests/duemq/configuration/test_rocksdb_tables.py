"""A store with tables in RocksDB is refused; the text names the export."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from duemq.configuration.rocksdb_tables import check_tables
from duemq_common.errors import ConfigError
from tests.support.golden_stores import ROCKSDB_VERSION, copy_golden_store
from tests.support.running_broker import running, small


@pytest.mark.parametrize(
    ("path", "export"),
    [
        ("config/topics", "355"),
        ("config/subscriptionGroups", "355"),
        ("config/consumerOffsets", "355"),
        ("config/metadata", "355"),
        ("kvStore", "200056"),
    ],
)
def test_each_table_is_named_with_its_export(tmp_path: Path, path: str, export: str) -> None:
    check_tables(tmp_path)
    (tmp_path / path).mkdir(parents=True)
    check_tables(tmp_path)  # an empty directory is no RocksDB
    (tmp_path / path / "CURRENT").write_text("MANIFEST-000005\n")
    with pytest.raises(ConfigError, match=export) as refused:
        check_tables(tmp_path)
    assert path in str(refused.value)


@pytest.mark.finding("3C2")
@pytest.mark.parametrize(
    ("store", "export"),
    [
        ("rocksdb", "rocksDBConfigToJson"),
        ("rocksdb-separate", "rocksDBConfigToJson"),
        ("pop-kv", "POP_ROLLBACK"),
    ],
)
def test_a_store_of_apaches_is_refused_before_it_is_changed(
    tmp_path: Path, store: str, export: str
) -> None:
    root = copy_golden_store(f"apache-{ROCKSDB_VERSION}-{store}", tmp_path)
    shutil.copytree(root, tmp_path / "before")
    properties = small(tmp_path) | {"storePathRootDir": str(root)}

    async def main() -> None:
        async with running(properties):
            pass

    with pytest.raises(ConfigError, match=export):
        asyncio.run(main())
    for path in (tmp_path / "before").rglob("*"):
        if path.is_file():
            assert (root / path.relative_to(tmp_path / "before")).read_bytes() == path.read_bytes()
