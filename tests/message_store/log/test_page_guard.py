"""The page guard: unreadable pages become zeros, are recorded, and do not end the process."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from message_store.config import StoreConfig
from message_store.kernels import bus_error
from message_store.log.page_guard import CUT, NOT_WRITTEN, PAGE_BYTES, GuardedMap, page_guard
from tests.support.bad_disk import BadDisk
from tests.test_house_rules import name_of, nodes_of, product_files

PAGES = 16
EIO = "Input/output error"


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BadDisk:
    return BadDisk(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "file"
    found.write_bytes(b"a" * (PAGES * PAGE_BYTES))
    return found


def mapped(path: Path, **more: bool) -> tuple[GuardedMap, int]:
    fd = os.open(path, os.O_RDWR)
    return GuardedMap(path, fd, PAGES * PAGE_BYTES, **more), fd


@pytest.mark.finding("E4")
def test_an_unreadable_page_is_zeroed_and_recorded(disk: BadDisk, path: Path) -> None:
    pages, _ = mapped(path)
    before = pages.replaced[0]
    disk.break_page(path, 2 * PAGE_BYTES)
    disk.break_page(path, 3 * PAGE_BYTES)
    assert pages.data[2 * PAGE_BYTES - 1] == ord("a")
    assert not pages.data[2 * PAGE_BYTES : 4 * PAGE_BYTES].any()
    assert pages.data[4 * PAGE_BYTES] == ord("a")
    assert pages.replaced[0] == before + 2 == pages.update()
    assert pages.unreadable == [(2 * PAGE_BYTES, 4 * PAGE_BYTES)]
    assert pages.reason == EIO
    assert page_guard().pages[-1] == (path, 3 * PAGE_BYTES, EIO)


@pytest.mark.finding("E4")
def test_a_truncated_file_is_zero_after_its_end(path: Path) -> None:
    pages, fd = mapped(path)
    os.ftruncate(fd, PAGE_BYTES)
    assert int(pages.data[-1]) == 0
    pages.update()
    assert pages.unreadable == [((PAGES - 1) * PAGE_BYTES, PAGES * PAGE_BYTES)]
    assert pages.reason == CUT


@pytest.mark.finding("E7")
def test_a_page_that_becomes_readable_is_mapped_again(disk: BadDisk, path: Path) -> None:
    pages, fd = mapped(path)
    disk.break_page(path, 0, passing=True)
    assert pages.data[0] == 0
    pages.update()
    assert pages.unreadable == []
    os.pwrite(fd, b"new", 0)
    assert bytes(pages.data[:4]) == b"newa"


def test_a_page_written_as_a_whole_is_mapped_again(disk: BadDisk, path: Path) -> None:
    pages, fd = mapped(path)
    for page in (1, 2, 3):
        disk.break_page(path, page * PAGE_BYTES)
        assert pages.data[page * PAGE_BYTES] == 0
    os.pwritev(fd, [b"b" * (PAGE_BYTES + 10)], 2 * PAGE_BYTES)
    pages.written(2 * PAGE_BYTES, PAGE_BYTES + 10)
    assert pages.data[2 * PAGE_BYTES] == ord("b")
    assert pages.unreadable == [(PAGE_BYTES, 2 * PAGE_BYTES), (3 * PAGE_BYTES, 4 * PAGE_BYTES)]


@pytest.mark.finding("E7")
@pytest.mark.parametrize(("value", "lost"), [(0, False), (7, True)])
def test_a_partial_write_to_a_replaced_page_is_lost(
    disk: BadDisk, path: Path, value: int, lost: bool
) -> None:
    pages, _ = mapped(path, writable=True)
    disk.break_page(path, 0, passing=True)
    pages.data[5] = value
    pages.update()
    assert (pages.reason == NOT_WRITTEN) == lost == bool(pages.unreadable)
    assert pages.data[0] == (0 if lost else ord("a"))


def test_a_file_without_a_descriptor_is_reopened(disk: BadDisk, path: Path) -> None:
    pages, fd = mapped(path)
    pages.forget_file()
    os.close(fd)
    disk.break_page(path, 0, passing=True)
    disk.break_page(path, PAGE_BYTES)
    assert not pages.data[: 2 * PAGE_BYTES].any()
    pages.update()
    assert pages.unreadable == [(PAGE_BYTES, 2 * PAGE_BYTES)]
    assert pages.data[0] == ord("a")


def test_threads_fault_on_the_same_pages(disk: BadDisk, path: Path) -> None:
    pages, _ = mapped(path)
    for page in range(0, PAGES, 2):
        disk.break_page(path, page * PAGE_BYTES)
    sums = np.zeros(8, np.int64)

    def add_up(number: int) -> None:
        sums[number] = pages.data.sum()

    threads = [threading.Thread(target=add_up, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages.update()
    assert set(sums.tolist()) == {PAGES // 2 * PAGE_BYTES * ord("a")}
    assert len(pages.unreadable) == PAGES // 2


def test_a_page_is_recorded_before_it_is_zeroed() -> None:
    """A thread that reads the zeros must be able to see that the page was replaced."""
    code = str(bus_error._module(0, 0))
    handler = code[code.index("define") :]
    assert 0 < handler.index("atomicrmw") < handler.index('@"mmap"') < handler.rindex("store i64")


def test_pages_after_one_that_is_not_recorded_yet_are_read_again(
    disk: BadDisk, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of another thread has counted its page, and waits for `mmap`."""
    pages, _ = mapped(path)
    guard = page_guard()
    guard.update()
    slot = bus_error.RING + guard.replaced[0] % bus_error.RING_SIZE
    guard.replaced[0] += 1
    disk.break_page(path, PAGE_BYTES, passing=True)
    assert pages.data[PAGE_BYTES] == 0

    def record(seconds: float) -> None:
        guard.words[slot] = pages.mapping.first

    monkeypatch.setattr("message_store.log.page_guard.time.sleep", record)
    assert pages.update() == guard.replaced[0]
    assert pages.data[PAGE_BYTES] == ord("a")


