"""Sessions of the engine without Spark."""

from __future__ import annotations

import subprocess
import sys

INTERACTIVE = """
from spark_reconciliation.local.frame import LocalSession

session = LocalSession(cores=1)
print(session.relation("SELECT current_setting('enable_progress_bar')").fetchall())
session.stop()
"""


def test_queries_show_no_progress() -> None:
    """DuckDB takes `python -c` for a notebook, where it prints the progress of slow queries."""
    words = [sys.executable, "-c", INTERACTIVE]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[(False,)]\n", "")
