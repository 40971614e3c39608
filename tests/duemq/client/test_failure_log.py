"""Log lines about failures that repeat."""

from __future__ import annotations

import logging

import pytest

from duemq.client.failure_log import FailureLog


def test_a_reason_has_one_line_until_it_changes_or_the_attempt_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailureLog(logging.getLogger("test"))
    for subject, reason in (("a", "away"), ("a", "away"), ("b", "away"), ("a", "busy")):
        failures.failed(subject, OSError(reason), "no heartbeat to %s", subject)
    failures.succeeded("a")
    failures.succeeded("a")
    failures.failed("a", OSError("busy"), "no heartbeat to %s", "a")
    assert caplog.messages == [
        "no heartbeat to a: away",
        "no heartbeat to b: away",
        "no heartbeat to a: busy",
        "no heartbeat to a: busy",
    ]
