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


def test_nothing_is_synced_at_once_before_failures_are_received(tmp_path: Path) -> None:
    files = FileSystem()
    assert not files.sync()
    files.open(tmp_path)
    assert files.sync() is (file_system_sync.syncfs_function() is not None)
    files.close()


@pytest.mark.parametrize("is_foreign", [False, True])
def test_files_of_another_file_system_are_synced_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_foreign: bool
) -> None:
    single, whole, cache = list[int](), list[int](), FileCache()
    cache.file_system.open(Path("/proc") if is_foreign else tmp_path)
    syncfs = whole.append
    monkeypatch.setattr(file_system_sync, "syncfs_function", lambda: lambda fd: syncfs(fd) or 0)
    monkeypatch.setattr(flusher, "MANY_FILES", 2)
    monkeypatch.setattr(os, "fdatasync", single.append)
    for number in range(3):
        path = str(tmp_path / "queues" / str(number))
        cache.get(path, 4_096)
        cache.mark_dirty(path)
    dirty = cache.take_dirty()
    for path in dirty:
        cache.mark_dirty(path)
    sync_files(cache)
    assert (len(whole), len(single)) == ((0, len(dirty)) if is_foreign else (1, 0))
    cache.close()


def test_a_sync_of_thousands_of_files_looks_at_none_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each system call of the flusher takes the interpreter from the event loop for a while."""
    cache = FileCache()
    cache.file_system.open(tmp_path)
    monkeypatch.setattr(file_system_sync, "syncfs_function", lambda: lambda fd: 0)
    for number in range(1_000):
        cache.mark_dirty(str(tmp_path / str(number)))

    calls = list[str]()

    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: object) -> object:
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "open", "fdatasync"):
        counted(name)
    sync_files(cache)
    monkeypatch.undo()
    cache.close()
    assert calls == []


def test_a_store_receives_the_failures_of_its_file_system_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[int]()
    monkeypatch.setattr(file_system_sync, "syncfs_function", lambda: calls.append)
    queues = QueueSet(tmp_path / "consumequeue", 6_000, TopicTable(), Deletions(tmp_path / "d"))
    queues.load()
    queues.files.file_system.sync()
    queues.close()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("release", "reports"),
    [("6.18.44-generic", True), ("5.8.0", True), ("5.7.19-rc1", False), ("4.19", False)],
)
def test_kernels_before_5_8_report_no_failures(release: str, reports: bool) -> None:
    assert (file_system_sync.kernel_version(release) >= file_system_sync.REPORTS_SINCE) is reports
