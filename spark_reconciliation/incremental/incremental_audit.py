r"""Audit with saved state: what is new, and what may have another verdict since the last audit.

    state --carry--> closed messages: counted -----------+
          \-------> records to read again --+            +--> counts and findings, next state
    new records of the log -----------------+--> rules --+

A message is closed if it was delivered once, in time and unchanged, or is pending and not due. Only
a record that names it, the time, or the progress of its owner changes its verdict. All other
messages are read again. Without a former state the audit is a full one; both have the same result.

Records of Apache's brokers do not name their origins, so such stores are always audited in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from spark_reconciliation.arrays import Numbers
from spark_reconciliation.audit.aggregated_audit import aggregate_verdicts
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.summary import StateUse, Summary, summarize
from spark_reconciliation.audit.verdicts import UNREAD_ROLES
from spark_reconciliation.incremental.audit_state import (
    AuditSettings,
    AuditState,
    FullAuditNeeded,
    check_folder,
    next_number,
    read_state,
    write_state,
)
from spark_reconciliation.incremental.carry import Carried, Present, carry
from spark_reconciliation.incremental.closed_messages import ClosedFiles, Closing, read_columns
from spark_reconciliation.incremental.next_state import (
    RareFacts,
    compared_timers,
    known_queues,
    last_mark,
)
from spark_reconciliation.incremental.state_check import check_state
from spark_reconciliation.jobs.phases import PLANNING, RULES, current_phases
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.local.streams import in_threads
from spark_reconciliation.scan.file_runs import scans_of
from spark_reconciliation.scan.planned_store import Planned, plan_store
from spark_reconciliation.scan.planning import (
    PARTITION_BYTES,
    ScanSegment,
    grouped,
    log_segments,
)
from spark_reconciliation.scan.scanned_topics import ScannedTopics
from spark_reconciliation.scan.store_part import NOTHING, StorePart
from spark_reconciliation.spark.read import survey_stores
from spark_reconciliation.state_folder import locked

NAMES_CLOSED: Final = "units of queues name records that were counted"


def audit_with_state(
    session: LocalSession, store: str, config: AuditConfig, folder: Path
) -> Summary:
    """Audit a store, incrementally if the state in a directory allows it; save the next state.

    Raises:
        UsageError: The path is not a store, or the directory has not its state.
        OSError: The state cannot be written.
    """
    check_folder(folder)
    with locked(folder, f"another audit uses {folder}"):
        current_phases().begin(PLANNING)
        try:
            former = read_state(folder)
            records = () if former.last is None else (former.last.offset,)
            planned = plan_store(0, store, records=records)
            check_state(former, planned, config, folder)
            return _audit(session, planned, config, folder, former)
        except FullAuditNeeded as error:
            reason = str(error)
        return _audit(session, plan_store(0, store), config, folder, None, reason)


def _audit(
    session: LocalSession,
    store: Planned,
    config: AuditConfig,
    folder: Path,
    former: AuditState | None,
    full_because: str = "",
) -> Summary:
    """Audit, and save the next state.

    Raises:
        FullAuditNeeded: The result would not be that of a full audit.
    """
    number, timer_pos = next_number(folder), compared_timers(store)
    files = ClosedFiles(folder, number)
    try:
        carried = Carried()
        if former is not None:
            present = _present(session, store, config, former)
            carried = carry(folder, former.files, present, files)
            store = replace(store, part=_part(former, store, carried, timer_pos))
        part = store.part or StorePart()
        closing = Closing(files, store.plan.min, _covered_end(store))
        survey, tallies = survey_stores(
            session,  # type: ignore[arg-type]
            [store.root.url],
            config,
            planned=[store],
            note=closing.take,
        )
        facts = RareFacts.of(survey, store)
        if former is not None:
            _check(facts, folder, former, part)
        if facts.refusal:
            tallies = replace(tallies, note=None)
        current_phases().begin(RULES)
        brief = aggregate_verdicts(survey, tallies)
        unread = survey.unread if survey.met & UNREAD_ROLES else None
        summary = summarize(brief.rest, unread, kept=brief.kept + carried.rows())
        state = _next_state(number, store, config, facts)
        state = replace(
            state,
            queues=known_queues(survey, part.queues, facts),
            timer_pos=0 if facts.has_timer_faults else timer_pos,
        )
        if facts.refusal:
            files.abandon()
        else:
            files.records.add(facts.records)
            state = replace(state, files=files.close())
        write_state(folder, state)
    except BaseException:
        files.abandon()
        raise
    return replace(
        summary, state=StateUse(full_because, part.start, state.end, int(part.records.size))
    )


def _next_state(number: int, store: Planned, config: AuditConfig, facts: RareFacts) -> AuditState:
    """Return the state after an audit, without queues, timers and files."""
    return AuditState(
        number=number,
        store=store.root.url,
        settings=AuditSettings.of(config),
        refusal=facts.refusal,
        log_min=store.plan.min,
        end=store.plan.end,
        last=last_mark(store),
        checked=store.is_covered,
        delays=dict(store.progress.delays),
        inspected=facts.inspected,
        read_ms=store.progress.read_ms,
    )


def _covered_end(store: Planned) -> int:
    """Return the log offset before which records were compared with the units of their queues.

    If nothing is known about the queues of a store, no record is compared, now and later.
    """
    return store.progress.queue_coverage.end if store.is_covered else store.plan.end


def _present(
    session: LocalSession, store: Planned, config: AuditConfig, former: AuditState
) -> Present:
    segments = log_segments(store.root, store.plan, bytes_max=PARTITION_BYTES, first=former.end)
    groups = grouped(segments, PARTITION_BYTES, ScanSegment.length)
    origins = in_threads(partial(_origins, end=former.end), groups, session.threads)
    named = np.unique(np.concatenate([NOTHING, *origins]))
    as_of_ms = store.last_ms if config.as_of_ms is None else config.as_of_ms
    return Present(store.plan.min, store.progress, as_of_ms - config.late_ms, named)


def _origins(segments: Sequence[ScanSegment], end: int) -> Numbers:
    """Return the log offsets before `end` that records of segments name as their origins."""
    origins = [NOTHING]
    for scan in scans_of(segments, topics=ScannedTopics()):
        for rows in scan.chunks() if scan.open() else ():
            named = ~rows["prepared_offset"][rows["prepared_offset"] < 0]
            origins.append(np.unique(named[named < end]))
    return np.concatenate(origins)


def _part(former: AuditState, store: Planned, carried: Carried, timer_pos: int) -> StorePart:
    """Return the part of a store that is read."""
    records = np.unique(np.concatenate(carried.records))
    read_ms, before_ms = store.progress.read_ms, former.read_ms
    # a timer log that was written again, or timers that are pending again, are compared again
    is_same = timer_pos >= former.timer_pos and (read_ms or 0) >= (before_ms or 0)
    return StorePart(
        former.end,
        records[records >= store.plan.min],
        tuple(sorted(former.inspected)),
        {(queue.topic, queue.queue_id): queue for queue in former.queues},
        former.timer_pos if is_same else 0,
        np.sort(np.concatenate(carried.removed)),
    )


def _check(facts: RareFacts, folder: Path, former: AuditState, part: StorePart) -> None:
    """Check that the closed messages are still correct.

    Raises:
        FullAuditNeeded: They may not be.
    """
    if facts.refusal:
        raise FullAuditNeeded(facts.refusal)
    units = facts.faulty_units[facts.faulty_units < part.start]
    units = units[~np.isin(units, part.records)]
    if not units.size:
        return
    for name in former.files:
        for columns in read_columns(folder / name):
            if any(np.isin(column, units).any() for column in columns[:2]):
                raise FullAuditNeeded(NAMES_CLOSED)
