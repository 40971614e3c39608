"""Assignment of records to the segment they begin in, with any bodies."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_reconciliation.kernels.columns import follow
from spark_reconciliation.scan import planning, record_scan
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import (
    Finding,
    files_of_row,
    find_log_end,
    log_segments,
    plan_log,
)
from spark_reconciliation.scan.record_scan import RecordScan
from tests.support.extended import examples
from tests.support.written_logs import FILE_BYTES, LogWriter, record_at

BODY_BYTES_MAX = 400
NEAR = 2_048  # largest record of these logs, instead of 4 MiB


@pytest.fixture(autouse=True)
def _small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_scan, "RECORD_BYTES_MAX", NEAR)


def read(root: Path, bytes_max: int) -> tuple[list[tuple[int, int]], list[Finding]]:
    """Return (offset, size) of the records of all segments, and the findings."""
    store = Root(str(root))
    places: list[tuple[int, int]] = []
    plan = plan_log(store)
    findings = list(plan.findings)
    for segment in log_segments(store, plan, bytes_max=bytes_max):
        scan = RecordScan(segment)
        assert scan.open()
        for rows in scan.chunks():
            first, end = segment.base + segment.start, segment.base + segment.end
            assert ((rows["phys_offset"] >= first) & (rows["phys_offset"] < end)).all()
            places += zip(rows["phys_offset"].tolist(), rows["record_size"].tolist(), strict=True)
        findings += scan.findings
    return places, findings


messages = st.lists(
    st.tuples(st.integers(0, BODY_BYTES_MAX), st.integers(0, 3)), min_size=1, max_size=60
)


@settings(max_examples=examples(60))
@given(messages=messages, bytes_max=st.integers(91, 6_000))
def test_segments_give_each_record_once(messages: list[tuple[int, int]], bytes_max: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = LogWriter(Path(folder))
        for size, plant in messages:
            log.add(b"x" * size, plant=plant)
        assert read(log.write(), bytes_max) == (log.places, [])


def test_a_segment_beginning_in_a_body_of_records_skips_them(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(20):
        log.add(b"", plant=8)
    for bytes_max in range(100, 1_000, 37):
        assert read(log.write(), bytes_max) == (log.places, [])


def test_a_chain_of_forged_records_is_detected_at_the_border(tmp_path: Path) -> None:
    """Each forged record ends in the next body, where another one begins."""
    log = LogWriter(tmp_path, file_bytes=1 << 20)
    sizes = [1_500] * 40
    offset, starts = 0, []
    for size in sizes:
        starts.append(offset + 88 + 10)
        offset += 91 + 1 + size
    for at, size in enumerate(sizes):
        begin, room = starts[at], size - 10
        until = starts[at + 1] if at + 1 < len(starts) else begin + 200
        head = record_at(begin, b"", topic="F")[:88]
        tail = b"\x01F\x00\x00"
        length = until - begin
        fake = bytearray(head.ljust(room, b"."))
        fake[:4] = length.to_bytes(4, "big")
        fake[84:88] = (length - 88 - len(tail)).to_bytes(4, "big")
        body = bytearray((b"." * 10 + bytes(fake))[:size].ljust(size, b"."))
        if at:
            body[10 - len(tail) : 10] = tail
        log.add(bytes(body))
    places, findings = read(log.write(), 300)
    assert [f.kind for f in findings].count("seam") >= 1
    assert [place for place in places if place in log.places] != []


@pytest.mark.parametrize("bytes_max", [400, 3_000, FILE_BYTES])
@pytest.mark.parametrize(("at", "data"), [(0, b"\xff"), (4, bytes(4)), (30, b"\x01\x02")])
def test_damage_is_reported_with_its_position_and_the_scan_continues(
    tmp_path: Path, at: int, data: bytes, bytes_max: int
) -> None:
    log = LogWriter(tmp_path)
    for _ in range(80):
        log.add(b"y" * 200)
    damaged_offset, size = log.places[30]
    log.data[damaged_offset + at : damaged_offset + at + len(data)] = data
    places, findings = read(log.write(), bytes_max)
    assert places == log.places[:30] + log.places[31:]
    reported = {(f.base + f.offset, f.size) for f in findings}
    assert (damaged_offset, size) in reported or {f.kind for f in findings} == {"seam"}
    assert findings


def test_missing_and_foreign_files_are_reported(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(200):
        log.add(b"z" * 300)
    folder = log.write() / "commitlog"
    (folder / f"{FILE_BYTES:020d}").unlink()
    (folder / "notes.txt").write_text("?")
    places, findings = read(tmp_path, FILE_BYTES)
    assert {f.kind for f in findings} == {"missing-file", "stray-file"}
    assert places == [p for p in log.places if p[0] // FILE_BYTES != 1]


def test_old_bytes_after_the_end_are_no_records(tmp_path: Path) -> None:
    log = LogWriter(tmp_path)
    for _ in range(10):
        log.add(b"new" * 30)
    end, old = len(log.data), record_at(len(log.data) + 64, b"old", number=-5)
    log.data += b"\xee" * 64 + old
    log.write()
    root = Root(str(tmp_path))
    assert plan_log(root).end == end
    assert read(tmp_path, 500) == (log.places, [])
    synced = len(log.data)  # DueMQ had synced the log up to here: the record is not stale
    assert find_log_end(root, files_of_row(root, "commitlog"), synced).end == synced


@pytest.mark.parametrize(
    ("known", "durable", "first"),
    [([5], 10, 5), ([5], 5, 0), ([9], 10, 9), ([0], 10, 0), ([None], 10, 0), ([3, 5, 8], 6, 5)],
    ids=["known", "perhaps stale", "the last one", "the first one", "no record", "several"],
)
def test_the_end_is_sought_from_a_known_record(
    known: list[int | None],
    durable: int,
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogWriter(tmp_path)
    for _ in range(10):
        log.add(b"z" * 30)
    offsets = [*(offset for offset, _ in log.places), len(log.data)]
    root, begun = Root(str(log.write())), list[int]()
    files = files_of_row(root, "commitlog")
    expected = find_log_end(root, files, offsets[durable])
    assert (expected.end, expected.last) == (len(log.data), offsets[-2])

    def followed(data: object, pos: int, *others: object) -> object:
        begun.append(pos)
        return follow(data, pos, *others)

    monkeypatch.setattr(planning, "follow", followed)
    records = [1 if number is None else offsets[number] for number in known]
    assert find_log_end(root, files, offsets[durable], records=records) == expected
    assert None in known or begun[0] == offsets[first]


def test_an_unreadable_file_is_reported_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogWriter(tmp_path)
    for _ in range(120):
        log.add(b"z" * 300)
    log.write()
    read_file = Root.read

    def refuse(self: Root, path: str, start: int, end: int) -> object:
        if path.endswith(f"{FILE_BYTES:020d}"):
            raise OSError("input/output error")
        return read_file(self, path, start, end)

    monkeypatch.setattr(Root, "read", refuse)
    store = Root(str(tmp_path))
    plan = plan_log(store)
    scans = [RecordScan(s) for s in log_segments(store, plan, bytes_max=FILE_BYTES)]
    assert [scan.open() for scan in scans].count(False) == 1
    assert [f.kind for scan in scans for f in scan.findings] == ["unreadable"]
