"""Jobs on logs of many small files: what they read, list and build grows with the files at most.

A job that lists a directory for each file, or builds its columns for each, takes hours for the
100,000 files that it reads in seconds otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.loads.timer_engine import Engine
from benchmarks.many_files import FILE_BYTES, PAIRS, fill_files
from duemq_common.clock import FakeClock
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.layout import UNIT_BYTES
from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.audit.unit_times import MAPPED_MAX, QueueFiles
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan import file_runs
from spark_reconciliation.scan.columns import MessageColumns
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.tables.export import export_stores

FEW, MANY = 30, 120
READS_MAX = 9  # for each log file, with its half of a queue file: by tables, and for units
UNITS = 20  # of a queue file
FIXED = ("files", "folders", "MessageColumns")
"""Counts that do not depend on the number of log files."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count calls, and the rows of tables as they are read."""
    counts: Counter[str] = Counter()

    def count(owner: type[Any], name: str, key: str) -> None:
        called: Callable[..., Any] = getattr(owner, name)

        @wraps(called)
        def noted(*args: Any, **more: Any) -> Any:
            counts[key] += 1
            return called(*args, **more)

        monkeypatch.setattr(owner, name, noted)

    for name in ("files", "folders", "read", "fill"):
        count(Root, name, name)
    count(MessageColumns, "__init__", "MessageColumns")
    read = TableReader.read

    def read_noted(reader: TableReader, part: Any) -> Iterator[pa.RecordBatch]:
        for batch in read(reader, part):
            counts["batches"] += 1
            yield batch

    monkeypatch.setattr(TableReader, "read", read_noted)
    return counts


def audit(store: Path, **more: Any) -> dict[str, int]:
    session = LocalSession(cores=2)
    request = AuditRequest(stores=(str(store),), **more)
    verdicts = run_audit(session, request, FakeClock()).verdicts
    session.stop()
    return dict(verdicts)


def plain_audit(store: Path) -> None:
    assert set(audit(store)) == {"ok"}


def audit_with_other_units(store: Path) -> None:
    """A unit of each queue is wrong, so the queues are compared with their records."""
    for path in (store / "consumequeue").glob("*/*/*"):
        with path.open("r+b") as file:
            file.seek(3 * UNIT_BYTES + 8)
            file.write(b"\0\0\0\1")
    assert set(audit(store)) > {"ok"}


def audits_with_state(store: Path) -> None:
    for _ in range(2):
        assert set(audit(store, state=store.parent / f"{store.name}-state")) == {"ok"}


def audit_of_all_messages(store: Path) -> None:
    assert set(audit(store, out=str(store.parent / f"{store.name}-out"))) == {"ok"}


def export(store: Path) -> None:
    [step] = export_stores([str(store)], store.parent / f"{store.name}-tables")
    assert step.rows["scheduled"] > 0


def findings(store: Path) -> None:
    reader = TableReader(parse_options({"path": str(store), "table": "findings"}), ["kind"])
    assert not [batch for part in reader.partitions() for batch in reader.read(part)]


def filled(root: Path, files: int) -> Path:
    return fill_files(root, files, queue_file_bytes=UNITS * UNIT_BYTES)


def with_pending_timers(root: Path, files: int) -> Path:
    """Return a store whose timer log and wheel point into all files of the log."""
    with Engine(root, file_bytes=FILE_BYTES) as engine:
        begin_ms = engine.clock.now_ms() + 3_600_000
        engine.filler.fill(10 * files, lambda numbers: begin_ms + numbers)
        engine.work()
    return root


def pending(store: Path) -> None:
    assert set(audit(store)) == {"pending"}


@pytest.mark.parametrize(
    ("make", "job"),
    [
        pytest.param(filled, plain_audit, marks=pytest.mark.extended),
        pytest.param(filled, audit_with_other_units, marks=pytest.mark.extended),
        pytest.param(filled, audits_with_state, marks=pytest.mark.extended),
        pytest.param(filled, audit_of_all_messages, marks=pytest.mark.extended),
        (filled, export),
        (filled, findings),
        pytest.param(with_pending_timers, pending, marks=pytest.mark.extended),
        pytest.param(with_pending_timers, export, marks=pytest.mark.extended),
    ],
)
def test_the_work_of_a_job_grows_with_the_files_at_most(
    tmp_path: Path,
    counted: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path, int], Path],
    job: Callable[[Path], None],
) -> None:
    monkeypatch.setattr(file_runs, "RUN_BYTES", 8 * FILE_BYTES)
    totals = []
    for files in (FEW, MANY):
        store = make(tmp_path / f"store-{files}", files)
        counted.clear()
        job(store)
        totals.append(Counter(counted))
    few, many = totals
    assert {key: many[key] for key in FIXED} == {key: few[key] for key in FIXED}
    queue_files = 2 * PAIRS * (MANY - FEW) // UNITS
    assert many["batches"] - few["batches"] <= queue_files
    assert many["read"] + many["fill"] - few["read"] - few["fill"] <= READS_MAX * (MANY - FEW)


def test_queue_files_stay_open_within_a_limit(tmp_path: Path) -> None:
    """Each of the mapped files takes a descriptor, of which a process may have 1,024."""
    store = fill_files(tmp_path / "store", 1)
    data = next((store / "consumequeue" / SCHEDULE_TOPIC / "0").iterdir()).read_bytes()
    folder = store / "consumequeue" / "many"
    folder.mkdir()
    root = Root(str(store))
    for number in range(3 * MAPPED_MAX):
        (folder / f"{number}").write_bytes(data[:200])
    files, before = QueueFiles(root), len(list(Path("/proc/self/fd").iterdir()))
    for entry in root.files("consumequeue/many"):
        assert files.units(entry).size == 10
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + MAPPED_MAX
