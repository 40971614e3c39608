"""`duemq reconcile` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.cli.test_commands import duemq, environment
from tests.golden_data import golden_store

SILENT = (
    "import sys, broker.cli.app; print([m for m in sys.modules if m in {'pyspark', 'pyarrow'}])"
)


def test_what_is_no_store_is_refused_before_spark_starts(tmp_path: Path) -> None:
    ran = duemq("reconcile", "run", str(tmp_path))
    assert ran.returncode == 2
    assert "the audit could not run" in ran.stderr
    assert "is no store: it has neither commitlog nor consumequeue" in ran.stderr


def test_without_java_it_could_not_run(tmp_path: Path) -> None:
    store = str(golden_store("apache-5.3.3-clean"))
    ran = duemq("reconcile", "run", store, env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert ran.returncode == 2
    assert "Spark needs Java 17 or newer" in ran.stderr


def test_other_commands_do_not_load_spark() -> None:
    words = [sys.executable, "-c", SILENT]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, env=environment())
    assert ran.stdout.strip() == "[]"


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
