"""The page of migration figures agrees with the measured values."""

from __future__ import annotations

import pytest

from benchmarks import migration, run
from benchmarks.page import figures, named, read, verdict_of


def test_the_page_has_its_figures() -> None:
    page = migration.PAGE.read_text()
    assert migration.filled(page, named(page)) == page, (
        "run python -m benchmarks.migration --fill-only"
    )


def test_every_goal_is_a_figure_that_was_measured() -> None:
    page = migration.PAGE.read_text()
    found = read(named(page))
    for goal in migration.GOALS:
        assert set(goal.names) <= figures(found, goal.load).keys(), goal.work
    assert figures(found, migration.BY_HAND, run.APACHE)


@pytest.mark.parametrize(
    ("value", "word"), [(3.0, "target met"), (2.9, "met"), (0.99, "**missed**")]
)
def test_more_is_better_for_a_rate(value: float, word: str) -> None:
    assert verdict_of(migration.GOALS[0], value) == word


@pytest.mark.parametrize(
    ("value", "word"), [(1.0, "target met"), (2.0, "met"), (2.1, "**missed**")]
)
def test_less_is_better_for_lateness(value: float, word: str) -> None:
    [goal] = [goal for goal in migration.GOALS if goal.load == migration.TRAFFIC]
    assert verdict_of(goal, value) == word
