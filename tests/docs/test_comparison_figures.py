"""The pages that compare figures with Apache's agree with the measured values."""

from __future__ import annotations

import pytest

from benchmarks import replication, run, v5
from benchmarks.comparison import ComparisonPage
from benchmarks.page import Goal, figures, named, read, value_of, verdict_of

PAGES = {"replication": replication.PAGE, "v5": v5.PAGE}
GOALS = [(page, goal) for page in PAGES.values() for goal in page.goals]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_its_figures(name: str) -> None:
    page = PAGES[name]
    text = page.path.read_text()
    assert page.filled(text, named(text)) == text, f"run python -m benchmarks.{name} --fill-only"


@pytest.mark.parametrize(("page", "goal"), GOALS, ids=lambda each: getattr(each, "work", ""))
def test_every_goal_was_measured(page: ComparisonPage, goal: Goal) -> None:
    assert value_of(goal, read(named(page.path.read_text()))) is not None


@pytest.mark.parametrize(
    ("page", "goal"),
    [(page, goal) for page, goal in GOALS if goal.to_apache],
    ids=lambda each: getattr(each, "work", ""),
)
def test_a_goal_relative_to_apache_is_a_ratio(page: ComparisonPage, goal: Goal) -> None:
    found = read(named(page.path.read_text()))
    theirs, ours = (figures(found, goal.load, name)[goal.names[0]][0] for name in run.SERVERS)
    assert value_of(goal, found) == pytest.approx(ours / theirs)
    assert verdict_of(goal, goal.required) == "met"