@pytest.mark.extended
def test_all_pages_of_a_large_log_file_fail(disk: BadDisk, tmp_path: Path) -> None:
    """The whole disk fails while one call reads a file.

    The file stays whole, because a collection of garbage may classify the pages at any time.
    """
    assert StoreConfig().commitlog_file_bytes < bus_error.RING_SIZE * PAGE_BYTES
    size = 70_000 * PAGE_BYTES
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, size)
    fd = os.open(path, os.O_RDWR)
    pages = GuardedMap(path, fd, size)
    disk.break_mappings(path)
    before = pages.replaced[0]
    assert not pages.data[::PAGE_BYTES].any()
    assert pages.replaced[0] == before + size // PAGE_BYTES == pages.update()
    assert pages.unreadable == []
    os.pwrite(fd, b"first", 0)
    os.pwrite(fd, b"last", size - 4)
    assert (bytes(pages.data[:5]), bytes(pages.data[-4:])) == (b"first", b"last")
    os.close(fd)


def test_a_closed_mapping_is_not_guarded(path: Path) -> None:
    guarded = page_guard().mappings
    pages, _ = mapped(path)
    mapping, view = pages.mapping, pages.data[:1]
    del pages
    gc.collect()
    assert mapping in guarded.values()
    del view
    gc.collect()
    assert mapping not in guarded.values()


def test_other_faults_end_the_process(path: Path) -> None:
    script = (
        "import mmap, os, sys\n"
        "from pathlib import Path\n"
        "from message_store.log.page_guard import GuardedMap\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "ours = GuardedMap(Path(sys.argv[1]), fd, 8192)\n"
        "other = mmap.mmap(fd, 8192)\n"
        "os.ftruncate(fd, 0)\n"
        "assert ours.data[0] == 0\n"
        "os.write(1, b'ours is read')\n"
        "other[0]\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=root, capture_output=True, check=False
    )
    assert done.stdout == b"ours is read", done.stderr
    assert done.returncode == -7


@pytest.mark.finding("E7")
def test_all_files_are_mapped_with_a_guard() -> None:
    texts = {name_of(path): path.read_text() for path in product_files()}
    found = {
        name
        for name, text in texts.items()
        if "mmap" in text or "memmap" in text
        for node in nodes_of(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("mmap", "memmap")
        and not (node.args and ast.unparse(node.args[0]) == "-1")  # anonymous memory
    }
    assert found == {"message_store/log/page_guard.py"}
