"""The page of audit figures has the measured values of audits with many findings."""

from __future__ import annotations

import json
from typing import Any

from tests.test_house_rules import TOP

FIGURES = TOP / "docs" / "figures"
PAGE = TOP / "docs" / "reference" / "audit-figures.md"


def test_the_page_has_the_figures_of_many_findings() -> None:
    assert shown("many-findings.json")["findings"] == 1_000_000


def test_the_page_has_the_figures_of_incremental_audits() -> None:
    measured = shown("incremental-audit.json")
    assert measured["messages"] == 10_000_000
    assert measured["incremental"]["verdicts"] == measured["full"]["verdicts"] == {"ok": 10_100_000}


def shown(name: str) -> dict[str, Any]:
    """Return measured figures; check that the page has a row for each of the four audits."""
    measured: dict[str, Any] = json.loads((FIGURES / name).read_text())
    rows = rows_of(measured)
    assert len(rows) == 4
    assert [row for row in rows if row not in PAGE.read_text().splitlines()] == []
    return measured


def rows_of(measured: dict[str, Any]) -> list[str]:
    """Return the rows of the page's table: audit, seconds, megabytes."""
    return [
        f"| {name} | {facts['wall_s']} | {facts['anonymous_mb']:,} |"
        for name, facts in measured.items()
        if isinstance(facts, dict) and "wall_s" in facts
    ]
