"""Index files on a full disk: space is allocated before a write through a mapping."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store import layout
from message_store.index import index_service
from message_store.index.index_file import IndexFile
from message_store.layout import INDEX_HEADER, INDEX_ITEM
from tests.support.stores import open_store, put_one

ALWAYS = (0, 1 << 60)
SLOTS, ITEMS = 50_000, 200_000


class FullDisk:
    """A posix_fallocate that fails after a number of calls."""

    def __init__(self, patch: pytest.MonkeyPatch, allowed: int) -> None:
        self.allowed, self.calls, self._allocate = allowed, 0, os.posix_fallocate
        patch.setattr(os, "posix_fallocate", self)

    def __call__(self, fd: int, pos: int, size: int) -> None:
        self.calls += 1
        if self.allowed <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.allowed -= 1
        self._allocate(fd, pos, size)


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.finding("A16")
@pytest.mark.parametrize("reopened", [False, True])
def test_no_key_is_written_into_a_hole(tmp_path: Path, reopened: bool) -> None:
    slots_end = INDEX_HEADER.itemsize + SLOTS * 4
    path = tmp_path / "20200101000000000"
    if reopened:  # sparse, as Apache creates it
        path.touch()
        os.truncate(path, slots_end + ITEMS * INDEX_ITEM.itemsize)
    file = IndexFile(path, SLOTS, ITEMS, create=not reopened)
    keys = np.zeros(5_000, layout.KEYED)
    keys["key_hash"] = range(5_000)
    used = 0
    for _ in range(12):
        used += file.put(keys)
        assert allocated(path) >= slots_end + used * INDEX_ITEM.itemsize
    assert used == 60_000


@pytest.mark.finding("A16")
def test_a_disk_full_between_two_keys_loses_and_duplicates_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"index_slots_max": 50, "index_entries_max": 20}
    reported: list[str] = []
    monkeypatch.setattr(
        index_service.logger, "warning", lambda text, *args: reported.append(text % args)
    )
    with open_store(tmp_path, **settings) as store:
        disk = FullDisk(monkeypatch, allowed=3)
        rows = [
            put_one(store, "T", properties={"KEYS": f"a{n} b{n} c{n}"}) for n in range(40)
        ]  # a file becomes full in the middle of a record
        for _ in range(3):
            store.index.catch_up()
        assert store.writable
        assert store.index.lag_bytes > 0
        assert len([text for text in reported if "no room for more keys" in text]) == 1
        disk.allowed = 1_000
        store.index.catch_up()
        assert store.index.lag_bytes == 0
        offsets = np.concatenate(
            [
                np.frombuffer(
                    file.words, INDEX_ITEM, file.header[5], INDEX_HEADER.itemsize + 50 * 4
                )["phys_offset"][1:]
                for file in store.index.indexed()[0]
            ]
        )
        assert offsets.tolist() == [int(row["phys_offset"]) for row in rows for _ in range(3)]
        for number, row in enumerate(rows):
            for letter in "abc":
                found = store.query_keys("T", f"{letter}{number}", 9, *ALWAYS)
                assert found == [row["phys_offset"]]


def test_a_new_file_without_room_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FullDisk(monkeypatch, allowed=0)
    path = tmp_path / "20200101000000000"
    with pytest.raises(OSError, match="No space left"):
        IndexFile(path, SLOTS, ITEMS, create=True)
    assert not path.exists()


def test_a_failed_sync_stops_the_checkpoints_index_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path, index_entries_max=20) as store:
        monkeypatch.setattr(IndexFile, "sync", _refuse)  # also for the index thread
        for number in range(30):
            put_one(store, "T", properties={"KEYS": f"k{number}"})
        store.index.catch_up()
        before = store.index.safe_ms
        store.index.sync()
        monkeypatch.undo()
        for number in range(30):
            put_one(store, "T", properties={"KEYS": f"k{number}"})
        store.index.catch_up()
        store.index.sync()
        assert store.index.safe_ms == before


def _refuse(file: IndexFile) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))
