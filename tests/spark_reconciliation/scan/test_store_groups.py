"""Stores of one group are found by their records."""

from __future__ import annotations

import shutil
from pathlib import Path

from spark_reconciliation.scan.store_groups import StoreGroup, grouped_stores
from tests.support.stores import open_store, put_one

FILE_BYTES = 4_096


def written(home: Path, count: int, body: bytes = b"body") -> str:
    """Write a store with a number of messages; return its path."""
    with open_store(home, commitlog_file_bytes=FILE_BYTES, message_bytes_max=1_000) as store:
        for _ in range(count):
            put_one(store, "T", body=body)
    return str(home)


def test_a_replica_belongs_to_its_master_and_the_longest_log_is_audited(tmp_path: Path) -> None:
    master = written(tmp_path / "master", 30)
    replica, other = str(tmp_path / "replica"), written(tmp_path / "other", 3, b"bodY")
    shutil.copytree(master, replica)
    assert grouped_stores([master, replica]) == [StoreGroup(master, (replica,))]
    written(Path(replica), 1)
    expected = [StoreGroup(replica, (master,)), StoreGroup(other)]
    assert grouped_stores([master, other, replica]) == expected


def test_a_replica_may_lack_the_first_files(tmp_path: Path) -> None:
    master = written(tmp_path / "master", 60)
    replica = str(tmp_path / "replica")
    shutil.copytree(master, replica)
    first, *others = sorted((tmp_path / "replica" / "commitlog").iterdir())
    assert others
    first.unlink()
    assert grouped_stores([master, replica]) == [StoreGroup(master, (replica,))]
    assert grouped_stores([replica, master]) == [StoreGroup(replica, (master,))]


def test_stores_without_common_records_are_alone(tmp_path: Path) -> None:
    full, empty = written(tmp_path / "full", 60), written(tmp_path / "empty", 0)
    late = str(tmp_path / "late")
    shutil.copytree(full, late)
    files = sorted((tmp_path / "late" / "commitlog").iterdir())
    for path in files[:-1]:
        path.unlink()
    early = str(tmp_path / "early")
    shutil.copytree(full, early)
    for path in sorted((tmp_path / "early" / "commitlog").iterdir())[1:]:
        path.unlink()
    paths = [empty, early, late]
    assert grouped_stores(paths) == [StoreGroup(path) for path in paths]
    assert grouped_stores([full, full]) == [StoreGroup(full)]
