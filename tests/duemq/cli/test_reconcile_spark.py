"""Interrupted audits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment
from tests.support.golden_stores import golden_store

END_S = 60
ENDLESS = """
import sys, threading
from spark_reconciliation.jobs import run

def endless(*arguments):
    print("working", flush=True)
    threading.Event().wait()

run.run_audit = endless
sys.argv = ["duemq", "reconcile", "run", sys.argv[1], "--ledger", "none"]
from duemq.cli import main
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_audit_ends_without_its_result(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    store = golden_store("apache-5.3.3-clean")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(store)],
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n"
            process.send_signal(number)
            assert process.wait(END_S) == code
        finally:
            process.kill()
    assert list(temporary.iterdir()) == []
