"""`duemq reconcile` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from message_store.ledger.engine import default_url
from message_store.ledger.identity import store_id
from message_store.ledger.location import LedgerLocation
from reconciliation.jobs.audit_ledger import AuditLedger, AuditRecord
from tests.duemq.cli.test_commands import duemq, environment
from tests.support.golden_stores import golden_store

SILENT = "import sys, duemq.cli.app; print([m for m in sys.modules if m in {'pyspark', 'pyarrow'}])"


def test_what_is_no_store_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ran = duemq("reconcile", "run", str(tmp_path))
    assert ran.returncode == 2
    assert "the audit could not run" in ran.stderr
    assert "is not a store: it has neither commitlog nor consumequeue" in ran.stderr


def test_without_java_it_could_not_run(tmp_path: Path) -> None:
    store = str(golden_store("apache-5.3.3-clean"))
    ran = duemq("reconcile", "run", store, env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert ran.returncode == 2
    assert "Spark needs Java 17 or newer" in ran.stderr


def test_other_commands_do_not_load_spark() -> None:
    words = [sys.executable, "-c", SILENT]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, env=environment())
    assert ran.stdout.strip() == "[]"


def test_audits_that_a_ledger_records(tmp_path: Path) -> None:
    config = tmp_path / "config"
    place = LedgerLocation(
        url=default_url(tmp_path), store_id=store_id(config), store_path=str(tmp_path)
    )
    ledger = AuditLedger.open(place, now_ms=1)
    record = AuditRecord(
        audit_id="audit-1", started_ms=0, ended_ms=2_500, made_by="cron", exit_code=1,
        late_p99_ms=1_234, verdicts={"ok": 1_000, "lost": 2},
    )  # fmt: skip
    ledger.write([record])
    shown = duemq("reconcile", "history", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    for text in ("audit-1", "1970-01-01", "2.5", "cron", "1,002", "lost 2", "1,234"):
        assert text in shown.stdout
    url = f"sqlite:///{tmp_path}/duemq.ledger.sqlite"
    told = json.loads(duemq("reconcile", "history", "--ledger", url, "--json").stdout)
    assert [(one["audit_id"], one["messages"]) for one in told] == [("audit-1", 1_002)]
    neither = duemq("reconcile", "history")
    assert neither.returncode == 2
    assert "give either the store's directory or --ledger URL" in neither.stderr


def test_an_audit_that_could_not_run_is_reported_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    ran = duemq("reconcile", "run", str(tmp_path), "--ledger", url)
    assert ran.returncode == 2
    [told] = json.loads(duemq("reconcile", "history", "--ledger", url, "--json").stdout)
    assert told["exit_code"] == 2
    assert "is not a store" in told["why"]
    other = duemq("reconcile", "run", "/another", "--ledger", url)
    assert other.returncode == 2
    assert "it belongs to store" in other.stderr


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("mine")
    ran = duemq("reconcile", "repair", str(tmp_path), "--to", str(file))
    assert ran.returncode == 2
    assert "already exists" in ran.stderr
    assert file.read_text() == "mine"


@pytest.mark.spark
def test_a_clean_store_of_apache(tmp_path: Path) -> None:
    page, store = tmp_path / "report.html", str(golden_store("apache-5.3.3-clean"))
    ran = duemq("reconcile", "run", store, "--json", "--report", str(page))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    found = json.loads(ran.stdout)
    assert found["verdicts"] == {"cancelled": 1, "pending": 62, "ok": 23}
    assert "Every promise was kept (86 messages)" in page.read_text()
    assert (found["clean"], found["complete"], found["unread"]) == (True, True, [])


@pytest.mark.finding("B26")
def test_a_bar_shows_nothing_until_a_task_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    from duemq.cli.reconcile_spark import _Progress

    shown: list[tuple[float, float | None, str]] = []

    def note(
        self: Progress, line: object, *, completed: float, total: float | None, part: str
    ) -> None:
        shown.append((completed, total, part))

    monkeypatch.setattr(Progress, "update", note)
    progress = _Progress(shown=False)
    for done in (0, 3):
        progress.show(0, done, 8)
    progress.show(0, 0, 0)
    assert shown == [(0, None, "0 of 8 tasks"), (3, 8, "3 of 8 tasks")]
