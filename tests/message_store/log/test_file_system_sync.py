"""Many queue files are synced at once, and one by one if that fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from message_store.log import file_system_sync, flusher
from message_store.log.file_system_sync import FileSystem
from message_store.log.flusher import sync_files
from message_store.queues.consume_queue import FileCache
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.topic_table import TopicTable


@pytest.mark.parametrize(
    ("files", "syncfs_result", "single_syncs"), [(2, 0, 2), (3, 0, 0), (3, -1, 3), (3, None, 3)]
)
def test_from_many_files_on_the_file_system_is_synced(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    files: int,
    syncfs_result: int | None,
    single_syncs: int,
) -> None:
    single, cache = list[int](), FileCache()
    cache.file_system.open(tmp_path)
    syncfs = None if syncfs_result is None else lambda fd: syncfs_result
    monkeypatch.setattr(file_system_sync, "syncfs_function", lambda: syncfs)
    monkeypatch.setattr(flusher, "MANY_FILES", 3)
    monkeypatch.setattr(os, "fdatasync", single.append)
    for number in range(files):
        (tmp_path / str(number)).touch()
        cache.mark_dirty(str(tmp_path / str(number)))
    sync_files(cache)
    assert len(single) == single_syncs
    assert not cache.take_dirty()
    cache.close()


def test_removed_files_need_no_sync_and_those_of_another_file_system_one_of_their_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "present").touch()
    paths = [str(tmp_path / name) for name in ("removed", "present")]
    files = FileSystem()
    assert not files.sync(paths)  # failures before the first open would be missed
    files.open(tmp_path)
    assert files.sync(paths) is (file_system_sync.syncfs_function() is not None)
    assert not files.sync([*paths, "/proc"])
    files.close()


def test_a_store_receives_the_failures_of_its_file_system_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()
    monkeypatch.setattr(file_system_sync, "syncfs_function", lambda: calls.append)
    queues = QueueSet(tmp_path / "consumequeue", 6_000, TopicTable(), Deletions(tmp_path / "d"))
    queues.load()
    queues.files.file_system.sync([])
    queues.close()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("release", "reports"),
    [("6.18.44-generic", True), ("5.8.0", True), ("5.7.19-rc1", False), ("4.19", False)],
)
def test_kernels_before_5_8_report_no_failures(release: str, reports: bool) -> None:
    assert (file_system_sync.kernel_version(release) >= file_system_sync.REPORTS_SINCE) is reports
