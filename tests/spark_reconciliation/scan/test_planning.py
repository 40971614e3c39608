"""Plans of logs with many files: none is read but the last, and tasks get their own parts only."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.scan.files import Entry, Root
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.planned_store import Planned, plan_store
from spark_reconciliation.scan.planning import LogPlan
from spark_reconciliation.scan.store_state import Progress
from spark_reconciliation.spark.tasks import PackedTasks
from tests.support.written_logs import FILE_BYTES, record_at

FILES = 100_000
LAST = FILE_BYTES * (FILES - 1)


def log_entries(*missing: int) -> tuple[Entry, ...]:
    bases = (FILE_BYTES * number for number in range(FILES) if number not in missing)
    return tuple(Entry(f"commitlog/{base:020d}", FILE_BYTES) for base in bases)


@pytest.fixture
def read_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that are read of a log of which only the last file is on the disk."""
    (tmp_path / "commitlog").mkdir()
    record = record_at(LAST, b"body")
    (tmp_path / "commitlog" / f"{LAST:020d}").write_bytes(record.ljust(FILE_BYTES, b"\0"))
    entries, paths = list(log_entries()), list[str]()
    list_files, read = Root.files, Root.read

    def files(root: Root, below: str) -> list[Entry]:
        return entries if below == "commitlog" else list_files(root, below)

    def read_noted(root: Root, path: str, start: int, end: int) -> object:
        paths.append(path)
        return read(root, path, start, end)

    monkeypatch.setattr(Root, "files", files)
    monkeypatch.setattr(Root, "read", read_noted)
    return paths


def planned(root: Path) -> Planned:
    return plan_store(0, str(root))


def test_only_the_last_file_is_read(tmp_path: Path, read_paths: list[str]) -> None:
    plan = planned(tmp_path).plan
    assert (len(plan.files), plan.end) == (FILES, LAST + len(record_at(LAST, b"body")))
    assert set(read_paths) == {f"commitlog/{LAST:020d}"}


class CountedEntry(Entry):
    """Entry that counts the reads of its name."""

    reads = 0

    @property
    def name(self) -> str:
        CountedEntry.reads += 1
        return super().name


def test_the_file_of_a_log_offset_is_searched_in_few_steps() -> None:
    entries = tuple(CountedEntry(entry.path, entry.size) for entry in log_entries(7))
    plan = LogPlan(entries, FILE_BYTES, LAST + 9)
    CountedEntry.reads = 0
    offsets = {5 * FILE_BYTES + 3: 5, 6 * FILE_BYTES - 1: 5, LAST: FILES - 1, LAST + 8: FILES - 1}
    for offset, number in offsets.items():
        entry = plan.file_at(offset)
        assert entry is not None
        assert int(entry.path.rpartition("/")[2]) == number * FILE_BYTES
    assert CountedEntry.reads <= 17 * len(offsets)
    assert plan.file_at(FILE_BYTES - 1) is None
    assert plan.file_at(LAST + 9) is None


def test_a_pickled_plan_has_runs_of_files() -> None:
    entries = (*log_entries(7, 90), Entry(f"commitlog/{LAST + FILE_BYTES:020d}", 17))
    plan = LogPlan(entries, FILE_BYTES, LAST, last_ms=5)
    packed = pickle.dumps(plan)
    assert len(packed) < 1_000
    assert pickle.loads(packed) == plan
    assert pickle.loads(pickle.dumps(LogPlan((), 0, 0))) == LogPlan((), 0, 0)


@pytest.mark.usefixtures("read_paths")
def test_a_task_unpacks_its_own_parts(tmp_path: Path) -> None:
    options = parse_options({"path": str(tmp_path), "partitionBytes": str(FILE_BYTES * 100)})
    progress = Progress(3, promised={0: dict.fromkeys(range(1_000), 7)})
    store = Planned(Root(str(tmp_path)), planned(tmp_path).plan, progress, ())
    parts = TableReader(options, ["passed"], [store]).partitions()
    tasks = [parts[first : first + 2] for first in range(0, len(parts), 2)]
    assert len(tasks) >= FILES / 200
    sent: PackedTasks = pickle.loads(pickle.dumps(PackedTasks(tasks)))
    assert len(sent) == len(tasks)
    for number in range(0, len(tasks), 50):
        segments = [part.segments for part in sent.parts(number)]
        assert segments == [part.segments for part in tasks[number]]
    assert sent.parts(0)[0].progress is sent.parts(9)[0].progress, "what is shared is sent once"
    assert all(isinstance(packed, bytes) for packed in sent.packed)
    assert max(map(len, sent.packed)) < 100_000
