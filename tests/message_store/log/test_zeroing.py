"""Zeroing of a file range: the size of the file never changes, in crashes and failures."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq_common.errors import StoreFull
from message_store.layout import CQ_UNIT
from message_store.log import zeroing
from message_store.log.zeroing import restored_size, write_zeros, zero_range
from tests.support.sparse_files import copy_used
from tests.support.stores import crash, open_store, put_one

SIZE = 40_000
COUNT = 45


def no_holes(fd: int, start: int, end: int) -> None:
    """Fail like a file system that cannot punch holes."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.fixture(params=["holes", "zeros"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Zero a range with and without holes."""
    if request.param == "zeros":
        monkeypatch.setattr(zeroing, "punch_hole", no_holes)
    return str(request.param)


@pytest.mark.finding("A7")
@pytest.mark.parametrize(
    ("start", "end"),
    [(0, SIZE), (1, SIZE), (4_096, 8_192), (4_095, 8_193), (39_999, SIZE), (7, 7), (SIZE, SIZE)],
)
def test_only_the_range_reads_as_zeros(tmp_path: Path, way: str, start: int, end: int) -> None:
    path = tmp_path / "file"
    data = bytes(range(1, 251)) * (SIZE // 250)
    path.write_bytes(data)
    with path.open("r+b") as file:
        zero_range(file.fileno(), start, end)
    assert path.read_bytes() == data[:start] + bytes(end - start) + data[end:]


def test_zeros_are_not_written_into_holes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w+b") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"data")
        file.flush()
        os.fsync(file.fileno())
        before = os.fstat(file.fileno()).st_blocks
        write_zeros(file.fileno(), 0, 64 << 20)
        assert os.fstat(file.fileno()).st_blocks <= before
        assert os.pread(file.fileno(), 4, 32 << 20) == bytes(4)
        assert os.fstat(file.fileno()).st_size == 64 << 20


@pytest.mark.finding("A7")
@pytest.mark.parametrize(
    ("data", "proven", "size"),
    [
        (b"", False, 0),
        (b"records", False, 1_000),
        (b"records" + bytes(100), False, 107),
        (b"records" + bytes(100), True, 1_000),
        (b"r" * 1_000, True, 1_000),
        (b"r" * 1_001, True, 1_001),
    ],
    ids=["empty", "cut", "another size", "cut behind others", "whole", "longer"],
)
def test_only_a_truncated_file_is_extended(
    tmp_path: Path, data: bytes, proven: bool, size: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert restored_size(path, 1_000, proven=proven) == size == path.stat().st_size
    assert path.read_bytes().rstrip(b"\0") == data.rstrip(b"\0")


# -- a start that dies, or fails, at any step ---------------------------------------------------


class SimulatedCrash(BaseException):
    """The process ends here."""


class Steps:
    """Counts the calls that zero or resize a file, and crashes or fails at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, fault: BaseException, *, after: bool) -> None:
        self.left: int | None = None
        self._fault, self._after = fault, after
        for owner, name in ((os, "ftruncate"), (zeroing, "punch_hole"), (os, "pwrite")):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(fd: int, *values: Any) -> Any:
            mine = threading.current_thread() is threading.main_thread()
            path = os.readlink(f"/proc/self/fd/{fd}")
            if self.left is None or not mine or path.endswith("/lock"):
                return real(fd, *values)
            self.left -= 1
            if self._after and self.left == 0:
                real(fd, *values)
            if self.left == 0 or (self.left < 0 and isinstance(self._fault, OSError)):
                raise self._fault
            return real(fd, *values)

        return counted


FAULTS = pytest.mark.parametrize(
    ("fault", "after"),
    [
        (SimulatedCrash(), False),
        (SimulatedCrash(), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (OSError(errno.EIO, "Input/output error"), False),
    ],
    ids=["killed before", "killed after", "disk full", "disk fails"],
)


def disk_states(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield (step, copy of a store) endlessly."""
    for step in range(1, 1_000):
        copy = root.with_name(f"copy-{step}")
        shutil.copytree(root, copy, copy_function=copy_used)
        yield step, copy
        shutil.rmtree(copy)


def killed_store(root: Path) -> None:
    """Leave a killed store with a torn record behind the log's end and its units in a queue."""
    store = open_store(root)
    store.__enter__()
    for number in range(COUNT):
        put_one(store, "T", 0, b"%d " % number + b"x" * 2_000)
    end, file = store.log.end, store.log.files[-1]
    crash(store)
    with file.path.open("r+b") as torn:
        torn.seek(end - file.base)
        torn.write(b"torn" * 200)
    pos = COUNT * CQ_UNIT.itemsize
    queue = sorted((root / "consumequeue" / "T" / "0").iterdir())[-1]
    with queue.open("r+b") as units:
        units.seek(pos - int(queue.name))
        units.write(bytes(6) + b"\x01" + bytes(4) + b"\x99" + bytes(8))


@pytest.mark.sampled
@pytest.mark.finding("A7", "E1")
@FAULTS
def test_the_store_opens_after_a_start_that_ended_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, fault: BaseException, after: bool
) -> None:
    killed_store(tmp_path / "store")
    steps = Steps(monkeypatch, fault, after=after)
    for step, root in disk_states(tmp_path / "store"):
        steps.left = step
        survived = False
        try:
            with open_store(root):
                survived, steps.left = steps.left > 0, None
        except (SimulatedCrash, OSError, StoreFull):
            pass
        steps.left = None
        with open_store(root) as store:
            assert store.queue_bounds("T", 0) == (0, COUNT)
            assert put_one(store, "T", 0, b"new")["queue_offset"] == COUNT
        assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {65_536}
        if survived:
            assert step > 2
            return
