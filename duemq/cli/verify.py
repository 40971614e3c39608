"""`duemq store verify`: damage in a store directory, with file and byte position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duemq.cli.exits import Exit
from duemq.cli.output import console, print_json, progress_bars, table
from duemq.registry.verify import OFFSETS
from duemq.replication.verify import EPOCHS
from duemq_common.config import Properties, from_properties, options
from message_store.config import StoreConfig
from message_store.verify import Report, verify_store
from schedule_service.verify import LEVELS
from timer_store.verify import TIMERS

LABELS = {
    "log_min": "first log offset",
    "log_end": "end of the log",
    "units_behind_log": "units that point after the end of the log",
    "index_items_behind_log": "index items that point after the end of the log",
    "index_items_of_damage": "index items of damaged records",
    "keys_missing": "keys without an index item",
    "records_without_queue": "records without a unit",
}
STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


def verify(directory: Path, properties: Properties, *, as_json: bool) -> None:
    """Print a report; exit 1 if the store is damaged."""
    config = replace(from_properties(StoreConfig, properties), root_text=str(directory))
    slots = config.index_slots_max if _is_set("index_slots_max", properties) else 0
    commitlog = config.commitlog_dir if _is_set("commitlog_text", properties) else None
    with progress_bars(shown=not as_json) as progress:
        report = verify_store(
            directory,
            progress,
            commitlog=commitlog,
            index_slots=slots,
            parts=[LEVELS, TIMERS, OFFSETS, EPOCHS],
        )
    if as_json:
        print_json(report.to_json())
    else:
        _print(directory, report)
    if not report.ok:
        raise SystemExit(int(Exit.FOUND_FAULT))


def _is_set(field: str, properties: Properties) -> bool:
    [key] = [item.key for item in options(StoreConfig) if item.name == field]
    return key in properties


def _print(directory: Path, report: Report) -> None:
    out = console()
    figures = [
        (LABELS.get(name, name.replace("_", " ")), f"{value:,}")
        for name, value in report.figures.items()
    ]
    out.print(table(f"Store {directory}", ("", "#"), figures))
    for finding in report.findings:
        style = STYLES.get(finding.severity, "")
        where = f"{finding.file} at byte {finding.offset}"
        out.print(f"{finding.severity:8}", style=style, end="", markup=False)
        out.print(f"{where}: {finding.text}", markup=False, soft_wrap=True)
    if report.unlisted:
        text = f"... and {report.unlisted} more of the same kinds (--json has the counts)"
        out.print(text, markup=False)
    out.print(_verdict(report), markup=False)


def _verdict(report: Report) -> str:
    errors, warnings = report.severities["error"], report.severities["warning"]
    if errors:
        return f"The store is damaged: {errors} errors, {warnings} warnings."
    return f"The store is sound ({warnings} warnings)."
