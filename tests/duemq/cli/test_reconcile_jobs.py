"""The jobs of `duemq reconcile` as a user runs them, on one store."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duemq.cli.message_file import read_file
from duemq.cli.reconcile_jobs import WatchProgress, wait_for
from duemq_common.clock import FakeClock
from tests.migration.steps.test_drain import fill
from tests.spark_reconciliation.conftest import on_each_engine as on_each_engine
from tests.spark_reconciliation.conftest import on_spark as on_spark
from tests.spark_reconciliation.conftest import spark as spark
from tests.support.commands import duemq
from tests.support.migration_rig import MigrationRig
from tests.support.sparse_files import copy_used

COUNT, LOST = 20, 5
TWO_MINUTES_MS = 120_000
JOBS = ("forecast", "lateness", "proof", "plan", "repair", "watch")
MORE = {"repair": ("--to", "f"), "watch": ("--home", "h")}


@dataclass(frozen=True)
class Stores:
    """A sound store, one whose level 5 was passed by, one with bytes that are no record.

    Attributes:
        end_ms: when all of them is due.
    """

    sound: str
    lost: str
    torn: str
    end_ms: int


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    top = tmp_path_factory.mktemp("jobs")
    rig = MigrationRig(top / "sound", FakeClock()).open()
    fill(rig, 2 * COUNT, (4, 5))
    assert rig.drain.step(4, COUNT, migration="run-1").moved == COUNT
    rig.advance(70_000)  # level 4 has come, level 5 waits
    rig.close()
    for name in ("lost", "torn"):
        shutil.copytree(top / "sound", top / name, copy_function=copy_used)
    cursors = top / "lost" / "config" / "delayOffset.json"
    text = cursors.read_text()
    assert "5:0" in text
    cursors.write_text(text.replace("5:0", f"5:{LOST}"))
    log = min((top / "torn" / "commitlog").iterdir())
    whole = log.read_bytes()
    log.write_bytes(whole[:300] + b"\xff" * 600 + whole[900:])  # more than a record
    sound, lost, torn = (str(top / name) for name in ("sound", "lost", "torn"))
    return Stores(sound, lost, torn, rig.clock.now_ms() + TWO_MINUTES_MS)


# -- before Spark is started --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "path", "why"),
    [
        ("forecast", "none", "there is no such directory"),
        ("lateness", "file", "it is a file"),
        ("proof", ".", "it has neither commitlog nor consumequeue; {top}/store is one"),
        ("plan", "store/commitlog", "neither commitlog nor consumequeue; {top}/store is one"),
        ("repair", "store/config", "neither commitlog nor consumequeue; {top}/store is one"),
        ("watch", "none", "there is no such directory"),
    ],
)
def test_what_is_no_store_is_named_with_the_one_near_it(
    job: str, path: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("commitlog", "config"):
        (tmp_path / "store" / name).mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020}").write_bytes(b"")
    ran = duemq("reconcile", job, str(tmp_path / path), *MORE.get(job, ()))
    assert ran.returncode == 2
    assert "is not a store: " in ran.stderr
    assert why.format(top=tmp_path) in ran.stderr
    assert job in ran.stderr.partition(" could not run: ")[0]
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("job", ["run", *JOBS])
def test_without_pyspark_it_says_what_to_install(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    ran = duemq("reconcile", job, str(tmp_path), *MORE.get(job, ()))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pyspark is not installed: pip install 'duemq[spark]'" in ran.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("forecast", "s", "--levels", "1x"), "'1x' is not a list of levels"),
        (("plan", "s", "--as-of", "yesterday"), "cannot read the time 'yesterday'"),
        (("repair", "s", "--to", "none/f"), "directory none does not exist"),
        (("history", "none"), "there is no such file"),
    ],
)
def test_bad_words_are_a_usage_error(words: tuple[str, ...], why: str) -> None:
    ran = duemq("reconcile", *words)
    assert ran.returncode == 2
    assert why in ran.stderr


class Query:
    """A stream that Ctrl-C meets at the second look, or that ends there."""

    def __init__(self, *, interrupted: bool) -> None:
        self.interrupted, self.looks, self.done = interrupted, 0, list[str]()

    @property
    def isActive(self) -> bool:
        self.looks += 1
        if self.looks == 2 and self.interrupted:
            signal.raise_signal(signal.SIGINT)
        return self.looks < 2 or self.interrupted

    def stop(self) -> None:
        self.done.append("stop")

    def awaitTermination(self) -> None:
        self.done.append("awaitTermination")


@pytest.mark.parametrize(("interrupted", "done"), [(True, ["stop"]), (False, ["awaitTermination"])])
def test_ctrl_c_stops_a_watch_between_calls_of_java(interrupted: bool, done: list[str]) -> None:
    query: Any = Query(interrupted=interrupted)
    before = signal.getsignal(signal.SIGINT)
    wait_for(query)
    assert query.done == done
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.finding("B26")
def test_a_watch_describes_itself(capsys: pytest.CaptureFixture[str]) -> None:
    clock, query = FakeClock(), cast(Any, SimpleNamespace(lastProgress=None))
    progress = WatchProgress(clock.monotonic_s)
    for _ in range(25):  # nothing is known of the first batch yet
        clock.advance(1_000)
        progress.report_batch(query)
    query.lastProgress = {"batchId": 0, "numInputRows": 1_234}
    for _ in range(25):
        clock.advance(1_000)
        progress.report_batch(query)
    assert capsys.readouterr().err.splitlines() == [
        "duemq: still reading the log (10 s)",
        "duemq: still reading the log (20 s)",
        "duemq: 1,234 records of the log audited (26 s)",
    ]


# -- what they answer ---------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_forecast_and_lateness(stores: Stores) -> None:
    done = duemq("reconcile", "forecast", stores.sound, "--capacity", "1", "--json")
    load = json.loads(done.stdout)
    assert (done.returncode, load["unread"]) == (0, []), done.stderr
    phases = [json.loads(line)["phase"] for line in done.stderr.splitlines()]
    assert phases == ["planning", "scan", "rules"]
    assert sum(piece["messages"] for piece in load["pieces"]) == COUNT
    assert {piece["capacity_per_s"] for piece in load["pieces"]} == {1.0}
    assert sum(day["messages"] for day in load["days"]) == COUNT
    late = duemq("reconcile", "lateness", stores.sound).stdout
    assert [word in late for word in ("History", "Trend", "steady")] == [True] * 3


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_proof_of_one_migration_and_of_none(stores: Stores, tmp_path: Path) -> None:
    out = str(tmp_path / "rows")
    words = ("reconcile", "proof", stores.sound, "--migration")
    proven = duemq(*words, "run-1", "--out", out)
    assert proven.returncode == 0, proven.stderr
    assert f"Each of {COUNT} messages was delivered exactly once" in proven.stdout
    assert list(Path(out).glob("*.parquet"))
    unknown = duemq(*words, "run-9")
    assert unknown.returncode == 1
    assert unknown.stdout == "The log contains no message of migration run-9.\n"
    again = duemq(*words, "run-1", "--out", out)
    assert again.returncode == 2
    assert again.stderr.lstrip().startswith(
        "duemq: `reconcile proof` could not run: [PATH_ALREADY_EXISTS]"
    )


@pytest.mark.extended
@pytest.mark.usefixtures("on_each_engine")
def test_replicas_with_equal_and_with_other_records(stores: Stores, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(stores.sound, copy)
    equal = duemq("reconcile", "replicas", stores.sound, str(copy), "--json")
    assert (equal.returncode, json.loads(equal.stdout)["differences"]) == (0, [])
    torn = duemq("reconcile", "replicas", stores.sound, stores.torn)
    assert torn.returncode == 1
    assert "Records that differ" in torn.stdout


@pytest.mark.usefixtures("on_each_engine")
def test_plan_counts_pending_messages(stores: Stores) -> None:
    words = ("reconcile", "plan", stores.sound, "--as-of", str(stores.end_ms), "--json")
    found = duemq(*words)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["as_of_ms"] == stores.end_ms
    [level] = json.loads(found.stdout)["levels"]
    assert (level["level"], level["pending"], level["overdue"]) == (5, COUNT, COUNT)


@pytest.mark.usefixtures("on_each_engine")
def test_repair_writes_what_send_reads(stores: Stores, tmp_path: Path) -> None:
    file, none = tmp_path / "f", tmp_path / "none"
    as_of = ("--as-of", str(stores.end_ms))
    found = duemq("reconcile", "repair", stores.lost, "--to", str(file), *as_of, "--json")
    assert found.returncode == 0, found.stderr
    assert {name: json.loads(found.stdout)[name] for name in ("messages", "left")} == {
        "messages": LOST,
        "left": 0,
    }
    lost = list(read_file(file))
    assert [one.body for one in lost] == [b"5/%d" % (2 * n + 1) for n in range(LOST)]
    assert {one.unique_id for one in lost} == {"u"}
    clean = duemq("reconcile", "repair", stores.sound, "--to", str(none))
    assert clean.stdout == f"No message to resend; {none} is empty.\n"
    assert list(read_file(none)) == []


@pytest.mark.usefixtures("on_each_engine")
@pytest.mark.parametrize("job", ["forecast", "plan"])
def test_what_could_not_be_read_is_reported(job: str, stores: Stores) -> None:
    ran = duemq("reconcile", job, stores.torn)
    assert ran.returncode == 1
    assert f"not read            {stores.torn}" in ran.stdout
    assert ran.stdout.endswith("The result is incomplete: parts of the stores could not be read.\n")


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_a_watch_that_looks_once(tmp_path: Path) -> None:
    rig = MigrationRig(tmp_path / "store").open()
    fill(rig, 3, (1,))
    rig.clock.advance(60_000)
    fill(rig, 1, (5,))  # the newest record: level 1 should have come long before it
    rig.close()
    words = ("reconcile", "watch", str(tmp_path / "store"), "--home", str(tmp_path / "w"), "--once")
    first = duemq(*words)
    assert first.returncode == 0, first.stderr
    alarms = [json.loads(line) for line in first.stdout.splitlines()]
    assert [alarm["verdict"] for alarm in alarms] == ["late"] * 3
    again = duemq(*words)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.stderr.splitlines()[-1].startswith("duemq: 0 violations reported")


@pytest.mark.spark
@pytest.mark.usefixtures("on_spark")
def test_errors_of_spark_are_raised_and_not_logged() -> None:
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        assert not PySparkLogger.getLogger(name).isEnabledFor(logging.ERROR)
