"""Disk faults under an open store: refused writes, failed syncs and lost files."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_store.layout import PRE_BLANK_SIZE
from message_store.log.batch import PutBatch
from message_store.recovery.checkpoint import Checkpoint
from message_store.store import MessageStore
from tests.support.stores import add_message, crash, open_store, put_one
from tests.support.topic_removal import remove_topic

Write = Callable[..., int]


def full_after(count: int, write: Write) -> Write:
    """Return a `pwritev` that writes `count` bytes and then finds the disk full."""
    left = count

    def limited(fd: int, buffers: list[Any], offset: int) -> int:
        nonlocal left
        data = memoryview(buffers[0])[:left]
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, [data], offset)
        left -= done
        return done

    return limited


def put_five(store: MessageStore) -> PutBatch:
    batch = PutBatch(8)
    for number in range(5):
        add_message(store, batch, "T", body=b"refused %d" % number)
    store.put(batch)
    return batch


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    first, end = store.queue_bounds(topic, 0)
    units = store.units(topic, 0, first, end - first)
    return [store.read_record(int(unit["phys_offset"])).body for unit in units]


def end_store(store: MessageStore, how: str) -> None:
    if how == "killed":
        crash(store)
    else:
        store.__exit__(None, None, None)


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("written", [1, 130, 300, 450])
@pytest.mark.parametrize("later", [0, 1, 2])
def test_refused_records_never_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, written: int, later: int
) -> None:
    """Also records that were completely written before the disk was full."""
    store = open_store(tmp_path)
    store.__enter__()
    put_one(store, "T", body=b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full_after(written, os.pwritev))
        batch = put_five(store)
    assert batch.filled["status"].tolist() == [14] * 5
    store.check_disk()
    after = [b"x" * (number + 1) for number in range(later)]
    for body in after:
        assert put_one(store, "T", body=body)["status"] == 0
    end_store(store, how)
    with open_store(tmp_path) as again:
        assert bodies(again) == [b"before", *after]
        assert put_one(again, "T", body=b"new")["queue_offset"] == 1 + later


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Checkpoint, **times: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    notices: list[str] = []
    store = open_store(tmp_path)
    store.notice = notices.append
    with store, monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "update", full)
        put_one(store, "T", body=b"1")
        store.flush()
        store.flush()
        assert store.writable
        assert put_one(store, "T", body=b"2")["status"] == 0
        patch.undo()
    assert len([text for text in notices if "checkpoint" in text]) == 1
    with open_store(tmp_path) as again:
        assert bodies(again) == [b"1", b"2"]


def test_the_name_of_a_new_log_file_is_synced_before_its_records_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    with open_store(tmp_path) as store:
        put_one(store, "T")
        store.flush()
        assert synced.count(str(tmp_path / "commitlog")) == 1
        store.flush()
        assert synced.count(str(tmp_path / "commitlog")) == 1


def test_a_deleted_topic_stays_deleted_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new queue has only messages put after the deletion."""
    boots = iter([b"1", b"1", b"2"])
    monkeypatch.setattr("message_store.recovery.checkpoint._boot_id", lambda: next(boots))
    with open_store(tmp_path) as store:
        for _ in range(3):
            put_one(store, "Kept")
    store = open_store(tmp_path)
    store.__enter__()
    for number in range(5):
        put_one(store, "T", body=b"old %d" % number)
    store.flush()
    put_one(store, "T", body=b"old, not synced")
    remove_topic(store, "T")
    put_one(store, "T", body=b"new")
    crash(store)
    with open_store(tmp_path) as again:
        assert bodies(again) == [b"new"]
        assert len(bodies(again, "Kept")) == 3


def failing_sync(part: str, failed: list[str]) -> Callable[[int], None]:
    """Return a `fdatasync` that reports lost pages of a kind of file once, as Linux does."""
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if not failed and part in os.readlink(f"/proc/self/fd/{fd}"):
            failed.append(part)
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    return fdatasync


@pytest.mark.finding("A8")
@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("remove_topic", "/commitlog/"),
        ("remove_topic", "/consumequeue/"),
        ("flush", "/commitlog/"),
        ("flush", "/consumequeue/"),
        ("sync_queues", "/consumequeue/"),
    ],
)
def test_every_caller_reports_a_sync_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, part: str
) -> None:
    """The next sync of the file succeeds, so that lost data would be acknowledged."""
    notices: list[str] = []
    store = open_store(tmp_path, flush_disk_type="SYNC_FLUSH", flush_commitlog_interval_ms=100_000)
    store.notice = notices.append
    with store:
        put_one(store, "Other")
        put_one(store, "T", body=b"its pages are lost")
        durable = store.durable_offset
        failed: list[str] = []
        monkeypatch.setattr(os, "fdatasync", failing_sync(part, failed))
        with pytest.raises(OSError, match="Input/output"):
            remove_topic(store, "Other") if call == "remove_topic" else getattr(store, call)()
        assert failed == [part]
        assert not store.writable
        assert "cannot be synced" in store.refusal
        assert put_one(store, "T")["status"] == 14
        if part == "/commitlog/":
            assert store.durable_offset == durable
            assert not asyncio.run(store.wait_durable(store.max_offset))
        if call == "remove_topic":
            assert store.queue_bounds("Other", 0) == (0, 1)
        with pytest.raises(OSError, match="a sync has failed before"):
            store.flush()
    assert len([text for text in notices if "writes are refused" in text]) == 1
    assert store.abort_file.exists
    with open_store(tmp_path) as again:
        assert bodies(again, "T") == [b"its pages are lost"]


