"""Time of incremental audits: `python -m benchmarks.incremental_audit 10000000 /data/bench`, JSON.

    first         full audit that saves its state
    unchanged     no new records
    incremental   1 % more messages, put and delivered since
    full          full audit without state; its verdicts must be those of the incremental one

Each audit is a process, as from cron. The store has twice as many records as messages.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.loads.reconciliation import fill, run_child
from benchmarks.machine import describe
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import plan_log

SHARE = 100
PAUSE_MS = 60_000


def main(count: int, folder: Path) -> None:
    """Print the results for a number of messages."""
    store = folder / "store"
    fill(store, count)
    results = dict(_audits(store, folder, count))
    assert results["incremental"]["verdicts"] == results["full"]["verdicts"]
    print(json.dumps({"machine": describe(), "messages": count} | results, indent=2))


def _audits(store: Path, folder: Path, count: int) -> Iterator[tuple[str, dict[str, object]]]:
    state = ("--state", str(folder / "state"))
    yield "first", _audit(store, folder, state)
    yield "unchanged", _audit(store, folder, state)
    end_ms = plan_log(Root(str(store))).last_ms  # a clock that is set back would be a finding
    fill(store, max(count // SHARE, 1), end_ms + PAUSE_MS)
    yield "incremental", _audit(store, folder, state)
    yield "full", _audit(store, folder, ())


def _audit(store: Path, folder: Path, options: tuple[str, ...]) -> dict[str, object]:
    """Return wall time, peak of anonymous memory, verdicts, and the part that was read."""
    words = ["reconcile", "run", str(store), "--ledger", "none", "--json", *options]
    seconds, peak_mb, text = run_child([sys.executable, "-m", "duemq", *words], folder)
    summary = json.loads(text)
    names = ("verdicts", "state")
    return {"wall_s": round(seconds, 1), "anonymous_mb": round(peak_mb)} | {
        name: summary[name] for name in names
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
