"""The key index across restarts, kills at any write, power cuts, damaged files and clock steps."""

from __future__ import annotations

import builtins
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import CorruptStore
from message_store import layout
from message_store.kernels import index as kernels
from message_store.verify import verify_store
from tests.support.golden_stores import (
    copy_golden_store,
)
from tests.support.naive_index import (
    ALWAYS,
    T0,
    contents,
    header_of,
    log_end,
    put_keys_of,
    service,
)
from tests.support.stores import open_store

# -- restarts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [2, 3, 4, 7, 200])
def test_restarts_change_no_byte(tmp_path: Path, items: int) -> None:
    once, often = tmp_path / "once", tmp_path / "often"
    with open_store(once, index_entries_max=items) as store:
        for start in range(0, 40, 5):
            put_keys_of(store, range(start, start + 5))
    for start in range(0, 40, 5):
        with open_store(often, index_entries_max=items) as store:
            put_keys_of(store, range(start, start + 5))
    assert contents(often) == contents(once)
    report = verify_store(often)
    assert report.ok, [str(found) for found in report.findings]
    assert report.figures["keys_missing"] == 0


def test_a_kill_between_two_writes_loses_no_key() -> None:
    """The kernel's writes up to a point are applied, then the current record is put again."""
    slots, items = 3, 100
    keys = np.zeros(12, layout.KEYED)
    keys["key_hash"] = [1, 4, 2, 7, 1, 1, 5, 8, 0, 3, 4, 4]
    keys["phys_offset"] = np.repeat(np.arange(6) * 100, 2)
    keys["store_ms"] = T0
    empty = np.zeros((40 + slots * 4 + items * 20) // 4, np.uint32)
    writes = writes_of(empty, slots, items, keys)
    assert len(writes) > 100
    for stop_after in range(len(writes) + 1):
        words = empty.copy()
        for at, value in writes[:stop_after]:
            words[at] = value
        done = int(header_of(words)[3]) if header_of(words)[1] else -1
        kernels.put_keys(words, slots, items, keys[keys["phys_offset"] > done])
        for key_hash in set(keys["key_hash"].tolist()):
            out = np.zeros(100, np.int64)
            found = out[: kernels.find_key(words, slots, key_hash, ALWAYS, out)].tolist()
            expected = keys["phys_offset"][keys["key_hash"] == key_hash].tolist()
            assert (stop_after, set(found)) == (stop_after, set(expected))


def writes_of(words: Any, slots: int, items: int, keys: Any) -> list[tuple[int, int]]:
    """Return the word writes of `put_keys`, in its order: (index, value)."""
    recorded = RecordingWords(words.copy())
    not_compiled(kernels.put_keys)(recorded, slots, items, keys)
    return recorded.writes


def not_compiled(kernel: Any) -> Any:
    """Return a kernel and all that it calls as Python functions."""
    function = kernel.py_func
    names = {
        name: not_compiled(value) if hasattr(value, "py_func") else value
        for name, value in function.__globals__.items()
        if name in function.__code__.co_names
    }
    return FunctionType(function.__code__, {**names, "__builtins__": builtins})


class RecordingWords:
    """An array that records every write."""

    def __init__(self, words: Any) -> None:
        self.words, self.writes = words, list[tuple[int, int]]()
        self.size = words.size

    def __getitem__(self, at: Any) -> Any:
        return self.words[int(at)]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.words[int(at)] = value
        self.writes.append((int(at), int(value)))


def test_unsynced_items_are_restored_after_a_power_cut(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-running", tmp_path)
    expected = contents(root)
    (root / "checkpoint").write_bytes(bytes(layout.CHECKPOINT_BYTES))
    with service(root, log_end(root), trusted=False):
        pass
    assert contents(root) == expected


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (36, b"\x7f\xff\xff\xff"),  # more items than the file can have
        (36, b"\xff\xff\xff\xff"),
        (24, b"\xff" * 8),  # an end before the log
        (16, b"\x7f" * 8),  # a start behind the end
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_an_impossible_header_is_rebuilt(tmp_path: Path, at: int, data: bytes, which: int) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    expected = contents(root)
    path = sorted((root / "index").iterdir())[which]
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    with service(root, log_end(root)):
        pass
    assert contents(root) == expected


def test_an_incompletely_created_file_is_rebuilt(tmp_path: Path) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    expected = contents(root)
    (root / "index" / "20991231235959999").touch()
    with service(root, log_end(root)):
        pass
    assert contents(root) == expected


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("20261121014352238", 4_239, "maxHashSlotNum"),
        ("notes.txt", 4_240, "not a time"),
        ("7", 4_240, "not a time"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, name: str, size: int, why: str) -> None:
    root = copy_golden_store("apache-4.9.7-clean", tmp_path)
    (root / "index" / name).write_bytes(bytes(size))
    with pytest.raises(CorruptStore, match=why), service(root, 0):
        pass


@pytest.mark.parametrize("back_ms", [1, 1_000, 40 * 365 * 86_400_000])
def test_a_clock_step_back_keeps_the_files_in_order(tmp_path: Path, back_ms: int) -> None:
    clock = FakeClock(T0)
    with open_store(tmp_path, clock, index_entries_max=10) as store:
        put_keys_of(store, range(8))
        store.index.catch_up()
        clock.advance(-back_ms)
        put_keys_of(store, range(8, 24))
        store.index.catch_up()
        files = [file.path.name for file in store.index.indexed()[0]]
        assert files == sorted(files)
        assert all(len(name) == 17 for name in files)
