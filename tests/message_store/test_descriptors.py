"""Scarce file descriptors, with a simulated limit."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from duemq_common.codes import ResponseCode
from message_store.descriptors import QUEUE_FILES_MIN, headroom, queue_files_max
from message_store.queues import consume_queues
from message_store.queues.consume_queue import FileCache
from message_store.queues.consume_queues import QueueSet
from message_store.queues.deleted_topics import Deletions
from message_store.queues.topic_table import TopicTable
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
        assert (int(refused["status"]), store.refusal) == (ResponseCode.SERVICE_NOT_AVAILABLE, "")
        assert int(put_one(store, "T", 0)["status"]) == 0


@pytest.mark.parametrize(
    ("limit", "left", "queue_files"),
    [
        (256, 128, 768),
        (1_024, 512, 768),
        (4_096, 1_024, 768),
        (20_000, 5_000, 3_750),
        (1 << 20, 16_384, 12_288),
    ],
)
def test_part_of_the_descriptors_is_for_files(limit: int, left: int, queue_files: int) -> None:
    assert (headroom(limit), queue_files_max(limit)) == (left, queue_files)


def test_with_many_descriptors_many_queue_files_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queues, "descriptor_limit", lambda: 1 << 16)
    queues = QueueSet(tmp_path, 100, TopicTable(), Deletions(tmp_path / "deleted"))
    paths = [f"{tmp_path}/{number}" for number in range(QUEUE_FILES_MIN + 2)]
    opened = [queues.files.get(path, 100) for path in paths]
    assert len(set(opened)) == len(paths), "none was closed for another one"
    queues.close()
