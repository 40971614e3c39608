"""Retention: files it may delete, which never include those of pending messages."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from message_store.log.commit_log import LogFile
from message_store.retention.log_retention import LogFileInfo, Removal, plan_freeing, plan_removal
from message_store.retention.pins import UNKNOWN, Unknown
from message_store.store import MessageStore
from tests.support.raw_connection import WAIT_S
from tests.support.stores import add_message, open_store, put_one, small_config

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
OLD, NEW = NOW_MS - 73 * HOUR_MS, NOW_MS - HOUR_MS


@pytest.mark.parametrize(
    ("rule", "ages", "hour", "disk", "pinned", "durable", "remove"),
    [
        ("nothing outside the hour", [OLD, OLD, OLD], 5, 10, None, 900, 0),
        ("old files at the hour, never the last", [OLD, OLD, OLD], 4, 10, None, 900, 2),
        ("young files stay", [OLD, NEW, NEW], 4, 10, None, 900, 1),
        ("old files at any hour above 75 %", [OLD, NEW, NEW], 5, 76, None, 900, 1),
        ("any file above 85 %", [NEW, NEW, NEW], 5, 86, None, 900, 2),
        ("a pinned file stays at the hour", [OLD, OLD, OLD], 4, 10, 150, 900, 1),
        ("a pinned file stays above 85 %", [NEW, NEW, NEW], 5, 99, 0, 900, 0),
        ("a file that is not on the disk stays", [OLD, OLD, OLD], 4, 10, None, 150, 1),
        ("an unknown pin removes nothing at the hour", [OLD, OLD, OLD], 4, 10, UNKNOWN, 900, 0),
        ("an unknown pin removes nothing above 85 %", [OLD, OLD, OLD], 4, 99, UNKNOWN, 900, 0),
    ],
)
def test_plan(
    rule: str,
    ages: list[int],
    hour: int,
    disk: int,
    pinned: int | Unknown | None,
    durable: int,
    remove: int,
) -> None:
    files = [LogFileInfo(end=(i + 1) * 100, modified_ms=age) for i, age in enumerate(ages)]
    plan = plan_removal(
        files,
        small_config(Path("/x")),
        now_ms=NOW_MS,
        hour=hour,
        disk_percent=disk,
        pinned_from=pinned,
        durable=durable,
    )
    assert plan.remove == remove, rule


def test_requested_expired_files_are_deleted_at_any_hour() -> None:
    files = [
        LogFileInfo(100, OLD),
        LogFileInfo(200, OLD),
        LogFileInfo(300, OLD),
        LogFileInfo(400, NEW),
    ]
    plan = plan_removal(
        files,
        small_config(Path("/x")),
        now_ms=NOW_MS,
        hour=5,
        disk_percent=10,
        pinned_from=None,
        durable=900,
        requested_until=200,
    )
    assert plan.remove == 2


@pytest.mark.parametrize(
    ("rule", "ages", "used", "expected"),
    [
        ("there is room", [OLD, OLD, OLD], 750, Removal()),
        ("expired files above 75 %, never the last", [OLD, OLD, OLD], 760, Removal(200, 10)),
        ("young files stay", [OLD, NEW, NEW], 760, Removal(100, 10)),
        ("nothing has expired", [NEW, NEW, NEW], 850, Removal()),
        ("any file above 85 %", [NEW, NEW, NEW], 851, Removal(200, 1)),
    ],
)
def test_wanted_files(rule: str, ages: list[int], used: int, expected: Removal) -> None:
    files = [LogFileInfo(end=(i + 1) * 100, modified_ms=age) for i, age in enumerate(ages)]
    config = small_config(Path("/x"))
    found = plan_freeing(files, config, now_ms=NOW_MS, used=used, free=1_000 - used)
    assert found == expected, rule


def test_a_pins_owner_is_not_asked(tmp_path: Path) -> None:
    with open_store(tmp_path) as s:
        s.retention.add_pin(lambda: 5, owner="a")
        s.retention.add_pin(lambda: 7, owner="b")
        s.retention.add_pin(lambda: None)
        assert s.retention.first_pinned() == 5
        assert s.retention.first_pinned(but=["a"]) == 7


@pytest.mark.finding("A1")
def test_a_pin_that_raises_is_unknown_and_reported_once(tmp_path: Path) -> None:
    notices: list[str] = []
    with open_store(tmp_path) as s:
        s.notice = notices.append
        responses: list[Any] = [ValueError("oh"), ValueError("oh"), 9, ValueError("oh")]

        def pin() -> int:
            response = responses.pop(0)
            if isinstance(response, Exception):
                raise response
            return response

        s.retention.add_pin(pin, owner="levels")
        found = [s.retention.first_pinned() for _ in range(4)]
    assert found == [UNKNOWN, UNKNOWN, 9, UNKNOWN]
    assert len(notices) == 2
    assert notices[0].startswith("no log file is removed: levels does not report")
    assert notices[0].endswith("ValueError: oh")


def test_a_store_reads_the_usage_of_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path) as s:
        for size in (1, 2):
            s.log.end = s.log.file_bytes * size
            s.log.writable_file()
        monkeypatch.setattr(type(s), "disk_bytes", (860, 140))
        assert s.retention.files_to_free() == Removal(s.log.files[0].base + s.log.file_bytes, 10)
        assert s.retention.room == 40
        monkeypatch.setattr(type(s), "disk_bytes", (100, 900))
        assert s.retention.files_to_free() == s.retention.expired_files() == Removal()
        s.clock.advance(10**13)  # type: ignore[attr-defined]
        assert s.retention.expired_files().until == s.log.files[0].base + s.log.file_bytes


def expired_store(root: Path, clock: FakeClock) -> MessageStore:
    """Return an open store in which all log files but the last may be deleted."""
    hours = ";".join(f"{hour:02d}" for hour in range(24))
    store = open_store(root, clock, delete_when_hours=hours)
    store.__enter__()
    batch = PutBatch()
    for _ in range(1_500):
        add_message(store, batch, "T", 0, b"x" * 80)
    store.put(batch)
    store.flush()
    for file in store.log.files:
        os.utime(file.path, (OLD / 1_000, OLD / 1_000))
    clock.set_ms(NOW_MS)
    return store


@pytest.mark.finding("P:unlink-on-the-loop")
def test_large_files_are_removed_in_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = expired_store(tmp_path, FakeClock())
    began, go_on = threading.Event(), threading.Event()
    real = LogFile.erase

    def erase(file: LogFile) -> None:
        assert threading.current_thread() is not threading.main_thread()
        began.set()
        assert go_on.wait(WAIT_S)
        real(file)

    monkeypatch.setattr(LogFile, "erase", erase)

    async def steps() -> None:
        count = len(store.log.files) - 1
        round_ = asyncio.create_task(store.retention.clean_in_thread())
        assert await asyncio.to_thread(began.wait, WAIT_S)
        ending = asyncio.create_task(store.retention.finish())
        assert len(store.log.files) == 1  # the deleted files are not read any more
        assert store.queue_bounds("T", 0)[0] > 0
        assert put_one(store, "T")["status"] == 0  # the event loop continues
        await asyncio.sleep(0)
        assert not ending.done()
        go_on.set()
        assert await round_ == count == store.retention.removed_files
        await ending
        assert len(list((tmp_path / "commitlog").iterdir())) == 1

    asyncio.run(steps())
    store.__exit__(None, None, None)


@pytest.mark.finding("P:unlink-on-the-loop")
def test_a_file_that_failed_to_be_deleted_remains_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    store = expired_store(tmp_path, clock)
    notices: list[str] = []
    store.notice = notices.append
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        asyncio.run(store.retention.clean_in_thread())
    assert "stay until the next start" in notices[-1]
    end = store.max_offset
    store.__exit__(None, None, None)
    with open_store(tmp_path, clock) as again:
        assert (again.min_offset, again.max_offset) == (0, end)
        assert again.queue_bounds("T", 0)[1] == 1_500


@pytest.mark.finding("P:unlink-on-the-loop")
@pytest.mark.parametrize("apart", [True, False])
def test_a_queue_that_cannot_be_read_keeps_no_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    store = expired_store(tmp_path, FakeClock())
    notices: list[str] = []
    store.notice = notices.append
    real = os.pread

    def unreadable(fd: int, size: int, pos: int) -> bytes:
        if "/consumequeue/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, size, pos)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", unreadable)
        clean = store.retention
        removed = asyncio.run(clean.clean_in_thread()) if apart else clean.clean()
    assert removed == clean.removed_files > 0
    assert "keeps units of removed records" in notices[0]
    assert len(list((tmp_path / "commitlog").iterdir())) == len(store.log.files) == 1
    store.__exit__(None, None, None)


def refused(path: Path, *, missing_ok: bool = False) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_files_and_queue_files_are_deleted_unless_pinned(tmp_path: Path) -> None:
    clock = FakeClock()
    with open_store(
        tmp_path, clock, delete_when_hours=";".join(f"{h:02d}" for h in range(24))
    ) as s:
        batch = PutBatch()
        for _ in range(1_500):
            add_message(s, batch, "T", 0, b"x" * 80)
        s.put(batch)
        s.flush()
        for file in s.log.files:
            os.utime(file.path, (OLD / 1_000, OLD / 1_000))
        clock.set_ms(NOW_MS)
        pinned = s.log.files[1].base + 10
        s.retention.add_pin(lambda: pinned)
        assert s.retention.clean() == 1
        assert s.min_offset == s.log.files[0].base <= pinned
        assert s.retention.pinned
        first, end = s.queue_bounds("T", 0)
        assert 0 < first < end == 1_500
        assert int(s.units("T", 0, first, 1)[0]["phys_offset"]) >= s.min_offset
        pinned = 1 << 60
        assert s.retention.clean() > 0
        assert len(s.log.files) == 1
    with open_store(tmp_path, clock) as s:
        assert s.queue_bounds("T", 0)[1] == 1_500
        assert s.queue_bounds("T", 0)[0] > first


def test_a_round_reads_the_times_of_the_files_that_it_may_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of thousands of files after the first one that stays."""
    reads, modified_s = list[LogFile](), LogFile.modified_s

    def noted(file: LogFile) -> float:
        reads.append(file)
        return modified_s(file)

    monkeypatch.setattr(LogFile, "modified_s", noted)
    with open_store(tmp_path) as store:
        while len(store.log.files) < 20:
            put_one(store, "T", body=b"x" * 2_000)
        assert store.retention.clean() == 0
        assert store.retention.expired_files() == Removal()
        assert reads == store.log.files[:2] * 2
