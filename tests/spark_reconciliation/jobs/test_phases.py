"""Phases of an audit: shown while it runs, and logged."""

from __future__ import annotations

import logging

import pytest

from duemq_common.clock import FakeClock
from spark_reconciliation.jobs.phases import PLANNING, RULES, SCAN, Phases
from spark_reconciliation.jobs.run import AuditRequest, run_audit
from spark_reconciliation.local.frame import LocalSession
from tests.support.golden_stores import golden_store


def test_the_log_has_each_phase_with_its_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    caplog.set_level(logging.INFO)
    with Phases(clock).active() as phases:
        phases.begin(PLANNING)
        clock.advance(1_500)
        phases.begin(SCAN, 100)
        phases.begin(SCAN, 50)
        assert (phases.name, phases.done, phases.total) == (SCAN, 0, 50)
        clock.advance(500)
    events = [(record.phase, record.seconds) for record in caplog.records]  # type: ignore[attr-defined]
    assert events == [(PLANNING, 1.5), (SCAN, 0.5)]


def test_an_audit_reports_its_phases(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    session = LocalSession()
    request = AuditRequest(stores=(str(golden_store("apache-5.3.3-clean")),))
    with Phases().active():
        assert run_audit(session, request, FakeClock()).clean
    session.stop()
    phases = {getattr(record, "phase", "") for record in caplog.records}
    assert {PLANNING, SCAN, RULES} <= phases
