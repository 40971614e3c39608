"""Phase `audit`: `duemq reconcile run` on the store, while no broker has it open."""

from __future__ import annotations

import json
import sys

from benchmarks.bench import Metric
from benchmarks.scale.scale_store import ScaleStore, less, more
from benchmarks.watch import watching
from tests.support.child_process import Child
from tests.support.wait_until import Stopwatch, until

AUDIT_S = 3_600
MB = 1_000_000


def audit(scale_store: ScaleStore) -> list[Metric]:
    """Measure time, processor time and peak anonymous memory of an audit; count its verdicts."""
    path, stopwatch = scale_store.root / "audit.log", Stopwatch()
    path.unlink(missing_ok=True)
    words = ("reconcile", "run", str(scale_store.directory), "--json", "--ledger", "none")
    child = Child("audit", [sys.executable, "-m", "duemq", *words], log_path=path)
    try:
        with watching(child) as watch:
            until(lambda: not child.running, seconds=AUDIT_S, what="the audit done", poll_s=0.05)
            seconds = stopwatch.seconds
    finally:
        child.kill()
    text = path.read_text()
    begin = text.find("{\n")  # after the events, of one line each
    if begin < 0:
        raise SystemExit(f"audit: {child.log_tail()}")
    summary, _ = json.JSONDecoder().raw_decode(text, begin)
    findings = len(summary["offenders"]) + len(summary["unread"])
    return [
        less("whole command", seconds, "s"),
        less("processor time", max(sample.cpu_s for sample in watch.samples), "s"),
        less(
            "anonymous memory, peak",
            max(sample.anonymous_bytes for sample in watch.samples) / MB,
            "MB",
        ),
        *(
            more(f"verdict {name}", count, "messages")
            for name, count in summary["verdicts"].items()
        ),
        less("findings listed", findings, "messages"),
    ]
