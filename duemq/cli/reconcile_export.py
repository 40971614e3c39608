"""`duemq reconcile export`: tables of scheduled messages as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from duemq.cli.exits import Exit
from duemq.cli.output import notice, print_json, print_table
from duemq.cli.reconcile_spark import could_not_run
from duemq_common.disk_errors import naming


def export(
    stores: Sequence[str],
    out: Path,
    names: Sequence[str],
    *,
    accept_gap: bool,
    as_delta: bool,
    as_json: bool,
) -> None:
    """Export the new records of stores; exit 1 if ranges of a log are unreadable."""
    from spark_reconciliation.jobs.run import absolute
    from spark_reconciliation.spark.requirements import require_packages

    with could_not_run(subject="the export"):
        require_packages()
        from spark_reconciliation.tables.export import export_stores
        from spark_reconciliation.tables.schemas import TABLES

        paths = list(map(absolute, stores))
        with naming(out):
            steps = export_stores(paths, out, names, accept_gap=accept_gap, as_delta=as_delta)
    if as_json:
        print_json({"steps": [asdict(step) for step in steps]})
    else:
        tables = list(TABLES)
        rows = [
            (step.broker, step.start, step.end, *(step.rows.get(name, 0) for name in tables))
            for step in steps
        ]
        columns = ("broker", "#from", "#to", *(f"#{name}" for name in tables))
        print_table(f"Exported to {out}", columns, rows)
        for step in steps:
            if step.replaced:
                notice(
                    f"{step.broker}: the log was truncated; {step.replaced} former exports of it "
                    f"were replaced"
                )
    unread = [finding for step in steps for finding in step.unread]
    for finding in unread:
        notice(f"not read: {finding.store}/{finding.file} at {finding.offset}: {finding.text}")
    if unread:
        raise SystemExit(int(Exit.FOUND_FAULT))
