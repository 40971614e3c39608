"""`duemq reconcile run` and `history`: audits and the list of recorded audits."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from duemq.cli.exits import Exit
from duemq.cli.messages import time_text
from duemq.cli.output import console, print_json, print_table, table
from duemq.cli.reconcile_spark import could_not_run, in_spark, with_engine
from duemq.cli.times import parse_time
from duemq_common.clock import SystemClock

if TYPE_CHECKING:
    from spark_reconciliation.audit.summary import StateUse, Summary
    from spark_reconciliation.jobs.outside import ProofSummary
    from spark_reconciliation.jobs.replicas import GroupResult
    from spark_reconciliation.jobs.run import AuditRequest
    from spark_reconciliation.spark.master import SparkMaster

Row = dict[str, Any]  # row of a summary
COUNTS = {
    "sent": "in the table",
    "accepted": "in the store",
    "delivered": "delivered",
    "received": "received",
}
"""Numbers of a row of a comparison, and their names for a reader."""
TIMES = {
    "promised_ms": "promised",
    "accepted_ms": "due in the store",
    "due_ms": "due",
    "delivered_ms": "delivered",
    "received_ms": "received",
}
"""Times of a row of a comparison, and their names for a reader."""
AUDITS = ("audit", "started (UTC)", "seconds", "by", "exit", "#messages", "findings", "#p99 ms")


def reconcile(request: AuditRequest, master: SparkMaster, ledger: str, *, as_json: bool) -> None:
    """Audit, print, and exit 0 (clean), 1 (findings) or 2 (could not run)."""
    from spark_reconciliation.jobs.run import LedgerRow, check_request, run_audit
    from spark_reconciliation.local.choice import SPARK_ENGINE
    from spark_reconciliation.spark.archive_file import ClassArchive
    from spark_reconciliation.spark.class_archive import make_later
    from spark_reconciliation.spark.requirements import find_java

    clock, warn = SystemClock(), _warn
    master = replace(master, light=request.brief)
    with could_not_run():
        ledger_row = LedgerRow.begin(request, ledger, clock=clock, salt=os.urandom(2), warn=warn)
    with could_not_run(ledger_row.failed):
        check_request(request)
        if request.state is not None:
            master = _without_spark(master)
        compared = request.comparison is not None and request.comparison.needs_spark
        master = with_engine(master, request.stores, spark_requested=compared, brief=request.brief)
        summary = in_spark(
            master, "audit", lambda spark: run_audit(spark, request, clock), shown=not as_json
        )
    code = ledger_row.done(summary)
    if as_json:
        print_json({"audit_id": ledger_row.audit_id, **summary.to_json()})
    else:
        _print(summary)
    if master.engine == SPARK_ENGINE and not master.connect:
        make_later(ClassArchive.of(find_java()))
    if code:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _without_spark(master: SparkMaster) -> SparkMaster:
    """Return the master of an audit with saved state.

    Raises:
        UsageError: Spark is requested.
    """
    from duemq_common.errors import UsageError
    from spark_reconciliation.local.choice import LOCAL_ENGINE, SPARK_ENGINE

    if master.engine == SPARK_ENGINE or master.connect or master.settings:
        raise UsageError("--state works without Spark: omit --engine spark, --connect and --conf")
    return replace(master, engine=LOCAL_ENGINE)


def as_of_ms(text: str) -> int | None:
    """Return the time of `--as-of` in ms since the epoch; None if absent."""
    return parse_time(text, SystemClock().now_ms()) if text else None


def user() -> str:
    """Return the user of this process, for the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def history(store: str, url: str, *, as_json: bool) -> None:
    """Print the audits of a ledger, without Spark."""
    from duemq_common.errors import UsageError
    from duemq_common.ledger.engine import default_url
    from spark_reconciliation.jobs.audit_ledger import AuditLedger

    if bool(store) == bool(url):
        raise UsageError("give either the store's directory or --ledger URL")
    ledger = AuditLedger.open_existing(url or default_url(store))
    try:
        audits = ledger.audits()
    finally:
        ledger.close()
    if as_json:
        from dataclasses import asdict

        print_json([asdict(record) | {"messages": record.messages} for record in audits])
    else:
        print_table("audits", AUDITS, [_row(record) for record in audits], nothing="no audits yet")


def _row(record: Any) -> tuple[object, ...]:
    from spark_reconciliation.audit.rules import CLEAN

    bad = [f"{name} {count:,}" for name, count in record.verdicts.items() if name not in CLEAN]
    remark = record.why or ", ".join(bad) or ("" if record.complete else "incomplete")
    seconds = f"{(record.ended_ms - record.started_ms) / 1_000:.1f}"
    late = "" if record.late_p99_ms is None else f"{record.late_p99_ms:,}"
    return (
        record.audit_id,
        time_text(record.started_ms),
        seconds,
        record.made_by,
        record.exit_code,
        f"{record.messages:,}",
        remark,
        late,
    )


