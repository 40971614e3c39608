"""Incremental export of stores: the records since the last step of each broker.

    state --> compare the last record with the log --> rows since then --> staging
          --> state: committed --> files into the tables --> state: published

A killed export is repeated from its start, or, once it is committed, its files are moved by the
next one. A log that was truncated (recovery, change of master) lacks the last record of some steps,
or has another one: these steps are replaced. If no step agrees with the log, the export is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from duemq_common.clock import SystemClock
from duemq_common.errors import UsageError
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import (
    PARTITION_BYTES,
    Finding,
    LogPlan,
    log_segments,
    plan_log,
)
from spark_reconciliation.scan.record_mark import RecordMark, read_mark
from spark_reconciliation.state_folder import locked
from spark_reconciliation.tables.delta_log import has_delta_logs, write_delta_logs
from spark_reconciliation.tables.exported_log import (
    ExportedLog,
    check_complete,
    named_stores,
    plan_of_store,
)
from spark_reconciliation.tables.exported_promises import ExportedPromises
from spark_reconciliation.tables.lateness import hours_of, hours_of_files, stage_lateness
from spark_reconciliation.tables.output import (
    DAY_MS,
    TIME_MS_MAX,
    StepFiles,
    clear_staging,
    day_of,
    publish,
    step_files,
)
from spark_reconciliation.tables.rows import TableRows
from spark_reconciliation.tables.state import (
    FOLDER,
    ExportedBroker,
    ExportState,
    Publication,
    Step,
    read_state,
    write_state,
)


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """Result of the export of one broker.

    Attributes:
        replaced: Number of former steps that were replaced, because the log was truncated.
        unread: Unreadable ranges, which the tables lack.
    """

    broker: str
    store: str
    start: int
    end: int
    rows: dict[str, int] = field(default_factory=dict)
    replaced: int = 0
    unread: tuple[Finding, ...] = ()


class LogChanged(UsageError):
    """The log does not continue the exported one."""


def export_stores(
    stores: Sequence[str],
    out: Path,
    names: Sequence[str] = (),
    *,
    accept_gap: bool = False,
    as_delta: bool = False,
) -> list[ExportedStep]:
    """Export the new records of stores; each store is committed by itself.

    Args:
        names: Name of the broker of each store; empty: the last part of its path.
        accept_gap: Whether to continue although retention removed records before their export.
        as_delta: Whether the tables get Delta logs; those that exist are continued in any case.
    Raises:
        UsageError: A store, the output or its state is invalid; a log does not continue the
            exported one.
        OSError: A store cannot be read, or the output cannot be written.
    """
    brokers = named_stores(stores, names)
    read_state(out)  # before anything is written there
    with locked(out / FOLDER, f"another export writes to {out}"):
        state = _published(out, read_state(out))
        results = []
        for broker, store in brokers.items():
            state, result = _export_store(out, state, broker, store, accept_gap=accept_gap)
            results.append(result)
        if as_delta or has_delta_logs(out):
            write_delta_logs(out, SystemClock().now_ms())
    return results


def _published(out: Path, state: ExportState) -> ExportState:
    """Return the state after the files of a committed step are in their tables."""
    if state.publication is None:
        clear_staging(out)
        return state
    publish(out, state.publication.index, state.publication.dropped)
    state = replace(state, publication=None)
    write_state(out, state)
    return state


def _export_store(
    out: Path, state: ExportState, broker: str, store: str, *, accept_gap: bool
) -> tuple[ExportState, ExportedStep]:
    former = state.brokers.get(broker)
    steps = () if former is None else former.steps[-1:]
    records = [step.last.offset for step in steps if step.last is not None]
    root, plan = plan_of_store(store, partial(plan_log, records=records))
    if former is None:
        former = ExportedBroker(len(state.brokers), store, plan.min)
    dropped = _dropped(root, plan, former, broker, accept_gap=accept_gap)
    kept = replace(
        former, store=store, steps=tuple(s for s in former.steps if s.number not in dropped)
    )
    start = max(kept.end, plan.min)
    check_complete(root, plan, start, "" if accept_gap else "--accept-gap")
    result = ExportedStep(broker, store, start, plan.end, replaced=len(dropped))
    if start >= plan.end and not dropped and former.steps:
        return state, result
    number = state.steps + 1
    log = ExportedLog.of_store(root, plan, broker, former.first)
    earlier = ExportedPromises(out, former.index, dropped)
    files, rows = StepFiles(out, former.index, number), TableRows(log, earlier.find)
    hours = hours_of_files(step_files(out, "delivered", former.index, dropped))
    try:
        segments = log_segments(root, plan, bytes_max=PARTITION_BYTES, first=start)
        for table, batch in rows.read(segments):
            files.add(table, batch)
            hours |= hours_of(batch) if table == "delivered" else set()
        if not kept.steps:
            files.add_missing(day_of(min(max(plan.last_ms, 0), TIME_MS_MAX) // DAY_MS))
        files.close()
        files.counts["lateness"] = stage_lateness(out, broker, former.index, hours, dropped)
        step = Step(number, start, plan.end, *_marks(root, plan, rows))
        _check_files(root, rows.findings)
    except BaseException:
        clear_staging(out)
        raise
    brokers = dict(state.brokers) | {broker: kept.with_step(step, dropped)}
    publication = Publication(former.index, tuple(sorted(dropped)))
    write_state(out, ExportState(number, brokers, publication))
    publish(out, publication.index, publication.dropped)
    state = ExportState(number, brokers)
    write_state(out, state)
    return state, replace(result, rows=files.counts, unread=tuple(rows.findings))


def _marks(
    root: Root, plan: LogPlan, rows: TableRows
) -> tuple[RecordMark | None, RecordMark | None]:
    """Return the first and the last record of the rows that were read.

    Raises:
        LogChanged: The log has no longer these records.
    """
    if rows.first_offset is None or rows.last_offset is None:
        return None, None
    first, last = (
        read_mark(root, plan, offset) for offset in (rows.first_offset, rows.last_offset)
    )
    if first is None or last is None:
        raise LogChanged(f"the log of {root.url} was changed during the export: run it again")
    return first, last


def _check_files(root: Root, findings: Sequence[Finding]) -> None:
    """Raise an error if retention removed a log file while it was read."""
    paths = {entry.path for entry in root.files("commitlog")}
    removed = [one.file for one in findings if one.kind == "unreadable" and one.file not in paths]
    if removed:
        raise LogChanged(f"{removed[0]} was removed during the export: run it again")


def _dropped(
    root: Root, plan: LogPlan, state: ExportedBroker, broker: str, *, accept_gap: bool
) -> frozenset[int]:
    """Return the numbers of the steps that end after the point where the log was truncated.

    Raises:
        LogChanged: The log does not continue any step; retention removed records that no step has.
    """
    dropped: set[int] = set()
    for step in reversed(state.steps):
        is_removed = step.last is None or step.last.offset < plan.min
        if is_removed and not dropped:
            if step.end < plan.min and not accept_gap:
                raise LogChanged(
                    f"the log of {root.url} begins at {plan.min}, and broker {broker} was exported "
                    f"up to {step.end}: records between them were removed before their export, or "
                    f"this is another store. --accept-gap continues at {plan.min}"
                )
            return frozenset()
        if step.end <= plan.end and step.last == _mark_again(root, plan, step.last):
            return frozenset(dropped)
        if step.start < plan.min:  # its rows could not be read again
            break
        dropped.add(step.number)
        if step.first is not None and step.first == _mark_again(root, plan, step.first):
            return frozenset(dropped)
    if not state.steps:
        return frozenset()
    raise LogChanged(
        f"the log of {root.url} is not the one that was exported as broker {broker}: the exported "
        f"records are not at their offsets. Check the store and --broker, or export into a new "
        f"directory"
    )


def _mark_again(root: Root, plan: LogPlan, mark: RecordMark | None) -> RecordMark | None:
    return None if mark is None else read_mark(root, plan, mark.offset)
