"""Which expressions have a program, and what it costs."""

from __future__ import annotations

import pytest

from duemq.filters import Expression


@pytest.mark.parametrize(
    "text",
    [
        "a = 5 AND (b > 5.5 OR NOT c) AND d IN ('x','y') AND e IS NOT NULL",
        "5 < a",
        "'x' = a",
        "-5 = a",
        "TRUE = a",
        "a < b",
        "a CONTAINS 'x'",
        "TRUE",
        "NULL",
        "a = TRUE",
        "a = -5.5",
    ],
)
def test_expressions_with_a_program(text: str) -> None:
    assert Expression(text).program is not None


@pytest.mark.parametrize(
    "text",
    [
        "NOT a = 1",
        "(a = 1) IS NULL",
        "5 > 3",
        "a CONTAINS ''",
        "5 CONTAINS 'x'",
        "-a = 5",
        "a = '\ufffd'",
        "(a = 1) = b",
    ],
)
def test_expressions_for_the_closure_alone(text: str) -> None:
    assert Expression(text).program is None


def test_cost_grows_with_texts_and_names() -> None:
    costs = []
    for text in ("a = 1", "a = 1 OR a = 2", "a = 1 OR b = 2", "a IN ('x','y','z') OR b = 2"):
        program = Expression(text).program
        assert program is not None
        costs.append(program.cost)
    assert costs == sorted(set(costs))
