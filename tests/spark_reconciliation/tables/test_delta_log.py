"""Tables with a Delta log, read by another implementation of Delta."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from duemq_common.errors import UsageError
from duemq_common.topics import SCHEDULE_TOPIC
from spark_reconciliation.tables import export as exporter
from spark_reconciliation.tables.delta_log import LOG
from spark_reconciliation.tables.export import export_stores
from spark_reconciliation.tables.schemas import TABLES
from tests.spark_reconciliation.tables.test_export import Killed, log_of_levels, rows_of
from tests.support.commands import duemq
from tests.support.scheduled_logs import START_MS, ScheduledLog

HOUR_MS = 3_600_000


def delivered_log(count: int) -> ScheduledLog:
    """Return a log of level messages and their deliveries, in two hours."""
    log = ScheduledLog()
    for number in range(count):
        stored_ms = START_MS + number * HOUR_MS // 8
        own = {"UNIQ_KEY": f"m{number}", "DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "0"}
        origin = log.add(SCHEDULE_TOPIC, stored_ms, own, queue_id=1)
        log.add("T", stored_ms + 5_000 + number, {"UNIQ_KEY": f"m{number}"}, origin=origin)
    return log


def versions(out: Path, table: str) -> list[list[dict[str, Any]]]:
    """Return the actions of each version of a table."""
    texts = [path.read_text() for path in sorted((out / table / LOG).glob("*.json"))]
    return [[json.loads(line) for line in text.splitlines()] for text in texts]


def assert_same_rows(out: Path) -> None:
    """Compare the rows of all tables as Delta and as Parquet."""
    deltalake = pytest.importorskip("deltalake")
    for table in TABLES:
        rows = deltalake.DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()
        texts = [row | {"day": str(row["day"])} for row in rows]
        assert sorted(texts, key=_sort_key) == rows_of(out, table), table


def _sort_key(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, default=str)


def test_each_export_is_a_version(tmp_path: Path) -> None:
    log, root, out = delivered_log(12), tmp_path / "a", tmp_path / "out"
    for end in (log.records[9].end, log.records[15].end, None):
        export_stores([str(log.write(root, end=end))], out, as_delta=True)
        assert_same_rows(out)
    export_stores([str(root)], out)
    assert len(versions(out, "delivered")) == 3
    assert len(rows_of(out, "delivered")) == 12
    later = [set(action) for action in versions(out, "scheduled")[2]]
    assert later == [{"commitInfo"}, {"add"}]


def test_tables_get_a_log_later(tmp_path: Path) -> None:
    log, root, out = delivered_log(8), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    assert not list(out.glob(f"*/{LOG}"))
    log.write(root)
    done = duemq("reconcile", "export", str(root), "--to", str(out), "--delta")
    assert done.returncode == 0, done.stderr
    assert_same_rows(out)


def test_a_truncated_log_removes_files(tmp_path: Path) -> None:
    log, root, out = log_of_levels(30), tmp_path / "a", tmp_path / "out"
    for count in (10, 30):
        end = log.records[count - 1].end
        export_stores([str(log.write(root, end=end))], out, as_delta=True)
    log.write(root, end=log.records[19].end)
    [step] = export_stores([str(root)], out)
    assert step.replaced == 1
    assert len(rows_of(out, "scheduled")) == 20
    assert any("remove" in action for action in versions(out, "scheduled")[-1])
    assert_same_rows(out)


@pytest.mark.parametrize(
    ("module", "name"), [(exporter, "publish"), (exporter, "write_delta_logs"), (os, "link")]
)
def test_an_export_that_was_killed_adds_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    log, root, out = delivered_log(12), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[9].end))], out, as_delta=True)
    log.write(root)

    def killed(*args: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(module, name, killed)
        with pytest.raises(Killed):
            export_stores([str(root)], out)
    export_stores([str(root)], out)
    assert_same_rows(out)
    assert len(rows_of(out, "scheduled")) == 12


def test_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, root, out = log_of_levels(20), tmp_path / "a", tmp_path / "out"
    export_stores([str(log.write(root, end=log.records[4].end))], out, as_delta=True)
    folder = out / "scheduled" / LOG
    other = {"commitInfo": {"engineInfo": "other", "timestamp": 1}}
    (folder / f"{1:020d}.json").write_text(json.dumps(other) + "\n")
    export_stores([str(log.write(root, end=log.records[9].end))], out)
    assert [len(version) > 1 for version in versions(out, "scheduled")] == [True, False, True]
    assert_same_rows(out)
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_text("")
        link(source, target)

    log.write(root)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", late)
        with pytest.raises(UsageError, match=r"another program has written .*3\.json: run the"):
            export_stores([str(root)], out)
    (folder / f"{0:020d}.json").unlink()
    with pytest.raises(UsageError, match="begins with version 1: another program has removed"):
        export_stores([str(root)], out)
