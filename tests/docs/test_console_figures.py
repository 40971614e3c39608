"""The page of the console has the measured lateness of deliveries, without and with its use."""

from __future__ import annotations

import json
from typing import Any

from tests.test_house_rules import TOP

FIGURES = TOP / "docs" / "figures"
PAGE = TOP / "docs" / "how-to" / "console.md"


def measured() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FIGURES / "console-lateness.json").read_text())
    return facts


def test_the_page_has_the_lateness_of_each_use() -> None:
    facts, lines = measured(), PAGE.read_text().splitlines()
    assert facts["pending"] == 2_000_000
    assert len(facts["rows"]) == 3
    for use, row in facts["rows"].items():
        late = " | ".join(str(row[name]) for name in ("p50", "p99", "p99.9", "max"))
        assert f"| {use} | {late} | {row['broker_cores']:.0%} |" in lines
    assert facts["command"] in PAGE.read_text()


def test_the_page_has_the_times_of_bulk_decisions() -> None:
    decisions = measured()["decisions"]
    assert all(one["messages"] >= 490_000 for one in decisions)
    for name, work in (("list_s", "listed"), ("decision_s", "cancelled")):
        longest_s = max(one[name] for one in decisions)
        assert f"{work} in {longest_s} s" in PAGE.read_text()
