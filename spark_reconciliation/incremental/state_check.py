"""Comparison of a saved state with the store that it is to be used for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from duemq_common.errors import UsageError
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.incremental.audit_state import AuditSettings, AuditState, FullAuditNeeded
from spark_reconciliation.scan.planned_store import Planned
from spark_reconciliation.scan.record_mark import read_mark


def check_state(state: AuditState, store: Planned, config: AuditConfig, folder: Path) -> None:
    """Check that an audit may continue from a state.

    Raises:
        UsageError: It is the state of another store.
        FullAuditNeeded: The log does not continue it, or what it has counted may have changed.
    """
    root, plan = store.root, store.plan
    reason = _log_reason(state, store)
    if state.store != root.url:
        if reason:
            raise UsageError(
                f"{folder} is the state of {state.store}: name another directory for {root.url}"
            )
        reason = f"the state is of {state.store}"
    if not reason and state.settings != AuditSettings.of(config):
        reason = "the state was saved with other values of --late, --levels or --trust-clock"
    if not reason and not state.checked and store.is_covered:
        reason = "the units of queues were not complete in the last audit"
    if not reason and not _has_delays(store.progress.delays, state.delays):
        reason = "levels have other delays than in the last audit"
    if reason or state.refusal:
        raise FullAuditNeeded(reason or f"in the last audit, {state.refusal}")
    assert plan.end >= state.end


def _log_reason(state: AuditState, store: Planned) -> str:
    """Return why the log does not continue the one of a state; empty if it does."""
    plan = store.plan
    if plan.end < state.end:
        return f"the log ends at {plan.end}, before the end of the last audit, {state.end}"
    if plan.min < state.log_min:
        return f"the log begins at {plan.min}, before the begin of the last audit, {state.log_min}"
    if state.last is None or state.last.offset < plan.min:
        return "the log has no record of the last audit"
    if read_mark(store.root, plan, state.last.offset) != state.last:
        return "the last record of the last audit is not in the log"
    return ""


def _has_delays(
    present: Mapping[int, tuple[int, ...]], former: Mapping[int, tuple[int, ...]]
) -> bool:
    """Return whether the levels have all delays that they had."""
    return all(
        present.get(level) == delays or (delays and set(delays) <= set(present.get(level, ())))
        for level, delays in former.items()
    )
