"""Stores with unreadable sectors: they start, report the place, and lose only those records."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from duemq_common.errors import RecordUnreadable, StoreError
from message_store.log.page_guard import PAGE_BYTES
from message_store.recovery import recover
from message_store.store import MessageStore
from message_store.verify import verify_store
from tests.support.bad_disk import BadDisk
from tests.support.stores import crash, open_store, put_one, small_config

RECORDS, BODY = 50, b"x" * 900  # about 1 kB each, so a page has parts of five
LAST_PAGE = 11


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BadDisk:
    return BadDisk(monkeypatch)


def filled(root: Path, **changes: Any) -> tuple[MessageStore, list[Any]]:
    store = open_store(root, **changes)
    store.notice = (notices := list[Any]()).append
    store.reported = notices  # type: ignore[attr-defined]
    store.__enter__()
    keys = ({"KEYS": f"k{n}"} for n in range(RECORDS))
    return store, [put_one(store, "T", 0, BODY, properties=each) for each in keys]


def log_path(root: Path) -> Path:
    return root / "commitlog" / f"{0:020d}"


def hit_by(rows: list[Any], page: int) -> list[bool]:
    return [
        bool(row["phys_offset"] < page + PAGE_BYTES)
        and bool(row["phys_offset"] + row["record_size"] > page)
        for row in rows
    ]


@pytest.mark.finding("E4")
def test_a_pull_skips_unreadable_records(tmp_path: Path, disk: BadDisk) -> None:
    store, rows = filled(tmp_path)
    page = 5 * PAGE_BYTES
    hit = hit_by(rows, page)
    disk.break_page(log_path(tmp_path), page)
    units = store.units("T", 0, 0, RECORDS)
    with pytest.raises(RecordUnreadable, match=rf"byte {page}: Input/output error"):
        store.gather("T", 0, 0, units)
    assert store.sound_units(units).size == RECORDS - sum(hit) == RECORDS - 5
    whole = store.gather("T", 0, 0, store.sound_units(units))
    assert len(whole) == sum(int(r["record_size"]) for r, h in zip(rows, hit, strict=True) if not h)
    for row, is_hit in zip(rows, hit, strict=True):
        if is_hit:
            with pytest.raises(RecordUnreadable):
                store.read_record(int(row["phys_offset"]))
        else:
            assert store.read_record(int(row["phys_offset"])).body == BODY
    (reported,) = store.reported  # type: ignore[attr-defined]
    assert reported.startswith(f"{log_path(tmp_path)} at byte {page}: 4096 bytes cannot be read")
    store.__exit__(None, None, None)


@pytest.mark.finding("E4")
def test_places_are_recorded_before_their_count_changes(tmp_path: Path, disk: BadDisk) -> None:
    """A thread that reads while another reports a place must not take zeros for data."""
    store, _ = filled(tmp_path)
    places, met = store.log.unreadable, list[bool]()
    places.notice = lambda text: met.append(places.changed(places.seen) or bool(places.ranges))
    disk.break_page(log_path(tmp_path), 5 * PAGE_BYTES)
    with pytest.raises(RecordUnreadable):
        store.gather("T", 0, 0, store.units("T", 0, 0, RECORDS))
    assert met == [True]
    store.__exit__(None, None, None)


@pytest.mark.finding("E4")
def test_a_scan_of_the_log_skips_it(tmp_path: Path, disk: BadDisk) -> None:
    store, rows = filled(tmp_path)
    disk.break_page(log_path(tmp_path), 5 * PAGE_BYTES)
    seen = np.concatenate([chunk["phys_offset"].copy() for chunk in store.scan(0)]).tolist()
    hit = hit_by(rows, 5 * PAGE_BYTES)
    whole = [int(r["phys_offset"]) for r, h in zip(rows, hit, strict=True) if not h]
    assert set(whole) <= set(seen)
    assert len(seen) <= len(whole) + 1  # the frame of the first damaged record is readable
    store.__exit__(None, None, None)


@pytest.mark.finding("E4")
@pytest.mark.parametrize("ended", ["cleanly", "killed", "without its mark"])
@pytest.mark.parametrize("page", [0, 5, LAST_PAGE])
def test_a_start_continues_after_it(tmp_path: Path, disk: BadDisk, ended: str, page: int) -> None:
    store, rows = filled(tmp_path)
    if ended == "cleanly":
        store.__exit__(None, None, None)
    else:
        crash(store)
    if ended == "without its mark":
        (tmp_path / "config" / "duemq.mark").unlink()
    disk.break_page(log_path(tmp_path), page * PAGE_BYTES)
    reported: list[str] = []
    with MessageStore(small_config(tmp_path), FakeClock(), notice=reported.append) as again:
        assert again.writable
        assert again.queue_bounds("T", 0)[1] == RECORDS
        readable = 0
        for row in rows:
            try:
                readable += again.read_record(int(row["phys_offset"])).body == BODY
            except RecordUnreadable:
                continue
        assert readable == RECORDS - sum(hit_by(rows, page * PAGE_BYTES))
        assert any(f"at byte {page * PAGE_BYTES}: 4096 bytes cannot be read" in t for t in reported)
        put_one(again, "T")
        assert again.queue_bounds("T", 0)[1] == RECORDS + 1


@pytest.mark.finding("E4")
def test_verify_reports_the_sector(tmp_path: Path, disk: BadDisk) -> None:
    store, _ = filled(tmp_path)
    store.__exit__(None, None, None)
    disk.break_page(log_path(tmp_path), 3 * PAGE_BYTES)
    report = verify_store(tmp_path)
    assert not report.ok
    assert [
        (finding.file, finding.offset)
        for finding in report.findings
        if finding.kind == "unreadable-sector"
    ] == [("commitlog/00000000000000000000", 3 * PAGE_BYTES)]


@pytest.mark.finding("E4")
def test_an_unreadable_index_file_is_rebuilt(tmp_path: Path, disk: BadDisk) -> None:
    settings: dict[str, Any] = {"index_slots_max": 2_000, "index_entries_max": 5_000}
    store, rows = filled(tmp_path, **settings)
    store.index.catch_up()
    (path,) = (tmp_path / "index").iterdir()
    disk.break_page(path, 2 * PAGE_BYTES)
    found, again = 0, list[str]()
    for number, row in enumerate(rows):
        for _ in range(2):
            try:
                found += store.query_keys("T", f"k{number}", 9, 0, 1 << 60) == [row["phys_offset"]]
                break
            except StoreError as error:
                again.append(str(error))
    assert found == RECORDS
    assert len(again) == 1
    assert "cannot be read and is being rebuilt" in again[0]
    store.__exit__(None, None, None)


class Sync:
    """A failing fdatasync with Linux semantics: it fails once, then the pages are clean."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._sync, self.failing = os.fdatasync, False
        patch.setattr(os, "fdatasync", self)

    def __call__(self, fd: int) -> None:
        if self.failing:
            raise OSError(5, "Input/output error")
        self._sync(fd)