@pytest.mark.finding("P:names-of-log-files")
def test_the_name_of_a_log_file_of_a_killed_process_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    store.__enter__()
    put_one(store, "T")
    crash(store)  # perhaps after the creation of the file and before the sync of its directory
    synced: list[str] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    with open_store(tmp_path) as again:
        put_one(again, "T")
        monkeypatch.setattr(os, "fsync", note)
        again.flush()
        assert str(tmp_path / "commitlog") in synced


@pytest.mark.finding("P:names-of-log-files")
def test_names_of_new_queue_files_are_synced_before_they_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing queue file would not be detected while others have more units than recorded."""
    synced: list[str] = []
    sync = os.fdatasync

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    with open_store(tmp_path) as store:
        monkeypatch.setattr(os, "fdatasync", note)
        top = tmp_path / "consumequeue"
        put_one(store, "T", 0)
        store.flush()
        assert {str(top), str(top / "T"), str(top / "T" / "0")} <= {*synced}
        synced.clear()
        put_one(store, "T", 0)
        store.flush()
        assert not {str(top), str(top / "T"), str(top / "T" / "0")} & {*synced}
        for _ in range(60):  # another file of the same queue
            put_one(store, "T", 0)
        store.flush()
        assert str(top / "T" / "0") in synced
        assert str(top / "T") not in synced


@pytest.mark.parametrize("boot", [b"1", b"2"])
@pytest.mark.parametrize("followed", [True, False])
def test_a_record_with_a_hole_is_valid_only_without_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: bytes, followed: bool
) -> None:
    """A page of its body was not on the disk, its neighbours were."""
    boots = iter([b"1", boot])
    monkeypatch.setattr("message_store.recovery.checkpoint._boot_id", lambda: next(boots))
    store = open_store(tmp_path)
    store.__enter__()
    put_one(store, "T", body=b"synced")
    store.flush()
    torn = put_one(store, "T", body=b"torn" * 2_000, properties={"K": "v"})
    if followed:
        put_one(store, "T", body=b"whole", properties={"K": "v"})
    crash(store)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(int(torn["phys_offset"]) + 4_000)
        file.write(bytes(512))
    with open_store(tmp_path) as again:
        assert again.recovered is not None
        kept = again.recovered.damaged == [int(torn["phys_offset"])]
        assert kept == (boot == b"1")
        first, end = again.queue_bounds("T", 0)
        units = again.units("T", 0, first, end - first)
        offsets = units["phys_offset"][units["size"] != PRE_BLANK_SIZE].tolist()
        assert (int(torn["phys_offset"]) in offsets) == kept
        assert len(offsets) == 1 + followed + kept
        assert put_one(again, "T", body=b"next")["status"] == 0


def test_units_lost_in_a_power_cut_are_restored(tmp_path: Path) -> None:
    """A hole in an earlier file is filled; a stale unit behind the end is not restored."""
    store = open_store(tmp_path)
    store.__enter__()
    for number in range(180):  # 50 units per file
        put_one(store, "T", 0, b"%03d" % number)
    crash(store)
    mark = tmp_path / "config" / "duemq.mark"
    mark.unlink()
    files = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    with files[1].open("r+b") as file:
        file.seek(20 * 10)
        file.write(bytes(20 * 3))
    with files[3].open("r+b") as file:
        file.seek(20 * 40)
        file.write((1 << 40).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))
    with open_store(tmp_path) as store:
        assert store.queue_bounds("T", 0) == (0, 180)
        for number in range(180):
            unit = store.units("T", 0, number, 1)[0]
            assert store.read_record(int(unit["phys_offset"])).body == b"%03d" % number
    assert files[3].read_bytes()[20 * 30 :] == bytes(20 * 20)


@pytest.mark.finding("P:abort-is-never-synced")
def test_the_abort_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = set(), os.fsync

    def noted(fd: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with open_store(tmp_path):
        assert {str(tmp_path / "abort"), str(tmp_path)} <= synced
