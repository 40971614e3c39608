"""The page of replication figures agrees with the measured values."""

from __future__ import annotations

import pytest

from benchmarks import replication, run
from benchmarks.page import figures, named, read, value_of, verdict_of


def test_the_page_has_its_figures() -> None:
    page = replication.PAGE.read_text()
    assert replication.filled(page, named(page)) == page, (
        "run python -m benchmarks.replication --fill-only"
    )


@pytest.mark.parametrize("goal", replication.GOALS, ids=lambda goal: goal.work)
def test_every_goal_was_measured(goal: replication.Goal) -> None:
    assert value_of(goal, read(named(replication.PAGE.read_text()))) is not None


def test_a_goal_beside_apache_is_a_ratio() -> None:
    found = read(named(replication.PAGE.read_text()))
    [goal] = [goal for goal in replication.GOALS if goal.to_apache]
    theirs, ours = (figures(found, goal.load, name)[goal.names[0]][0] for name in run.SERVERS)
    assert value_of(goal, found) == pytest.approx(ours / theirs)
    assert verdict_of(goal, goal.must) == "reached"
