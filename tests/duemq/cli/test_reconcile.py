"""`duemq reconcile` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from duemq.cli.messages import time_text
from duemq.cli.reconcile_run import as_of_ms, finding_lines, proof_line
from duemq.cli.times import parse_time
from duemq_common.clock import FakeClock
from duemq_common.errors import StoreLocked, UsageError
from duemq_common.ledger.engine import default_url
from duemq_common.ledger.identity import store_id
from duemq_common.ledger.location import LedgerLocation
from message_store.recovery.store_lock import StoreLock
from spark_reconciliation import submit
from spark_reconciliation.config import ReconcileConfig
from spark_reconciliation.jobs import child_process
from spark_reconciliation.jobs.audit_ledger import AuditLedger, AuditRecord
from spark_reconciliation.jobs.run import AuditRequest, absolute, at_present, reason_of
from spark_reconciliation.spark.requirements import require_packages
from tests.support.commands import duemq, duemq_process, environment
from tests.support.golden_stores import golden_store

HOLDER = """
import sys
from dataclasses import replace
from pathlib import Path
from message_store.recovery.store_lock import StoreLock
lock = StoreLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""
SILENT = "import sys, duemq.cli.app; print([m for m in sys.modules if m in {'pyspark', 'pyarrow'}])"


@pytest.fixture
def no_java(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a JAVA_HOME with a file that cannot be started."""
    home = tmp_path_factory.mktemp("java")
    (home / "bin").mkdir()
    (home / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(home))


@pytest.mark.usefixtures("no_java")
def test_what_is_no_store_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ran = duemq("reconcile", "run", str(tmp_path))
    assert ran.returncode == 2
    assert "the audit could not run" in ran.stderr
    assert "is not a store: it has neither commitlog nor consumequeue" in ran.stderr


@pytest.mark.parametrize(
    ("counts", "times", "facts"),
    [
        ({"sent": 1, "accepted": 0}, {"promised_ms": 0, "accepted_ms": None}, "promised {}"),
        (
            {"sent": 0, "accepted": 1},
            {"promised_ms": None, "accepted_ms": 0},
            "due in the store {}",
        ),
        ({"sent": 2, "accepted": 1}, {}, "2 in the table, 1 in the store"),
        ({"delivered": 1, "received": 2}, {}, "1 delivered, 2 received"),
    ],
)
def test_a_name_of_a_comparison_has_its_numbers_and_known_times(
    counts: dict[str, int], times: dict[str, int | None], facts: str
) -> None:
    row = {"topic": "T", "name": "A"} | counts | times | {"outcome": "o"}
    assert proof_line(row) == f"o: topic T, A ({facts.format(time_text(0))})"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("export", "--to", "s3://b/t"), "--to s3://b/t: must be a directory on a disk"),
        (("run", "--state", "s3://b/t"), "--state s3://b/t: must be a directory on a disk"),
        (("watch", "--home", "s3://b/t"), "--home s3://b/t: must be a directory on a disk"),
        (("run", "--sent-columns", "id=i"), "--sent-columns needs a table: give --sent TABLE"),
        (("run", "--received-columns", "id=i"), "--received-columns needs a table: give --rec"),
        (("run", "--zone", "UTC"), "--zone needs a table: give --sent TABLE or --received TABLE"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    words: tuple[str, ...], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *options = words
    ran = duemq("reconcile", command, str(golden_store("apache-5.3.3-clean")), *options)
    assert ran.returncode == 2
    assert error in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_java")
def test_a_broker_without_a_message_has_a_clean_audit(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable": {}}')
    ran = duemq("reconcile", "run", str(tmp_path), "--ledger", "none")
    assert ran.returncode == 0, ran.stderr
    assert "Every promise was kept (0 messages)." in ran.stdout


@pytest.mark.extended
def test_without_java_it_could_not_run(tmp_path: Path) -> None:
    store = str(golden_store("apache-5.3.3-clean"))
    without_java = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    ran = duemq_process("reconcile", "run", store, "--engine", "spark", env=without_java)
    assert ran.returncode == 2
    assert "Spark needs Java 17 or newer" in ran.stderr
    ran = duemq_process("reconcile", "run", store, env=without_java)
    assert ran.returncode == 0, "a small store needs no Java"


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
        audit_id="audit-1",
        started_ms=0,
        ended_ms=2_500,
        made_by="cron",
        exit_code=1,
        late_p99_ms=1_234,
        verdicts={"ok": 1_000, "lost": 2},
    )
    ledger.write([record])
    shown = duemq("reconcile", "history", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    for text in ("audit-1", "1970-01-01", "2.5", "cron", "1,002", "lost 2", "1,234"):
        assert text in shown.stdout
    url = f"sqlite:///{tmp_path}/duemq.ledger.sqlite"
    reported = json.loads(duemq("reconcile", "history", "--ledger", url, "--json").stdout)
    assert [(one["audit_id"], one["messages"]) for one in reported] == [("audit-1", 1_002)]
    neither = duemq("reconcile", "history")
    assert neither.returncode == 2
    assert "give either the store's directory or --ledger URL" in neither.stderr


@pytest.mark.usefixtures("no_java")
def test_an_audit_that_could_not_run_is_reported_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    ran = duemq("reconcile", "run", str(tmp_path), "--ledger", url)
    assert ran.returncode == 2
    [reported] = json.loads(duemq("reconcile", "history", "--ledger", url, "--json").stdout)
    assert reported["exit_code"] == 2
    assert "is not a store" in reported["why"]
    other = duemq("reconcile", "run", "/another", "--ledger", url)
    assert other.returncode == 2
    assert "it belongs to store" in other.stderr


def row(verdict: str, why: str, root: int, alike: int, **more: object) -> dict[str, object]:
    return {
        "verdict": verdict,
        "why": why,
        "store": "/s",
        "root": root,
        "topic": "T",
        "due_ms": 1_700_000_000_123,
        "delivered_ms": None,
        "unique_id": None,
        "alike": alike,
        **more,
    }


@pytest.mark.finding("3P5")
def test_findings_are_printed_by_verdict_and_reason_with_readable_times() -> None:
    rows = [
        row("lost", "passed", 1, 30),
        row("lost", "passed", 2, 30, unique_id="AB"),
        row("late", "late", 7, 1, delivered_ms=1_700_000_060_000),
    ]
    due = "due 2023-11-14T22:13:20.123+00:00, delivered"
    assert list(finding_lines(rows)) == [
        "lost: passed (2 of 30 shown)",
        f"    /s: log offset 1 (topic T, {due} never)",
        f"    /s: log offset 2 (topic T, {due} never, id AB)",
        "late: late (1)",
        f"    /s: log offset 7 (topic T, {due} 2023-11-14T22:14:20.000+00:00)",
    ]


@pytest.mark.finding("3P7")
@pytest.mark.parametrize(
    ("option", "why"),
    [
        (("--report", "missing/page.html"), "there is no folder"),
        (("--report", "."), "a directory"),
        (("--out", "."), "exists"),
    ],
)
@pytest.mark.usefixtures("no_java")
def test_outputs_are_checked_before_spark_starts(option: tuple[str, str], why: str) -> None:
    ran = duemq("reconcile", "run", str(golden_store("apache-5.3.3-clean")), *option)
    assert ran.returncode == 2
    assert why in ran.stderr


@pytest.mark.finding("3P7")
def test_a_relative_path_is_made_absolute() -> None:
    """Workers of a cluster have other working directories."""
    assert absolute("a/../b") == str(Path.cwd() / "b")
    assert absolute("/a") == "/a"
    assert absolute("s3://bucket/a") == "s3://bucket/a"


@pytest.mark.finding("3P3")
def test_now_is_a_time() -> None:
    assert as_of_ms("now") is not None
    assert parse_time("now", 77) == 77
    words = child_process.command_of(ReconcileConfig(), "/s", "")
    assert words[words.index("--as-of") + 1] == "now"
    assert submit.parser().parse_args(["/s", "--as-of", "now"]).as_of >= 1_700_000_000_000


@pytest.mark.finding("3P3")
def test_the_audit_of_a_running_broker_uses_the_wall_clock(tmp_path: Path) -> None:
    clock, wanted = FakeClock(), AuditRequest(stores=(str(tmp_path),))
    assert at_present(wanted, clock) == wanted, "no broker, no lock"
    (tmp_path / "lock").touch()
    assert at_present(wanted, clock) == wanted, "a lock file without a broker"
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"locked\n"
        assert at_present(wanted, clock) == replace(wanted, as_of_ms=clock.now_ms())
        given = replace(wanted, as_of_ms=5)
        assert at_present(given, clock) == given
        with pytest.raises(StoreLocked):
            StoreLock(tmp_path)
        broker.communicate(b"")
    StoreLock(tmp_path).release()
    assert at_present(wanted, clock) == wanted


@pytest.mark.finding("3U6")
def test_missing_packages_are_named_with_the_package_that_brings_them() -> None:
    with pytest.raises(UsageError, match=r"pip install 'duemq\[spark\]'"):
        require_packages(lambda name: None)


@pytest.mark.finding("3P4")
def test_the_reason_names_a_lost_executor() -> None:
    text = """Job aborted due to stage failure: Task 0 in stage 9.0 failed 4 times, most recent
    failure: Lost task 0.3 in stage 9.0 (TID 7) (10.0.0.7 executor 3): ExecutorLostFailure
    (executor 3 exited caused by one of the running tasks) Reason: exit code 137"""
    error = RuntimeError(" ".join(text.split()) + "\nDriver stacktrace:")
    assert reason_of(error) == "executor 3 exited caused by one of the running tasks: exit code 137"
    assert reason_of(RuntimeError("other\nlines")) == "other"
    too_little = RuntimeError("Job aborted.\njava.lang.OutOfMemoryError: Java heap space")
    assert "with --memory" in reason_of(too_little)
    no_java = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before")
    assert reason_of(no_java).startswith("Java ended at its start: give --memory")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("OSError: [Errno 5] bad disk", "[Errno 5] bad disk"),
        (
            "ModuleNotFoundError: No module named 'numpy'",
            "No module named 'numpy': the workers need DueMQ, see Run it on a cluster",
        ),
    ],
)
def test_the_reason_is_that_of_python_on_a_worker(raised: str, reason: str) -> None:
    text = f"""An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 7, in main
    func: object = read()
{raised}
"""
    assert reason_of(RuntimeError(text)) == reason


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("mine")
    ran = duemq("reconcile", "repair", str(tmp_path), "--to", str(file))
    assert ran.returncode == 2
    assert "already exists" in ran.stderr
    assert file.read_text() == "mine"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("command", "phases"),
    [
        ("run", {"planning", "scan", "rules"}),
        ("forecast", {"planning", "scan", "rules"}),
        ("lateness", {"planning", "scan", "rules"}),
        ("proof", {"planning", "scan", "rules"}),
        ("plan", {"scan"}),
    ],
)
def test_json_comes_with_an_event_for_each_phase(command: str, phases: set[str]) -> None:
    ran = duemq("reconcile", command, str(golden_store("apache-5.3.3-clean")), "--json")
    assert isinstance(json.loads(ran.stdout), dict)
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert {event["phase"] for event in events} == phases
    assert all(event["seconds"] >= 0 for event in events)
    assert all(event["message"].startswith(f"{event['phase']} took ") for event in events)


@pytest.mark.extended
@pytest.mark.spark
def test_a_clean_store_of_apache(tmp_path: Path) -> None:
    page, store = tmp_path / "report.html", str(golden_store("apache-5.3.3-clean"))
    ran = duemq_process("reconcile", "run", store, "--json", "--report", str(page))
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stderr.splitlines()]
    assert {event["phase"] for event in events} == {"planning", "scan", "rules", "report"}
    found = json.loads(ran.stdout)
    assert found["verdicts"] == {"cancelled": 1, "pending": 62, "ok": 23}
    assert "Every promise was kept (86 messages)" in page.read_text()
    assert (found["clean"], found["complete"], found["unread"]) == (True, True, [])


@pytest.mark.finding("B26")
def test_a_bar_shows_nothing_until_a_task_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    from duemq.cli.reconcile_spark import _StageProgress

    shown: list[tuple[float, float | None, str]] = []

    def note(
        self: Progress, line: object, *, completed: float, total: float | None, part: str
    ) -> None:
        shown.append((completed, total, part))

    monkeypatch.setattr(Progress, "update", note)
    progress = _StageProgress(shown=False)
    for done in (0, 3):
        progress.show(0, done, 8, f"{done} of 8 tasks")
    progress.show(0, 0, 0, "")
    assert shown == [(0, None, "0 of 8 tasks"), (3, 8, "3 of 8 tasks")]
