"""Incremental export: repeated, in steps, after retention, truncation, kills and a full disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from duemq_common.errors import UsageError
from duemq_common.topics import SCHEDULE_TOPIC
from spark_reconciliation.scan.files import Root
from spark_reconciliation.state_folder import locked
from spark_reconciliation.tables import export as exporter
from spark_reconciliation.tables.export import LogChanged, export_stores
from spark_reconciliation.tables.exported_log import ExportedLog
from spark_reconciliation.tables.output import StepFiles
from spark_reconciliation.tables.schemas import TABLES
from spark_reconciliation.tables.state import ExportState, write_state
from tests.support.commands import duemq
from tests.support.scheduled_logs import FILE_BYTES, START_MS, ScheduledLog

Row = dict[str, Any]


def rows_of(out: Path, table: str) -> list[Row]:
    """Return the rows of a table in the order of the log."""
    rows = ds.dataset(out / table, partitioning="hive").to_table().to_pylist()
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


def tables_of(out: Path) -> dict[str, list[Row]]:
    return {table: rows_of(out, table) for table in TABLES}


def log_of_levels(count: int, name: str = "m") -> ScheduledLog:
    """Return a log of messages with level 2, 5 s."""
    log = ScheduledLog()
    for number in range(count):
        own = {"UNIQ_KEY": f"{name}{number}", "DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "3"}
        log.add(SCHEDULE_TOPIC, START_MS + 40_000_000 * number, own, queue_id=1)
    return log


def ids(out: Path) -> list[str]:
    return sorted(row["message_id"] for row in rows_of(out, "scheduled"))


def test_a_row_per_message(tmp_path: Path) -> None:
    log, out = log_of_levels(3), tmp_path / "out"
    export_stores([str(log.write(tmp_path / "a"))], out)
    assert rows_of(out, "scheduled")[0] == {
        "broker": "a",
        "message_id": "m0",
        "keys": None,
        "tags": None,
        "topic": "T",
        "queue_id": 3,
        "kind": "level",
        "level": 2,
        "due_ms": START_MS + 5_000,
        "accepted_ms": START_MS,
        "born_ms": START_MS,
        "body_bytes": 4,
        "log_offset": 0,
        "day": "2023-11-14",
    }


def test_a_second_export_adds_nothing(tmp_path: Path) -> None:
    store, out = str(log_of_levels(20).write(tmp_path / "a")), tmp_path / "out"
    [first] = export_stores([store], out)
    files = sorted(out.rglob("*.parquet"))
    [second] = export_stores([store], out)
    assert first.rows["scheduled"] == 20
    assert (second.start, second.rows) == (first.end, {})
    assert sorted(out.rglob("*.parquet")) == files


def test_steps_between_which_old_files_are_removed(tmp_path: Path) -> None:
    log, root = log_of_levels(60), tmp_path / "a"
    export_stores([str(log.write(root))], tmp_path / "at once", ["b"])
    for record in log.records[9::10]:
        log.write(root, end=record.end, first=record.offset - FILE_BYTES)
        export_stores([str(root)], tmp_path / "steps", ["b"])
    assert tables_of(tmp_path / "steps") == tables_of(tmp_path / "at once")
    assert len(ids(tmp_path / "steps")) == 60


def test_records_removed_before_their_export_are_noticed(tmp_path: Path) -> None:
    log, root, out = log_of_levels(60), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    log.write(root, first=4 * FILE_BYTES)
    with pytest.raises(LogChanged, match=r"removed before their export.*--accept-gap"):
        export_stores([str(root)], out)
    [step] = export_stores([str(root)], out, accept_gap=True)
    assert step.start == 4 * FILE_BYTES
    assert len(ids(out)) == 10 + sum(record.offset >= step.start for record in log.records)


def test_a_file_that_is_missing_between_others_is_noticed(tmp_path: Path) -> None:
    """For example, while a copy of the store is made."""
    log, root, out = log_of_levels(60), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    log.write(root)
    file = root / "commitlog" / f"{3 * FILE_BYTES:020d}"
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(UsageError, match=r"missing\. Complete the store, or --accept-gap"):
        export_stores([str(root)], out)
    assert len(ids(out)) == 10
    shutil.copytree(out, tmp_path / "with gap")
    export_stores([str(root)], tmp_path / "with gap", accept_gap=True)
    assert 10 < len(ids(tmp_path / "with gap")) < 60
    assert export_stores([str(root)], tmp_path / "with gap")[0].rows == {}
    file.write_bytes(data)
    export_stores([str(root)], out)
    assert len(ids(out)) == 60


def test_an_unreadable_end_of_the_log_replaces_no_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = tmp_path / "a", tmp_path / "out"
    export_stores([str(log_of_levels(60).write(root))], out)
    *_, last = sorted((root / "commitlog").iterdir())
    original = Root.read

    def read(self: Root, path: str, start: int, end: int) -> Any:
        if path.endswith(last.name):
            raise OSError(5, "Input/output error")
        return original(self, path, start, end)

    monkeypatch.setattr(Root, "read", read)
    with pytest.raises(UsageError, match=r"cannot be read: .*Input/output error"):
        export_stores([str(root)], out)
    assert len(ids(out)) == 60


def test_steps_after_a_truncation_are_replaced(tmp_path: Path) -> None:
    root, out = tmp_path / "a", tmp_path / "out"
    log = log_of_levels(10)
    export_stores([str(log.write(root))], out)
    lost, kept = log_of_levels(30), log_of_levels(15)
    for end in (lost.records[19].end, lost.records[29].end):
        export_stores([str(lost.write(root, end=end))], out)
    for number in range(20):
        own = {"UNIQ_KEY": f"new{number}", "DELAY": "1", "REAL_TOPIC": "U", "REAL_QID": "0"}
        kept.add(SCHEDULE_TOPIC, START_MS, own)
    [step] = export_stores([str(kept.write(root))], out)
    assert step.replaced == 2
    assert ids(out) == sorted(record.properties["UNIQ_KEY"] for record in kept.records)
    assert not export_stores([str(root)], out)[0].replaced


def test_a_truncation_within_the_first_step(tmp_path: Path) -> None:
    root, out, log = tmp_path / "a", tmp_path / "out", log_of_levels(10)
    export_stores([str(log.write(root))], out)
    [step] = export_stores([str(log.write(root, end=log.records[4].end))], out)
    assert (step.replaced, len(ids(out))) == (1, 5)


def test_another_store_is_refused(tmp_path: Path) -> None:
    out, root = tmp_path / "out", tmp_path / "a"
    export_stores([str(log_of_levels(10).write(root))], out)
    with pytest.raises(LogChanged, match="not the one that was exported as broker a"):
        export_stores([str(log_of_levels(30, "other").write(root))], out)
    assert len(ids(out)) == 10


def test_a_state_of_another_version_is_refused(tmp_path: Path) -> None:
    out, store = tmp_path / "out", str(log_of_levels(3).write(tmp_path / "a"))
    export_stores([store], out)
    path = out / "_duemq" / "state.json"
    facts = json.loads(path.read_text())
    for changed in ({"version": 9}, {"schemas": {"scheduled": 9}}, {"format": "other"}):
        path.write_text(json.dumps(facts | changed))
        with pytest.raises(UsageError, match="export into a new directory"):
            export_stores([store], out)
    for text in ("", "{", "[]", json.dumps(facts | {"state": {"steps": "x"}})):
        path.write_text(text)
        with pytest.raises(UsageError, match="is not a state of an export"):
            export_stores([store], out)


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.txt").touch()
    with pytest.raises(UsageError, match=r"is not an export: it contains report\.txt"):
        export_stores([str(log_of_levels(3).write(tmp_path / "a"))], tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["report.txt"]


class Killed(BaseException):
    """End of the process."""


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (exporter, "write_state", 1),
        (exporter, "publish", 1),
        (os, "replace", 2),  # the first one is that of the state
        (os, "replace", 3),
        (exporter, "write_state", 2),
        (exporter, "clear_staging", 1),
    ],
)
def test_an_export_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, call: int
) -> None:
    """The next export completes or repeats it; the tables have each message once."""
    log, root, out = log_of_levels(30), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    log.write(root)
    original, calls = getattr(module, name), list[object]()

    def killed(*args: object) -> object:
        calls.append(args)
        if len(calls) == call:
            raise Killed
        return original(*args)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, killed)
        with pytest.raises(Killed):
            export_stores([str(root)], out)
    export_stores([str(root)], out)
    assert len(ids(out)) == len(set(ids(out))) == 30
    assert not (out / "_duemq" / "staging").exists()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, root, out = log_of_levels(30), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    log.write(root)

    def full(self: object, table: str, batch: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(StepFiles, "add", full)
        with pytest.raises(OSError, match="No space left"):
            export_stores([str(root)], out)
    assert len(ids(out)) == 10
    export_stores([str(root)], out)
    assert len(ids(out)) == 30


def test_all_files_are_on_the_disk_before_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out, synced, missing = log_of_levels(1), tmp_path / "out", set[int](), list[Path]()
    log.add("T", START_MS + 5_010, {"UNIQ_KEY": "m0"}, origin=0, queue_id=3)
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        original(descriptor)

    def checked(folder: Path, state: ExportState) -> None:
        staged = (folder / "_duemq").rglob("*")
        missing.extend(path for path in staged if path.stat().st_ino not in synced)
        write_state(folder, state)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(exporter, "write_state", checked)
    export_stores([str(log.write(tmp_path / "a"))], out)
    assert len(rows_of(out, "lateness")) == 1
    assert {path.name for path in missing} == {"lock"}


def test_a_log_file_that_is_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, root, out = log_of_levels(60), tmp_path / "a", tmp_path / "out"
    original = ExportedLog.of_store

    def removing(*args: Any) -> Any:
        (root / "commitlog" / f"{0:020d}").unlink()
        return original(*args)

    monkeypatch.setattr(ExportedLog, "of_store", removing)
    with pytest.raises(LogChanged, match="was removed during the export: run it again"):
        export_stores([str(log.write(root))], out)
    assert not list(out.rglob("*.parquet"))


def test_brokers_of_a_group(tmp_path: Path) -> None:
    stores = [str(log_of_levels(5, name).write(tmp_path / name / "store")) for name in ("a", "b")]
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="brokers need different names"):
        export_stores(stores, out)
    with pytest.raises(UsageError, match="name one for each store"):
        export_stores(stores, out, ["x"])
    export_stores(stores, out, ["x", "y"])
    shutil.copytree(tmp_path / "b", tmp_path / "replica")  # has the same log
    [step] = export_stores([str(tmp_path / "replica" / "store")], out, ["y"])
    assert step.rows == {}
    brokers = [row["broker"] for row in rows_of(out, "scheduled")]
    assert sorted(brokers) == ["x"] * 5 + ["y"] * 5


def test_one_export_at_a_time(tmp_path: Path) -> None:
    store, out = str(log_of_levels(3).write(tmp_path / "a")), tmp_path / "out"
    with locked(out / "_duemq", ""), pytest.raises(UsageError, match="another export writes to"):
        export_stores([store], out)


def test_the_command(tmp_path: Path) -> None:
    store, out = log_of_levels(3).write(tmp_path / "a"), tmp_path / "out"
    result = duemq("reconcile", "export", str(store), "--to", str(out), "--broker", "b")
    assert result.returncode == 0, result.stderr
    assert "scheduled" in result.stdout
    result = duemq("reconcile", "export", str(store), "--to", str(out), "--broker", "b", "--json")
    [step] = json.loads(result.stdout)["steps"]
    assert (step["broker"], step["rows"], step["unread"]) == ("b", {}, [])
    result = duemq("reconcile", "export", str(tmp_path), "--to", str(out))
    assert result.returncode == 2
    assert "is not a store" in result.stderr
