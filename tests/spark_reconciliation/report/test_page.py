"""The report page: it shows the findings and needs no other resources."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from duemq_common.charts import COLOURS, POINTS_MAX
from duemq_common.page_style import STYLE
from spark_reconciliation.audit.summary import Summary
from spark_reconciliation.jobs.outside import ProofSummary
from spark_reconciliation.jobs.replicas import Divergence, GroupResult, LogRange
from spark_reconciliation.report.page import (
    LIKE_MAX,
    ROWS_MAX,
    Pages,
    html_report,
    share_text,
    shown_cell,
)

NAMESPACE = re.compile('xmlns="http://www.w3.org/(2000/svg|1999/xhtml)"')
NONE = {"p50": None, "p99": None, "max": None}
OFFENDER = {
    "verdict": "lost",
    "store": "/s",
    "root": 4_096,
    "topic": "<script>alert(1)</script>",
    "unique_id": "id&1",
    "due_ms": 1_700_000_000_123,
    "delivered_ms": None,
    "why": "gone",
    "alike": 30,
}

TOTAL: dict[str, object] = {
    "level": None,
    "topic": "Orders",
    "messages": 7,
    "delivered": 5,
    "findings": 0,
    "p50_ms": 1,
    "p90_ms": 2,
    "p99_ms": 3,
    "p999_ms": 4,
    "max_ms": 5,
}
TREND: dict[str, object] = {
    "level": 3,
    "topic": "Orders",
    "pieces": 30,
    "messages": 5,
    "first_p99_ms": 1,
    "last_p99_ms": 2,
    "worst_p99_ms": 9,
    "p99_ms_per_day": 0.25,
    "trend": "steady",
}
PROOF: dict[str, object] = {
    "migration": "run-1",
    "level": 3,
    "way": "drained",
    "messages": 9,
    "delivered": 9,
    "pending": 0,
    "ended": 0,
    "not_proven": 0,
}


class Checker(HTMLParser):
    """A parser that counts tags and checks that each is closed."""

    VOID = frozenset({"meta", "path", "circle"})

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
    content = NAMESPACE.sub("", page)
    assert not re.search(r"""(src|href)=|url\(|@import|https?://""", content)
    return checker


def test_small_counts_are_visible_beside_large_ones() -> None:
    page = html_report(Summary({"ok": 10**7, "lost": 3}, NONE), stores=["/s"], at_ms=0)
    widths = [float(width) for width in re.findall(r'<rect width="([0-9.]+)" height="6"', page)]
    assert widths[0] == 100
    assert widths[1] > 5


def test_a_clean_audit() -> None:
    page = html_report(Summary({"ok": 1_234}, NONE), stores=["/s"], at_ms=0)
    checked(page)
    assert "Every promise was kept (1,234 messages)." in page
    assert "Findings" not in page


def test_findings_are_shown_and_escaped() -> None:
    summary = Summary({"lost": 1}, {"p50": 3, "p99": 40, "max": 41}, [OFFENDER])
    page = html_report(summary, stores=["/s<b>"], at_ms=1_700_000_000_000)
    assert "script" not in checked(page).seen
    assert "&lt;script&gt;" in page
    assert "2023-11-14 22:13:20.123" in page
    assert "1 of 1 messages have a finding." in page
    assert '<td data-name="alike" class="number">30</td>' in page


def test_differences_from_the_tables_are_shown() -> None:
    row: dict[str, object] = {
        "topic": "T",
        "name": "<b>",
        "sent": 1,
        "accepted": 0,
        "promised_ms": 1_700_000_000_123,
        "accepted_ms": None,
        "delivered_ms": None,
        "outcome": "never_accepted",
    }
    outcomes = {"never_accepted": 1_000, "ok": 7}
    proofs = (
        ProofSummary("sent", outcomes, 3, [row]),
        ProofSummary("received", {"consumed": 7}, 0),
    )
    page = html_report(Summary({"ok": 7}, NONE, outside=proofs), stores=["/s"], at_ms=0)
    checked(page)
    assert "1,000 names differ from the tables (0 of 7 messages have a finding)." in page
    assert "Compared with the producer&#39;s table" in page
    assert '<span class="state bad">never_accepted</span>' in page
    assert '<span class="state good">consumed</span>' in page
    assert "3 rows of the table have no time and were skipped." in page
    assert "&lt;b&gt;" in page
    assert "2023-11-14 22:13:20.123" in page


def test_differences_between_stores_are_shown() -> None:
    examples = [Divergence(77, "missing", ["/a", "/b"])]
    group = GroupResult("/a", [LogRange("/a", 0, 100, 0)], 30, examples)
    page = html_report(Summary({"ok": 7}, NONE, groups=(group,)), stores=["/a"], at_ms=0)
    checked(page)
    assert "The stores of a group differ in 30 records (0 of 7 messages have a finding)." in page
    assert "/a, /b" in page


@pytest.mark.finding("3P5")
@pytest.mark.parametrize(
    ("count", "total", "text"),
    [
        (0, 0, "0 %"),
        (0, 7, "0 %"),
        (7, 7, "100 %"),
        (1, 4, "25.00 %"),
        (30, 9_999_999, "< 0.01 %"),
        (9_999_969, 9_999_999, "99.99 %"),
        (1, 10_000, "0.01 %"),
    ],
)
def test_a_share_never_hides_a_message(count: int, total: int, text: str) -> None:
    assert share_text(count, total) == text


def test_an_incomplete_audit_reports_it_first() -> None:
    place = {"store": "/s", "phys_offset": 77, "damage": "gap"}
    page = html_report(Summary({"ok": 1}, NONE, [], [place]), stores=["/s"], at_ms=0)
    checked(page)
    assert "the audit is incomplete" in page
    assert "Every promise" not in page


def load_of(count: int) -> list[dict[str, object]]:
    return [
        {
            "from_ms": n * 60_000,
            "until_ms": (n + 1) * 60_000,
            "messages": n % 7,
            "per_second": n % 7 / 60,
            "capacity_per_s": 0.1,
            "queue": 0,
            "behind_ms": n % 3,
        }
        for n in range(count)
    ]


def late_of(count: int, series: int) -> list[dict[str, object]]:
    return [
        {
            "from_ms": n,
            "level": number or None,
            "topic": f"T<{number}>",
            "messages": number + 1,
            "p50_ms": 0,
            "p99_ms": -n,
            "max_ms": 0,
        }
        for n in range(count)
        for number in range(series)
    ]


@pytest.mark.parametrize("count", [1, POINTS_MAX, 10 * POINTS_MAX + 1])
def test_curves_have_a_maximum_size(count: int) -> None:
    pages = Pages(
        forecast=load_of(count),
        lateness=late_of(count, len(COLOURS) + 2),
        worst=[OFFENDER | {"late_ms": n} for n in range(2 * ROWS_MAX)],
    )
    page = html_report(Summary({"ok": 1}, NONE), stores=["/s"], pages=pages, at_ms=0)
    checked(page)
    assert page.count('class="column"') == min(count, -(-count // -(-count // POINTS_MAX)))
    assert page.count('class="hit"') <= 2 * POINTS_MAX
    assert page.count('class="key"') == 1 + 1 + len(COLOURS)  # bars, limit, lines
    assert "2 more with fewer messages are not drawn." in page
    assert f"{ROWS_MAX - LIKE_MAX} more rows." in page
    assert len(page) < 400_000


def whole_report() -> Pages:
    return Pages(
        totals=[TOTAL],
        lateness=late_of(30, 2),
        trend=[TREND],
        worst=[OFFENDER | {"late_ms": 77}],
        forecast=load_of(20),
        days=[{"day": "2026-11-22", "messages": 60, "peak_at_ms": 60_000, "peak_per_s": 0.1}],
        proof=[PROOF],
    )


def test_the_whole_report() -> None:
    pages = whole_report()
    page = html_report(Summary({"ok": 5}, NONE), stores=["/s"], pages=pages, at_ms=0)
    checked(page)
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Verdicts",
        "By level and topic",
        "Lateness",
        "The latest deliveries",
        "What falls due",
        "Proof of migrations",
    ]
    for text in (
        "timer",
        "0.25",
        "2026-11-22",
        "Each message came exactly once",
        "0.10 per second",
    ):
        assert text in page
    open_one = Pages(proof=[{**pages.proof[0], "not_proven": 2}])
    page = html_report(Summary({"ok": 5}, NONE), stores=["/s"], pages=open_one, at_ms=0)
    assert "2 messages are not proven." in page


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("due_ms", 0, "1970-01-01 00:00:00.000"),
        ("level", None, "timer"),
        ("topic", None, ""),
        ("messages", 1_234, "1,234"),
        ("proven", True, "True"),
        ("busy", 0.5, "0.50"),
    ],
)
def test_cells(name: str, value: object, shown: str) -> None:
    assert shown_cell(name, value) == shown


@pytest.mark.finding("B29")
def test_rows_that_agree_are_merged() -> None:
    rows = [OFFENDER | {"root": n} for n in range(20)]
    page = html_report(Summary({"lost": 20}, NONE, rows), stores=["/s"], at_ms=0)
    checked(page)
    assert f"<summary>{20 - LIKE_MAX} more like these</summary>" in page
    assert page.index("<details>") < page.index(">19<")


@pytest.mark.finding("B29")
def test_pages_share_a_style_and_pending_is_no_success() -> None:
    from duemq_migration.ledger.page import history_page
    from duemq_migration.ledger.records import MigrationRecord, MigrationRun

    run = MigrationRun(migration=MigrationRecord(migration_id="r", started_ms=0))
    page = html_report(Summary({"pending": 3, "ok": 1}, NONE), stores=["/s"], at_ms=0)
    assert STYLE in page
    assert STYLE in history_page(run, store="/s", made_ms=0)
    assert '<span class="state ">pending</span>' in page
    assert '<span class="state good">ok</span>' in page
