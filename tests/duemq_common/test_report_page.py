"""Reports in a browser: accessible, on screens of all widths, light and dark, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from duemq_common.report_page import ReportTable, clean_text, render_report
from duemq_migration.ledger.page import history_page
from spark_reconciliation.audit.summary import Summary
from spark_reconciliation.report.page import html_report
from tests.duemq.console.test_browser import FULL_WIDTH, WIDTHS, violations_of
from tests.migration.ledger.test_page import END_MS, NASTY, a_run
from tests.spark_reconciliation.report.test_page import OFFENDER, whole_report
from tests.support.browser import Browser, Scheme

PAPER_PX = 690  # width of A4 without its margins
BLACK = "rgb(0, 0, 0)"


def audit() -> str:
    summary = Summary(
        {"ok": 10**7, "pending": 5_000, "lost": 3},
        {"p50": 3, "p99": 40, "max": 41},
        [OFFENDER | {"root": number} for number in range(9)],
    )
    stores = ["/var/lib/duemq/a-store-with-a-very-long-name/" * 2]
    return html_report(summary, stores=stores, pages=whole_report(), at_ms=END_MS)


def migration() -> str:
    return history_page(a_run(NASTY), store="/stores/one", made_ms=END_MS)


REPORTS = [pytest.param(audit, id="audit"), pytest.param(migration, id="migration")]


def opened(
    browser: Browser,
    tmp_path: Path,
    page: str,
    *,
    width: int,
    scheme: Scheme,
    media: Literal["screen", "print"],
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page, "utf-8")
    browser.open(path.as_uri())
    browser.emulate(scheme, media)
    browser.resize(width)


@pytest.mark.sampled
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", REPORTS)
def test_reports_are_accessible_and_fit(
    browser: Browser, axe: str, tmp_path: Path, report: Callable[[], str], scheme: Scheme, seed: int
) -> None:
    """The day chooses the width of each colour scheme."""
    width = WIDTHS[(seed + (scheme == "dark")) % 2]
    opened(browser, tmp_path, report(), width=width, scheme=scheme, media="screen")
    assert browser.faults() == []
    assert browser.evaluate(FULL_WIDTH) <= width
    assert violations_of(browser, axe) == []


@pytest.mark.parametrize("report", REPORTS)
def test_reports_fit_on_paper(browser: Browser, tmp_path: Path, report: Callable[[], str]) -> None:
    opened(browser, tmp_path, report(), width=PAPER_PX, scheme="dark", media="print")
    assert browser.evaluate(FULL_WIDTH) <= PAPER_PX
    colour = "getComputedStyle(document.body).color"
    assert browser.evaluate(colour) == BLACK
    cut = """[...document.querySelectorAll('.card')]
        .filter(card => card.scrollWidth > card.clientWidth + 1).map(card => card.innerText)"""
    assert browser.evaluate(cut) == []
    shown = "[...document.querySelectorAll('th')].every(one => one.checkVisibility())"
    assert browser.evaluate(shown)
    hidden = """[...document.querySelectorAll('details td')]
        .filter(cell => !cell.checkVisibility({contentVisibilityAuto: true})).length"""
    assert browser.evaluate(hidden) == 0


def test_values_are_escaped(tmp_path: Path) -> None:
    template = tmp_path / "t.html"
    template.write_text('{% from "report_blocks.html" import table %}{{ table(one) }}', "utf-8")
    page = render_report(template, one=ReportTable.of_columns("a|#b", [["<i>\x01", 2]]))
    assert "&lt;i&gt;\ufffd" in page
    assert '<td data-name="b" class="number">2</td>' in page


def test_characters_that_xml_does_not_allow_are_replaced() -> None:
    assert clean_text("a\x00\ud800\tü") == "a\ufffd\ufffd\tü"
