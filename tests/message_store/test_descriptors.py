"""The reserve of file descriptors, with a simulated limit."""

from __future__ import annotations

import errno
import gc
import os

import pytest

from message_store.descriptors import DescriptorReserve, headroom
from message_store.queues.consume_queue import FileCache

pytestmark = pytest.mark.finding("A6")


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_work_gets_the_descriptors_of_the_reserve(code: int) -> None:
    reserve = DescriptorReserve(4)
    calls: list[int] = []

    def work() -> str:
        calls.append(len(reserve))
        if len(reserve):
            raise OSError(code, "too many")
        return "done"

    assert reserve.run(work) == "done"
    assert calls == [4, 0]
    assert len(reserve) == 4
    reserve.close()
    assert len(reserve) == 0


def test_other_errors_are_raised_at_once() -> None:
    reserve, calls = DescriptorReserve(2), []

    def work() -> None:
        calls.append(1)
        raise OSError(errno.EIO, "the disk")

    with pytest.raises(OSError, match="the disk"):
        reserve.run(work)
    assert (len(calls), len(reserve)) == (1, 2)
    reserve.close()


def test_an_insufficient_reserve_raises_the_original_error() -> None:
    reserve = DescriptorReserve(2)

    def work() -> None:
        raise OSError(errno.EMFILE, "too many")

    with pytest.raises(OSError, match="too many"):
        reserve.run(work)
    reserve.close()


def test_the_cache_of_queue_files_closes_one_for_a_new_one(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FileCache()
    for name in "abc":
        files.get(f"{tmp_path}/{name}", 100)
    real, failures = os.open, [errno.EMFILE, errno.EMFILE]

    def fail(path: str, flags: int, mode: int = 0o777) -> int:
        if failures:
            raise OSError(failures.pop(), "too many")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", fail)
    assert files.get(f"{tmp_path}/d", 100) >= 0
    assert files.get(f"{tmp_path}/a") >= 0
    files.close()


@pytest.mark.parametrize(("limit", "left"), [(256, 128), (1_024, 512), (1 << 20, 1_024)])
def test_half_of_few_descriptors_are_for_files(limit: int, left: int) -> None:
    assert headroom(limit) == left


def test_a_reserve_is_closed_with_its_owner() -> None:
    gc.collect()  # no descriptor of earlier tests is closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    reserve = DescriptorReserve(3)
    reserve.run(lambda: None)
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del reserve
    assert len(os.listdir("/proc/self/fd")) == before
