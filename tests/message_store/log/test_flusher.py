"""The flusher thread when opening or syncing a file fails."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from message_store.log.flusher import Flusher, sync_files
from message_store.queues.consume_queue import FileCache


@dataclass
class FailingFile:
    """A log file whose first syncs fail."""

    failures: list[int]
    base: int = 0
    size: int = 1_000

    def sync(self) -> None:
        if self.failures:
            raise OSError(self.failures.pop(0), "no")


@dataclass
class Flushed:
    failures: list[int]
    failed: list[OSError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file: Any = FailingFile(self.failures)

    def flusher(self, after_flush: Callable[[int], None] = lambda end: None) -> Flusher:
        log: Any = SimpleNamespace(files_from=lambda offset: [self.file], end=10)
        return Flusher(
            log,
            durable=0,
            interval_s=0.01,
            after_flush=after_flush,
            on_failure=self.failed.append,
        )


@pytest.mark.finding("A6")
@pytest.mark.parametrize("failures", [1, 40])
def test_missing_descriptors_are_no_disk_failure(failures: int) -> None:
    async def steps() -> None:
        rig = Flushed([errno.EMFILE] * failures)
        flusher = rig.flusher()
        flusher.start()
        assert await flusher.wait(10, 60)
        assert (flusher.durable, flusher.failure, rig.failed) == (10, None, [])
        flusher.stop()

    asyncio.run(steps())


def test_a_sync_in_the_turn_of_the_timeout_is_in_time() -> None:
    """The loop was late: it learns of the sync after it has ended the wait."""

    async def steps() -> None:
        flusher = Flushed([]).flusher()
        asyncio.get_running_loop().call_soon(flusher.flush)
        assert await flusher.wait(10, 0)
        assert not await flusher.wait(11, 0)

    asyncio.run(steps())


def test_a_failure_of_the_disk_ends_the_flusher() -> None:
    async def steps() -> None:
        rig = Flushed([errno.EIO])
        flusher = rig.flusher()
        flusher.start()
        assert not await flusher.wait(10, 60)
        flusher.stop()
        assert flusher.failure is not None
        assert rig.failed == [flusher.failure]

    asyncio.run(steps())


@pytest.mark.finding("A6")
def test_queue_files_that_failed_to_open_are_synced_later(tmp_path: Any) -> None:
    files = FileCache()
    (tmp_path / "a file").touch()
    below = str(tmp_path / "a file" / "below")
    for path in (below, str(tmp_path / "gone")):
        files.mark_dirty(path)
    with pytest.raises(NotADirectoryError):
        sync_files(files)
    assert below in files.take_dirty()


def test_syncs_of_two_threads_never_overlap() -> None:
    """The kernel reports lost pages to only one of them; the other would confirm lost data."""
    rig = Flushed([])
    flusher = rig.flusher()
    entered, failed = threading.Event(), threading.Event()

    def sync() -> None:
        if threading.current_thread() is threading.main_thread():
            failed.set()
            raise OSError(errno.EIO, "no")
        entered.set()
        if failed.wait(0.1):
            outcome.append("the other thread met the error meanwhile")

    outcome: list[str] = []
    rig.file.sync = sync
    other = threading.Thread(target=flusher.flush)
    other.start()
    entered.wait()
    with pytest.raises(OSError, match="no"):
        flusher.flush()
    other.join()
    assert outcome == []


def test_any_end_of_the_flusher_is_reported() -> None:
    async def steps() -> None:
        def fail(end: int) -> None:
            raise MemoryError

        rig = Flushed([])
        flusher = rig.flusher(fail)
        flusher.start()
        flusher.stop()
        assert "MemoryError" in str(flusher.failure)
        assert rig.failed == [flusher.failure]
        assert not await flusher.request(20)

    asyncio.run(steps())
