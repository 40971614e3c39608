"""Clock steps: a sample of the campaign, and the generated page."""

from __future__ import annotations

import pytest

from duemq_common.clock import FakeClock
from tests.clock_steps.campaign import FIRST_RUN_S_MAX, PATTERNS, PHASES, page, run_apart
from tests.storage_faults.call_sites import TOP

PAGE = TOP / "docs" / "reference" / "clock-steps.md"

pytestmark = pytest.mark.crash


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("pattern", "phase"),
    [
        ("10 years forward and back", "running"),
        ("strobing by 1 hour", "running"),
        ("1 hour back", "killed"),
        ("10 years back", "stopped"),
    ],
)
def test_no_step_breaks_a_promise(pattern: str, phase: str) -> None:
    report = run_apart(pattern, phase, FIRST_RUN_S_MAX)
    assert report["problems"] == []
    assert report["sent"] > 40


def test_leases_by_the_wall_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the campaign detects locks that expire by the wall clock."""
    monkeypatch.setattr(FakeClock, "steady_ms", FakeClock.now_ms)
    forward = run_apart("1 hour forward", "running", FIRST_RUN_S_MAX)
    assert "a lock ended at the step" in forward["problems"]
    back = run_apart("1 hour back", "running", FIRST_RUN_S_MAX)
    assert "a lock was not released in time" in back["problems"]


def test_the_page_has_every_pattern_and_moment() -> None:
    text, _ = PAGE.read_text().split("\n## ")  # the other section has measurements
    count = len(PATTERNS) * len(PHASES)
    assert f"**0 of {count} runs broke" in text
    reports = [  # type: ignore[var-annotated]
        {"pattern": pattern, "phase": phase, "problems": [], "late_ms": 0}
        for pattern in PATTERNS
        for phase in PHASES
    ]
    assert _names(text) == _names(page(reports))


def _names(text: str) -> list[str]:
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
