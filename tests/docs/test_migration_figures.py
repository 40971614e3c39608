"""The page of migration figures agrees with the measured values."""

from __future__ import annotations

import json

import pytest

from benchmarks import migration, run
from benchmarks.report import RESULTS


def test_the_page_has_its_figures() -> None:
    page = migration.PAGE.read_text()
    assert migration.filled(page, migration.named(page)) == page, (
        "run python -m benchmarks.migration --fill-only"
    )


def test_every_goal_is_a_figure_that_was_measured() -> None:
    page = migration.PAGE.read_text()
    found = json.loads((RESULTS / migration.named(page)).read_text())
    for goal in migration.GOALS:
        assert set(goal.names) <= migration.figures(found, goal.load).keys(), goal.work
    assert migration.figures(found, migration.BY_HAND, run.APACHE)


@pytest.mark.parametrize(
    ("value", "word"), [(3.0, "aim reached"), (2.9, "reached"), (0.99, "**missed**")]
)
def test_more_is_better_for_a_rate(value: float, word: str) -> None:
    assert migration.verdict_of(migration.GOALS[0], value) == word


@pytest.mark.parametrize(
    ("value", "word"), [(1.0, "aim reached"), (2.0, "reached"), (2.1, "**missed**")]
)
def test_less_is_better_for_lateness(value: float, word: str) -> None:
    [goal] = [goal for goal in migration.GOALS if goal.load == migration.TRAFFIC]
    assert migration.verdict_of(goal, value) == word
