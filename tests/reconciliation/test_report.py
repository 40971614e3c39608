"""The page says what the audit found, and nothing in it comes from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from reconciliation.report import BARS_MAX, html_report, time_text
from reconciliation.summary import Summary

NONE = {"p50": None, "p99": None, "max": None}
OFFENDER = {
    "verdict": "lost", "store": "/s", "root": 4_096, "topic": "<script>alert(1)</script>",
    "unique_id": "id&1", "due_ms": 1_700_000_000_123, "delivered_ms": None, "why": "gone",
}  # fmt: skip


class Checker(HTMLParser):
    """Counts tags and sees that each is closed."""

    VOID = frozenset({"meta", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not re.search(r"""(src|href)=|url\(|@import|https?://""", page)
    return checker


def test_a_clean_audit() -> None:
    page = html_report(Summary({"ok": 1_234}, NONE), stores=["/s"], at_ms=0)
    checked(page)
    assert "Every promise was kept (1,234 messages)." in page
    assert "Findings" not in page


def test_findings_are_shown_and_cannot_break_the_page() -> None:
    summary = Summary({"lost": 1}, {"p50": 3, "p99": 40, "max": 41}, [OFFENDER])
    page = html_report(summary, stores=["/s<b>"], at_ms=1_700_000_000_000)
    assert "script" not in checked(page).seen
    assert "&lt;script&gt;" in page
    assert "2023-11-14 22:13:20.123" in page
    assert "There are findings" in page


def test_an_incomplete_audit_says_so_first() -> None:
    place = {"store": "/s", "phys_offset": 77, "damage": "gap"}
    page = html_report(Summary({"ok": 1}, NONE, [], [place]), stores=["/s"], at_ms=0)
    checked(page)
    assert "the audit is incomplete" in page
    assert "Every promise" not in page


@pytest.mark.parametrize("count", [1, BARS_MAX, 10 * BARS_MAX + 1])
def test_curves_have_a_bound(count: int) -> None:
    forecast = [{"from_ms": n * 60_000, "messages": n % 7, "topic": "T"} for n in range(count)]
    late = [
        {"from_ms": n, "p99_ms": -n, "level": 1, "topic": "T", "messages": 1, "p50_ms": 0,
         "max_ms": 0} for n in range(count)
    ]  # fmt: skip
    summary = Summary({"ok": 1}, {"p50": 0, "p99": 0, "max": 0})
    page = html_report(summary, stores=["/s"], lateness=late, forecast=forecast, at_ms=0)
    assert 2 <= checked(page).seen.count("rect") <= 2 * BARS_MAX


@pytest.mark.parametrize("ms", [None, -5, 10**18 - 1, 0])
def test_any_time_can_be_written(ms: int | None) -> None:
    assert isinstance(time_text(ms), str)
