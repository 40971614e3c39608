"""Random histories of a store, audited after each of several steps: as a full audit each time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark_reconciliation.incremental.conftest import Audit
from tests.support.audited_rig import AuditedRig
from tests.support.migration_rig import kill_opened

KINDS = 20
EXPECTED = ("", "there is no state in", "the units of queues were not complete")
"""Beginnings of the reasons for full audits of these stores."""
numbers = st.integers(0, 23)
parts = st.lists(st.tuples(st.integers(0, KINDS - 1), numbers), min_size=1, max_size=8)


histories = st.lists(parts, min_size=2, max_size=5)


@given(histories=histories)
@settings(max_examples=2)
def test_incremental_audits_of_random_histories(audit: Audit, histories: Any) -> None:
    check(audit, histories)


@pytest.mark.extended
@given(histories=histories)
@settings(max_examples=60)
def test_incremental_audits_of_many_random_histories(audit: Audit, histories: Any) -> None:
    check(audit, histories)


def check(audit: Audit, histories: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        rig = AuditedRig(Path(name) / "store")
        try:
            for history in histories:
                for kind, number in history:
                    rig.step(kind, number)
                use = audit(rig.root, Path(name) / "state")
                assert use.full_because.startswith(EXPECTED)
                rig.audited()
        finally:
            kill_opened()
