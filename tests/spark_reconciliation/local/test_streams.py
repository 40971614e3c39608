"""Rows that are read as they are needed: order, partitions, temporary files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from duemq_common.clock import FakeClock
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.local import choice, streams
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.local.streams import READ_AHEAD, in_threads, split
from spark_reconciliation.spark import read
from tests.support.planted_faults import plant

SCHEMA = pa.schema([("key", pa.int32()), ("value", pa.binary())])


def batches() -> Iterator[pa.RecordBatch]:
    for number in range(5):
        values = [b"%d-%d" % (number, key) for key in range(3)]
        yield pa.RecordBatch.from_arrays([pa.array([0, 1, 2], pa.int32()), values], schema=SCHEMA)


def joined(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    values = [value for batch in rows for value in batch["value"].to_pylist()]
    yield pa.RecordBatch.from_arrays([pa.array([b" ".join(values)])], ["values"])


def test_results_have_the_order_of_the_values() -> None:
    last_done = Event()

    def work(number: int) -> int:
        if number == 0:
            assert last_done.wait(30)
        if number == 1:
            last_done.set()
        return number

    assert list(in_threads(work, range(9), 2)) == list(range(9))


def test_a_reader_that_stops_early_leaves_the_rest_unread() -> None:
    begun: list[int] = []
    results = in_threads(begun.append, range(1_000), 1)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= READ_AHEAD + 1


@pytest.mark.parametrize("spill_bytes", [0, 40, 1 << 20])
def test_each_partition_has_all_rows_of_its_key(
    spill_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SPILL_BYTES", spill_bytes)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def without_names() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            yield batch
            assert list(tmp_path.iterdir()) == [], "a killed process leaves no file"

    results = [batch["values"][0].as_py() for batch in split(without_names(), "key", 3, joined, 2)]
    assert results == [b" ".join(b"%d-%d" % (n, key) for n in range(5)) for key in range(3)]
    assert list(split(iter(()), "key", 3, joined, 2)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SPILL_BYTES", 0)
    monkeypatch.setattr("tempfile.tempdir", "/proc/nothing-is-written-here")
    with pytest.raises(OSError, match="nothing-is-written-here"):
        list(split(batches(), "key", 3, joined, 2))


def test_streamed_rows_are_read_again_by_each_query() -> None:
    session = LocalSession(cores=2)
    rows = session.read(SCHEMA, batches, keep=False)
    assert rows.count() == rows.count() == 15
    pairs = rows.join(rows.where("key = 1").select("value"), "value")
    assert pairs.count() == 5
    assert [row["key"] for row in rows.limit(2).collect()] == [0, 1]
    session.stop()


@pytest.mark.parametrize("how", ["inner", "left_semi"])
def test_a_join_keeps_no_rows_of_a_stream(how: str) -> None:
    session, number_read = LocalSession(cores=2), 0

    def many() -> Iterator[pa.RecordBatch]:
        nonlocal number_read
        while number_read < 1_000:
            yield from batches()
            number_read += 1

    few = session.createDataFrame([(0, b"few"), (1, b"few")], "key int, other binary")
    rows = session.read(SCHEMA, many, keep=False)
    assert rows.join(few, "key", how).limit(1).count() == 1
    assert number_read < 500, "a stream that is kept is read to its end first"
    session.stop()


@pytest.mark.extended
@pytest.mark.parametrize("with_report", [False, True])
def test_an_audit_that_streams_has_the_result_of_one_in_memory(
    with_report: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, results = plant(tmp_path / "store"), []
    report = tmp_path / "report.html" if with_report else None
    for bytes_max in (choice.LOCAL_BYTES_MAX, -1):
        monkeypatch.setattr(read, "LOCAL_BYTES_MAX", bytes_max)
        monkeypatch.setattr(streams, "SPILL_BYTES", bytes_max)
        session = LocalSession(cores=2)
        request = AuditRequest(stores=(str(planted.root),), report=report)
        summary = run_audit(session, request, FakeClock())
        results.append((summary.to_json(), report.read_text() if report else ""))
        session.stop()
    assert results[0] == results[1]
