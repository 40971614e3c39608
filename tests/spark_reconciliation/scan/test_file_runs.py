"""Runs of small files give the records and findings of scans of each file."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.many_files import FILE_BYTES, PAIRS, fill_files
from spark_reconciliation.scan import file_runs
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.file_runs import RunScan, runs_of, scans_of
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import Finding, ScanSegment, log_segments, plan_log
from spark_reconciliation.scan.pointed_scan import pointed_files, pointed_scan
from spark_reconciliation.scan.record_scan import RecordScan
from tests.support.written_logs import FILE_BYTES as LOG_FILE_BYTES
from tests.support.written_logs import LogWriter, record_at

FILES = 40
Seen = tuple[list[tuple[object, ...]], list[Finding]]


def segments_of(root: Path) -> list[ScanSegment]:
    store = Root(str(root))
    return log_segments(store, plan_log(store), bytes_max=1 << 26)


def seen(scans: Iterable[RecordScan]) -> Seen:
    """Return positions, topics and files of all records, and the findings."""
    records: list[tuple[object, ...]] = []
    findings: list[Finding] = []
    columns = MessageColumns(("phys_offset", "topic", "file", "file_offset", "queue_offset"))
    for scan in scans:
        for rows in scan.chunks() if scan.open() else ():
            batch = columns.batch(scan, rows)
            assert batch is not None
            records += [tuple(row.values()) for row in batch.to_pylist()]
        findings += scan.findings
    return records, findings


def one_by_one(segments: Iterable[ScanSegment]) -> Seen:
    return seen(RecordScan(segment) for segment in segments)


@pytest.fixture
def small_log(tmp_path: Path) -> Path:
    """Return a log of FILES files whose last one is not full."""
    log, sizes = LogWriter(tmp_path), random.Random(7)
    while len(log.data) < (FILES - 1) * LOG_FILE_BYTES + 3_000:
        log.add(b"x" * sizes.randrange(900), topic=f"T{sizes.randrange(9)}")
    return log.write()


def damage(root: Path, kind: str) -> None:
    files = sorted((root / "commitlog").iterdir())
    if kind == "body":
        with files[3].open("r+b") as file:
            file.seek(5_000)
            file.write(b"\xff" * 700)
    elif kind == "head of a file":
        with files[9].open("r+b") as file:
            file.write(bytes(100))
    elif kind == "short file":
        with files[5].open("r+b") as file:
            file.truncate(1_000)
    elif kind == "missing file":
        files[11].unlink()
    elif kind == "last files":
        files[-1].unlink()


@pytest.mark.parametrize("chunk", [7, 8_192])
@pytest.mark.parametrize(
    "kind", ["none", "body", "head of a file", "short file", "missing file", "last files"]
)
def test_runs_give_what_single_files_give(
    small_log: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int
) -> None:
    monkeypatch.setattr(file_runs, "CHUNK_RECORDS", chunk)
    segments = segments_of(small_log)
    damage(small_log, kind)
    assert seen(scans_of(segments)) == one_by_one(segments)
    assert len(list(runs_of(segments))) == 1


def test_a_file_that_was_removed_is_a_finding_and_the_others_are_read(small_log: Path) -> None:
    segments = segments_of(small_log)
    (small_log / segments[4].path).unlink()
    records, findings = seen(scans_of(segments))
    assert [(one.kind, one.file) for one in findings] == [("unreadable", segments[4].path)]
    assert (records, findings) == one_by_one(segments)


def test_runs_end_at_gaps_other_sizes_and_their_limit(
    small_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = segments_of(small_log)
    monkeypatch.setattr(file_runs, "RUN_BYTES", 8 * LOG_FILE_BYTES)
    assert [len(run) for run in runs_of(segments)] == [8] * 5
    del segments[3]
    assert [len(run) for run in runs_of(segments[:12])] == [3, 8, 1]
    monkeypatch.setattr(file_runs, "FILE_BYTES_MAX", LOG_FILE_BYTES - 1)
    assert all(len(run) == 1 for run in runs_of(segments))
    pieces = [piece for segment in segments for piece in segment.pieces(5_000)]
    monkeypatch.setattr(file_runs, "FILE_BYTES_MAX", LOG_FILE_BYTES)
    assert all(len(run) == 1 for run in runs_of(pieces)), "a part of a file begins in a record"


def test_a_run_is_read_in_few_chunks_and_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, fill = list[str](), Root.fill

    def fill_noted(root: Root, path: str, out: np.ndarray) -> int:
        paths.append(path)
        return fill(root, path, out)

    monkeypatch.setattr(Root, "fill", fill_noted)
    segments = segments_of(fill_files(tmp_path / "store", FILES))
    chunks = [rows.size for scan in scans_of(segments) if scan.open() for rows in scan.chunks()]
    assert chunks == [FILES * 2 * PAIRS]
    assert paths == [segment.path for segment in segments]


def test_clock_steps_between_and_in_files_of_a_run(tmp_path: Path) -> None:
    from tests.spark_reconciliation.test_bad_clock import log_of

    times = [*range(0, 9_000, 100), *range(-5_000, 9_000, 100)]
    log_of(tmp_path, times)
    segments = segments_of(tmp_path)
    steps = []
    for scans in (scans_of(segments, clock=True), (RecordScan(s, clock=True) for s in segments)):
        found = []
        for scan in scans:
            for _ in scan.chunks() if scan.open() else ():
                pass
            found += [step.finding for step in scan.steps]
        steps.append(found)
    assert steps[0] == steps[1]
    assert steps[0]


@pytest.mark.parametrize("file_bytes_max", [LOG_FILE_BYTES, LOG_FILE_BYTES - 1])
def test_records_at_offsets(
    small_log: Path, monkeypatch: pytest.MonkeyPatch, file_bytes_max: int
) -> None:
    """Offsets of records, between records, twice, outside of the log, and in a removed file."""
    monkeypatch.setattr(file_runs, "FILE_BYTES_MAX", file_bytes_max)
    root, segments = Root(str(small_log)), segments_of(small_log)
    plan = plan_log(root)
    records, _ = one_by_one(segments)
    (small_log / segments[6].path).unlink()
    choice = random.Random(3)
    chosen = [int(str(row[0])) for row in choice.sample(records, 50)]
    offsets = np.sort(np.array([*chosen, *chosen[:5], chosen[0] + 1, -9, plan.end, plan.end + 7]))
    places, unread, scans = list[int](), list[int](), 0
    for files, indexes in pointed_files(root, plan, offsets):
        scan = pointed_scan(files, offsets[indexes])
        scans += 1
        if not scan.open():
            unread += offsets[indexes].tolist()
            continue
        unread += offsets[indexes][~scan.could_read(offsets[indexes])].tolist()
        places += [place for rows in scan.chunks() for place in rows["phys_offset"].tolist()]
    expected = sorted([*chosen, *chosen[:5]])
    assert places == [one for one in expected if one // LOG_FILE_BYTES != 6]
    assert set(unread) >= {one for one in expected if one // LOG_FILE_BYTES == 6}
    assert all(one // LOG_FILE_BYTES == 6 for one in unread)
    assert scans == 1 if file_bytes_max == LOG_FILE_BYTES else scans > 20


def test_only_files_with_an_offset_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, fill = list[str](), Root.fill

    def fill_noted(root: Root, path: str, out: np.ndarray) -> int:
        paths.append(path)
        return fill(root, path, out)

    monkeypatch.setattr(Root, "fill", fill_noted)
    root = Root(str(fill_files(tmp_path / "store", FILES)))
    numbers = (2, 17, 18, 39)
    offsets = np.array([number * FILE_BYTES for number in numbers])
    [(files, indexes)] = pointed_files(root, plan_log(root), offsets)
    scan = pointed_scan(files, offsets[indexes])
    assert scan.open()
    assert [place for rows in scan.chunks() for place in rows["phys_offset"]] == offsets.tolist()
    assert paths == [f"commitlog/{offset:020d}" for offset in offsets.tolist()]


def test_a_record_that_reaches_into_the_next_file_is_none(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(200):
        log.add(b"x" * 100)
    place = max(offset for offset, _ in log.places if offset < LOG_FILE_BYTES)
    size = LOG_FILE_BYTES - place + 50
    made = record_at(place, b"y" * (size - len(record_at(place, b""))))
    log.data[place : place + len(made)] = made
    root = Root(str(log.write()))
    offsets = np.array([0, place, LOG_FILE_BYTES])
    plan = plan_log(root)
    [(files, indexes)] = pointed_files(root, plan, offsets)
    scan = pointed_scan(files, offsets[indexes])
    assert isinstance(scan, RunScan)
    assert scan.open()
    assert place not in [one for rows in scan.chunks() for one in rows["phys_offset"].tolist()]
    assert seen(scans_of(segments_of(tmp_path))) == one_by_one(segments_of(tmp_path))
