"""Audit as a program, for `spark-submit` and for `reconcileCron`.

    spark-submit --master spark://HOST:7077 -- .../spark_reconciliation/submit.py STORE --out URL
    python -m spark_reconciliation.submit STORE --connect sc://HOST:15002
    python -m spark_reconciliation.submit STORE --cores 2

The first uses the session of spark-submit, the last creates a local one. The program prints one
line of JSON on standard output. Exit code 0: clean; 1: findings; 2: it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from duemq_common.clock import SystemClock
from duemq_common.errors import DueMQError
from spark_reconciliation.jobs.run import (
    COULD_NOT_RUN,
    AuditRequest,
    LedgerRow,
    absolute,
    check_request,
    is_sparks,
    reason_of,
    run_audit,
)
from spark_reconciliation.local.choice import AUTO_ENGINE, choose_engine
from spark_reconciliation.scan.levels import levels_ms_of
from spark_reconciliation.spark.master import SparkMaster, session_at

LOWEST: Final = 19


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="spark_reconciliation.submit", description="Audit stores.")
    add = made.add_argument
    add("stores", nargs="+", help="store directories or URLs, accessible to every worker")
    add("--late", type=int, default=2_000, metavar="MS", help="maximum lateness that is ok")
    add(
        "--as-of",
        type=_time_ms,
        metavar="MS",
        help="time until which due messages should be delivered: now, or ms since the epoch",
    )
    add("--levels", default="", help="messageDelayLevel, if neither queues nor the store have it")
    add("--trust-clock", action="store_true", help="accept clock steps that the log confirms")
    add("--out", default="", metavar="URL", help="directory for the verdicts, as Parquet")
    add("--report", type=Path, metavar="FILE", help="file for the HTML report")
    add("--ledger", default="", metavar="URL", help="URL of the ledger; none: no row is written")
    add("--made-by", default="", help="name of the user or job that runs the audit")
    add(
        "--capacity",
        type=int,
        default=0,
        metavar="N",
        help="maximum messages per second, for the forecast",
    )
    add("--connect", default="", metavar="URL", help="Spark Connect server: sc://HOST:PORT")
    add(
        "--cores",
        type=int,
        default=0,
        help="start Spark on this machine with so many parallel tasks",
    )
    add("--memory", default="1g", help="memory of the Java process, with --cores")
    add("--idle", action="store_true", help="run at idle priority of processor and disk")
    add("--with-parent", action="store_true", help="end when standard input is closed")
    return made


def _time_ms(text: str) -> int:
    return SystemClock().now_ms() if text == "now" else int(text)


def main(words: Sequence[str]) -> int:
    """Run an audit; return the exit code."""
    given = parser().parse_args(words)
    if given.idle:
        set_idle_priority()
    if given.with_parent:
        end_with_parent()
    try:
        code, response = _audited(given)
    except DueMQError as error:  # a named ledger cannot be used
        code, response = COULD_NOT_RUN, {"why": str(error)}
    sys.stdout.write(json.dumps({"exit_code": code, **response}, default=str) + "\n")
    sys.stdout.flush()
    return code


def _audited(given: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    request = AuditRequest(
        stores=tuple(map(absolute, given.stores)),
        late_ms=given.late,
        as_of_ms=given.as_of,
        levels_ms=levels_ms_of(given.levels),
        trust_clock=given.trust_clock,
        out=given.out,
        report=given.report,
        capacity_per_s=given.capacity,
        made_by=given.made_by,
    )
    ledger_row = LedgerRow.begin(
        request, given.ledger, clock=SystemClock(), salt=os.urandom(2), warn=_warn
    )
    response = {"audit_id": ledger_row.audit_id}
    try:
        check_request(request)
        spark = session_at(replace(_master(given, request.stores), light=request.brief))
        try:
            summary = run_audit(spark, request, SystemClock())
        finally:
            spark.stop()
    except (DueMQError, OSError) as error:
        return ledger_row.failed(str(error)), response | {"why": str(error)}
    except Exception as error:
        if not is_sparks(error):
            raise
        return ledger_row.failed(reason_of(error)), response | {"why": reason_of(error)}
    return ledger_row.done(summary), response | summary.to_json()


def _master(given: argparse.Namespace, stores: Sequence[str]) -> SparkMaster:
    """Return the session's settings; on this machine, the stores decide about the engine."""
    submitted = not given.cores and not given.connect
    engine = choose_engine(AUTO_ENGINE, stores, spark_requested=submitted or bool(given.connect))
    return SparkMaster(
        cores=given.cores,
        memory=given.memory,
        connect=given.connect,
        submitted=submitted,
        engine=engine,
    )


def set_idle_priority() -> None:
    """Run this process and its children at idle priority."""
    with suppress(OSError):
        os.nice(LOWEST)
    with suppress(OSError, AttributeError):  # Linux only
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def end_with_parent() -> None:
    """End this process and its children when its standard input is closed."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
