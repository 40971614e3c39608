"""Scarce file descriptors, with a simulated limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from message_store.descriptors import headroom
from message_store.queues.consume_queue import FileCache
from message_store.store import SERVICE_NOT_AVAILABLE
from tests.support.stores import open_store, put_one

pytestmark = pytest.mark.finding("A6")


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


def test_a_missing_descriptor_refuses_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with open_store(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store.log, "writable_file", fail)
            refused = put_one(store, "T", 0)
        assert (int(refused["status"]), store.refusal) == (SERVICE_NOT_AVAILABLE, "")
        assert int(put_one(store, "T", 0)["status"]) == 0


@pytest.mark.parametrize(("limit", "left"), [(256, 128), (1_024, 512), (1 << 20, 1_024)])
def test_half_of_few_descriptors_are_for_files(limit: int, left: int) -> None:
    assert headroom(limit) == left
