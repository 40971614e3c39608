"""The page of scale figures agrees with the measured values."""

from __future__ import annotations

from benchmarks.scale.figures_page import PAGE, filled, newest


def test_the_page_has_its_figures() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "run python -m benchmarks.scale page --root DIR"


def test_the_largest_size_was_measured() -> None:
    assert max(newest()) == 100_000_000