@pytest.mark.finding("P:eio-page-cache")
def test_after_a_failed_sync_a_start_rewrites_unsynced_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = Sync(monkeypatch)
    store, _ = filled(tmp_path)
    store.progress.mark_dispatched()
    store.flush()
    assert store.mark.read().durable == store.log.end
    synced = store.log.end
    sync.failing = True
    rows = [put_one(store, "T", 0, BODY) for _ in range(30)]
    store.flusher._requested_end = store.log.end
    store.__exit__(None, None, None)
    assert store.abort_file.exists
    sync.failing = False

    log, queues = written(monkeypatch)
    with open_store(tmp_path) as again:
        assert log[0][0] <= synced
        assert log[-1][1] == again.log.end == rows[-1]["phys_offset"] + rows[-1]["record_size"]
        assert all(before[1] == after[0] for before, after in pairwise(log))
        assert queues == set(range(RECORDS, RECORDS + 30))
        assert again.queue_bounds("T", 0)[1] == RECORDS + 30


def written(patch: pytest.MonkeyPatch) -> tuple[list[tuple[int, int]], set[int]]:
    """Return the ranges written to the log and the units written to queues from now on."""
    log: list[tuple[int, int]] = []
    units: set[int] = set()
    pwrite, pwritev = os.pwrite, os.pwritev

    def vector(fd: int, buffers: Any, pos: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent.name == "commitlog":
            log.append((int(path.name) + pos, int(path.name) + pos + len(buffers[0])))
        return pwritev(fd, buffers, pos)

    def plain(fd: int, data: Any, pos: int) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent.parent.name == "T":
            first = (int(path.name) + pos) // 20
            units.update(range(first, first + len(data) // 20))
        return pwrite(fd, data, pos)

    patch.setattr(os, "pwritev", vector)
    patch.setattr(os, "pwrite", plain)
    return log, units


def test_the_durable_mark_follows_while_the_log_grows_during_each_sync(tmp_path: Path) -> None:
    with open_store(tmp_path, flush_commitlog_interval_ms=100_000_000) as store:
        for _ in range(3):
            before = store.log.end
            store.flusher.flush()
            put_one(store, "T", 0, BODY)  # put while the queues are synced
            store.progress.mark_dispatched()
            store.sync_queues()
        assert store.mark.read().durable >= before > 0


@pytest.mark.finding("E7")
def test_a_temporary_error_loses_no_record(tmp_path: Path, disk: BadDisk) -> None:
    store, rows = filled(tmp_path)
    whole = store.gather("T", 0, 0, store.units("T", 0, 0, RECORDS))
    for read in (
        lambda: store.gather("T", 0, 0, store.units("T", 0, 0, RECORDS)) == whole,
        lambda: sum(chunk.size for chunk in store.scan(0)) == RECORDS,
        lambda: all(store.read_record(int(row["phys_offset"])).body == BODY for row in rows),
    ):
        for page in range(LAST_PAGE):
            disk.break_page(log_path(tmp_path), page * PAGE_BYTES, passing=True)
        assert read()  # type: ignore[no-untyped-call]
    assert store.reported == []  # type: ignore[attr-defined]
    store.__exit__(None, None, None)


@pytest.mark.finding("P:eio-page-cache")
@pytest.mark.parametrize("passing", [False, True])
def test_a_page_that_fails_while_it_is_written_again_keeps_its_bytes(
    tmp_path: Path, disk: BadDisk, passing: bool
) -> None:
    store, rows = filled(tmp_path)
    page = 5 * PAGE_BYTES
    before = log_path(tmp_path).read_bytes()
    update = store.log.unreadable.update

    def break_after_lookup() -> bool:
        """Break the page right after the lookup of unreadable places."""
        new = update()
        store.log.unreadable.update = update
        disk.break_page(log_path(tmp_path), page, passing=passing)
        return new

    store.log.unreadable.update = break_after_lookup
    recover.write_again(store.log, 0, store.log.end)
    store.__exit__(None, None, None)
    assert log_path(tmp_path).read_bytes() == before
    assert len(rows) == RECORDS
