"""Session of the local engine, and an audit whose result is compared with a full one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.summary import StateUse, Summary, summarize
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.incremental import carry
from spark_reconciliation.incremental.incremental_audit import audit_with_state
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.spark.read import count_stores
from tests.support.migration_rig import kill_opened


@pytest.fixture(scope="module")
def session() -> Iterator[LocalSession]:
    made = LocalSession(cores=1)
    with use_engine_of(made):
        yield made
    made.stop()


@pytest.fixture(autouse=True)
def _small_files_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of the few messages of tests remain files of the next state."""
    monkeypatch.setattr(carry, "KEPT_ROWS_MIN", 1)


@pytest.fixture(autouse=True)
def _no_rig_stays_open() -> Iterator[None]:
    yield
    kill_opened()


def full_audit(session: Any, store: Path, config: AuditConfig) -> Summary:
    """Return the result of a full audit: the naive twin of an incremental one."""
    brief, unread = count_stores(session, [str(store)], config)
    return summarize(brief.rest, unread, kept=brief.kept)


class Audit:
    """Audit of a store with the state in a directory, compared with a full one.

    Attributes:
        verdicts: Counts of the verdicts of the last audit.
    """

    def __init__(self, session: LocalSession) -> None:
        self._session = session
        self.verdicts: dict[str, int] = {}

    def __call__(self, store: Path, state: Path, config: AuditConfig | None = None) -> StateUse:
        """Return how the state was used."""
        config = config or AuditConfig()
        summary = audit_with_state(self._session, str(store), config, state)
        expected = full_audit(self._session, store, config)
        assert summary.state is not None
        assert replace(summary, state=None) == expected, summary.state
        self.verdicts = expected.verdicts
        return summary.state


@pytest.fixture(scope="module")
def audit(session: LocalSession) -> Audit:
    return Audit(session)
