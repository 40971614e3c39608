"""The page of many topics, groups and connections agrees with the measured values."""

from __future__ import annotations

from benchmarks.many.figures_page import CHARTS, PAGE, current, drawn, filled


def test_the_page_has_its_figures() -> None:
    page = PAGE.read_text()
    assert filled(page, *current()) == page, "run python -m benchmarks.many --page-of FILE"


def test_the_charts_show_its_figures() -> None:
    _, results = current()
    for name, svg in drawn(results).items():
        assert (CHARTS / name).read_text() == svg


def test_no_message_was_lost_or_doubled() -> None:
    _, results = current()
    assert [results["final"][name] for name in ("lost", "duplicates", "early")] == [0, 0, 0]
