"""Limits of failed logins."""

from __future__ import annotations

import pytest

from duemq.auth.signature import Credentials
from duemq.http.admission import FAILURE_WINDOW_S, FAILURES_MAX, Admission, AdmissionRules
from duemq.http.problems import Problem
from duemq.net.allowed_networks import Sources

ADDRESS = "192.0.2.1"
RIGHT, WRONG = Credentials("root", "secret"), Credentials("root", "wrong")


def refused(admission: Admission, account: Credentials) -> int:
    """Return the status with which a login is refused."""
    with pytest.raises(Problem) as raised:
        admission.check_account(account, ADDRESS)
    return raised.value.details.status


def test_failed_logins_of_others_delay_an_account_for_seconds_only() -> None:
    """The account shares its address with others, as behind a proxy, and is used all the time."""
    now_s = [0.0]
    rules = AdmissionRules(has_accounts=True, sources=Sources("key"), secret={"root": "secret"}.get)
    admission = Admission(rules, lambda: now_s[0])
    for _ in range(FAILURES_MAX):
        assert refused(admission, WRONG) == 401
    assert refused(admission, WRONG) == 429
    for second in range(round(FAILURE_WINDOW_S / FAILURES_MAX)):
        now_s[0] = second
        assert refused(admission, RIGHT) == 429
    now_s[0] = FAILURE_WINDOW_S / FAILURES_MAX + 0.1
    for _ in range(100):
        admission.check_account(RIGHT, ADDRESS)
    assert refused(admission, WRONG) == 401
    assert refused(admission, WRONG) == 429
    admission.check_account(RIGHT, "192.0.2.2")
