"""The same audit on a cluster of two workers and with Spark Connect, with their requirements."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_reconciliation.spark.session import SETTINGS
from tests.spark_reconciliation import clusters
from tests.support.golden_stores import golden_store
from tests.support.requirements import need_commands, skip_without

STORE = "apache-5.3.3-clean"
KEPT_ROWS = r"Finished task \S+ in stage [1-9]"  # stage 0 reads what the next ones use again
# Earlier, the driver does not know that the task runs, and does not count its failure.
RUNNING_TASK = r"Running task[\s\S]*Reading broadcast variable"
FOUND = {"cancelled": 1, "pending": 62, "ok": 23}
PROGRAM = str(clusters.TOP / "spark_reconciliation" / "submit.py")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with skip_without():
        need_commands("java")
    return tmp_path


def described(ran: Any) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr[-3_000:]
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def submit(master: str, *more: str) -> tuple[str, ...]:
    program = (str(clusters.HOME / "bin" / "spark-submit"), "--master", master)
    settings = ("--properties-file", str(clusters.DEFAULTS), *clusters.SMALL, *more)
    return (*program, *settings, PROGRAM, str(golden_store(STORE)), "--ledger", "none")


@pytest.mark.extended
@pytest.mark.spark
def test_a_cluster_of_two_workers(home: Path) -> None:
    out = home / "verdicts"
    with clusters.cluster(home, workers=2) as master:
        ran = clusters.run(home, *submit(master), "--out", str(out))
        assert described(ran)["verdicts"] == FOUND
    assert {path.parent.name for path in out.rglob("*.parquet")} == {
        f"verdict={name}" for name in FOUND
    }
    logs = list((home / "work").glob("app-*/*/stderr"))
    assert {path.parent.name for path in logs} == {"0", "1"}, "an executor on each worker"


@pytest.mark.extended
@pytest.mark.spark
def test_workers_get_duemq_as_an_archive(home: Path) -> None:
    """The commands of docs/how-to/audit.md; the workers' Python has no packages."""
    packages, bare = home / "duemq-workers", home / "bare"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-compile"]
    install += ["-c", str(clusters.TOP / "constraints.txt"), "--target", str(packages)]
    subprocess.run([*install, str(clusters.TOP), "pyarrow", "pandas<3", "fsspec"], check=True)
    archive = home / "duemq-workers.tar.gz"
    subprocess.run(
        ["tar", "-C", str(packages), "-I", "gzip -1", "-cf", str(archive), "."], check=True
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    python = str(bare / "bin" / "python")
    has_packages = subprocess.run([python, "-c", "import numpy"], check=False, capture_output=True)
    assert has_packages.returncode
    shipped = {
        "spark.archives": f"{archive}#duemq-workers",
        "spark.executorEnv.PYTHONPATH": "duemq-workers",
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
    }
    more = [word for key, value in shipped.items() for word in ("--conf", f"{key}={value}")]
    with clusters.cluster(home, workers=2, tree=False) as master:
        assert described(clusters.run(home, *submit(master, *more)))["verdicts"] == FOUND
        without = clusters.run(home, *submit(master, *more[4:]))
    assert without.returncode == 2
    reason = json.loads(without.stdout.splitlines()[-1])["why"]
    assert re.fullmatch(r"No module named '\w+': the workers need DueMQ, .*", reason)


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.finding("3P4")
def test_lost_executors(home: Path) -> None:
    with clusters.cluster(home, workers=2) as master:
        with clusters.kills(home, KEPT_ROWS, 1) as killed:
            ran = clusters.run(home, *submit(master))
        assert described(ran)["verdicts"] == FOUND
        assert len(killed) == 1
        with clusters.kills(home, RUNNING_TASK, 4) as killed:
            ran = clusters.run(home, *submit(master, "--conf", "spark.task.maxFailures=2"))
        assert (ran.returncode, len(killed) > 1) == (2, True)
    reason = json.loads(ran.stdout.splitlines()[-1])["why"]
    assert re.fullmatch(r"executor \d exited .*: Command exited with code 137", reason)


@pytest.mark.extended
@pytest.mark.spark
def test_spark_connect(home: Path) -> None:
    pytest.importorskip("grpc")
    with clusters.connect_server(home) as url:
        words = (sys.executable, "-m", "spark_reconciliation.submit", str(golden_store(STORE)))
        ran = clusters.run(home, *words, "--connect", url, "--report", str(home / "r.html"))
        found = described(ran)
    assert found["verdicts"] == FOUND
    assert ran.stderr == "", "Spark's noise"
    assert "By level and topic" in (home / "r.html").read_text()


def test_documented_restrictions_are_applied() -> None:
    lines = re.findall(r"^(spark\.\S+)\s+(\S+)$", clusters.DEFAULTS.read_text(), re.M)
    shipped = dict(lines)
    assert len(shipped) == len(lines)
    assert shipped.items() >= SETTINGS.items()
    rest = [line for line in clusters.DEFAULTS.read_text().splitlines() if line.strip()]
    assert all(line.startswith(("#", "spark.")) for line in rest)