def _warn(text: str) -> None:
    console(stderr=True).print(f"duemq: {text}", markup=False, soft_wrap=True)


def _print(summary: Summary) -> None:
    out = console()
    rows = [(name, f"{count:,}") for name, count in summary.verdicts.items()]
    out.print(table("Scheduled messages", ("verdict", "#messages"), rows))
    times = [f"{name} {value}" for name, value in summary.lateness_ms.items() if value is not None]
    if times:
        out.print(f"Late by, in ms: {', '.join(times)}", markup=False)
    for line in finding_lines(summary.offenders):
        out.print(line, markup=False, soft_wrap=True)
    print_unread(summary.unread)
    for row in summary.clock:
        position = f"{row['store']}/{row['file']} at byte {row['offset']}"
        out.print(f"{'clock':20}{position}: {row['note']}", markup=False, soft_wrap=True)
    if summary.clock:
        from spark_reconciliation.report.page import clock_text

        out.print(clock_text(summary), markup=False, soft_wrap=True)
    for group in summary.groups:
        _print_group(group)
    for proof in summary.outside:
        _print_proof(proof)
    if summary.state is not None:
        out.print(_state_text(summary.state), markup=False, soft_wrap=True)
    out.print(summary.conclusion, markup=False)


def _state_text(use: StateUse) -> str:
    """Return a line about the part of the log that was read."""
    if use.full_because:
        return f"Full audit: {use.full_because}."
    size = use.end - use.start
    return f"Incremental audit: {size:,} new bytes of the log, and {use.earlier:,} earlier records."


def _print_group(group: GroupResult) -> None:
    """Print which store of a group was audited, and how the others differ."""
    out = console()
    for log in group.logs:
        audited = " (audited)" if log.store == group.store else ""
        end = f", lacks the last {log.behind:,} bytes" if log.behind else ""
        text = f"log from {log.log_min:,} to {log.log_end:,}{end}"
        out.print(f"{'group':20}{log.store}{audited}: {text}", markup=False, soft_wrap=True)
    for row in group.examples:
        text = f"{row.verdict} at log offset {row.phys_offset:,}; in {', '.join(row.have)}"
        out.print(f"{'divergent':20}{text}", markup=False, soft_wrap=True)


def _print_proof(proof: ProofSummary) -> None:
    from spark_reconciliation.report.page import PROOF_TITLES

    out = console()
    rows = [(name, f"{count:,}") for name, count in proof.outcomes.items()]
    out.print(table(PROOF_TITLES[proof.table], ("outcome", "#names"), rows))
    times = [f"{name} {value}" for name, value in proof.lateness_ms.items() if value is not None]
    if times:
        out.print(f"Received after the promised time, in ms: {', '.join(times)}", markup=False)
    if proof.skipped:
        out.print(f"{proof.skipped:,} rows of the table have no time and were skipped.")
    for row in proof.examples:
        out.print(proof_line(row), markup=False, soft_wrap=True)


def proof_line(row: Mapping[str, object]) -> str:
    """Return a line about a name with a finding of a comparison."""
    counts = {label: row[name] for name, label in COUNTS.items() if name in row}
    facts = [f"{count} {label}" for label, count in counts.items()]
    if not any(isinstance(count, int) and count > 1 for count in counts.values()):
        facts = []
    for name, label in TIMES.items():
        ms = row.get(name)
        if isinstance(ms, int):
            facts.append(f"{label} {time_text(ms)}")
    return f"{row['outcome']}: topic {row['topic']}, {row['name']} ({', '.join(facts)})"


def finding_lines(rows: list[Row]) -> Iterator[str]:
    """Yield lines about messages with findings: for each verdict and reason, then some messages."""
    for (verdict, reason), same in groupby(rows, lambda row: (row["verdict"], row["why"])):
        some = list(same)
        count = some[0]["alike"]
        shown = f"{len(some)} of {count:,} shown" if count > len(some) else f"{count:,}"
        yield f"{verdict}: {reason} ({shown})"
        for row in some:
            due, sent = (_time(row[name]) for name in ("due_ms", "delivered_ms"))
            name = f", id {row['unique_id']}" if row["unique_id"] else ""
            details = f"topic {row['topic'] or '?'}, due {due}, delivered {sent}{name}"
            yield f"    {row['store']}: log offset {row['root']} ({details})"


def _time(ms: int | None) -> str:
    return "never" if ms is None else time_text(ms)


def print_unread(places: list[Row]) -> None:
    """Print a line for each unreadable position."""
    for row in places:
        position = f"{row['store']}: log offset {row['phys_offset']}"
        if row.get("file"):
            position = f"{row['store']}/{row['file']} at byte {row['offset']}"
        reason = ": ".join(word for word in (row["damage"], row.get("note")) if word)
        console().print(f"{'not read':20}{position}: {reason}", markup=False, soft_wrap=True)
