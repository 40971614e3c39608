"""Values of filters: a table of Apache's rules, and random filters against a plain evaluation."""

from __future__ import annotations

import pytest
from hypothesis import given

from duemq.filters import Expression
from tests.support.sql_filters import Tree, matches, properties, render, trees

ERROR = "error"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n = 5", True),
        ("n = 5.0", True),
        ("n = '5'", True),
        ("n = '5.0'", False),
        ("n > 4 AND n <= 5", True),
        ("5 < n", False),
        ("n BETWEEN 5 AND 6", True),
        ("n NOT BETWEEN 5 AND 6", False),
        ("word = 5", ERROR),
        ("word > 5", ERROR),
        ("word <> 'abc'", False),
        ("word > n", ERROR),
        ("n >= n", True),
        ("big = 5", ERROR),
        ("big > 2147483648", True),
        ("big > 5.5", True),
        ("dot = 5", ERROR),
        ("dot = 5.5", True),
        ("none = 5", None),
        ("none <> 5", None),
        ("n = none", False),
        ("n <> none", True),
        ("none = other", True),
        ("none > 5", None),
        ("none IS NULL", True),
        ("n IS NULL", False),
        ("n IS NOT NULL", True),
        ("n", False),
        ("yes", False),
        ("none", None),
        ("NOT yes", True),
        ("yes = TRUE", True),
        ("word = TRUE", False),
        ("TRUE = yes", ERROR),
        ("TRUE = none", False),
        ("5 = TRUE", False),
        ("(n = 5) = (word = 'abc')", True),
        ("n = 5 OR word = 5", True),
        ("word = 5 OR n = 5", ERROR),
        ("none = 5 OR n = 6", None),
        ("none = 5 OR n = 5", True),
        ("none = 5 AND n = 6", False),
        ("none = 5 AND n = 5", None),
        ("NOT (none = 5)", None),
        ("word IN ('x', 'abc')", True),
        ("word NOT IN ('x')", True),
        ("none IN ('x')", None),
        ("none NOT IN ('x')", None),
        ("word CONTAINS 'b'", True),
        ("word NOT CONTAINS 'b'", False),
        ("word STARTSWITH 'ab' AND word ENDSWITH 'c'", True),
        ("none CONTAINS 'b'", False),
        ("none NOT CONTAINS 'b'", False),
        ("word CONTAINS ''", False),
        ("5 CONTAINS '5'", False),
        ("-n IS NULL", True),
        ("-n < 5", None),
        ("nan > 1e308", True),
        ("nan = 5.5", False),
        ("zero < dot", True),
        ("TRUE", True),
        ("NULL", None),
    ],
)
def test_value(text: str, value: bool | str | None) -> None:
    given_properties = {
        "n": "5",
        "word": "abc",
        "big": "5000000000",
        "dot": "5.5",
        "yes": "True",
        "nan": "NaN",
        "zero": "-0.0",
    }
    expression = Expression(text)
    if value == ERROR:
        with pytest.raises(ValueError, match=r"\w"):
            expression.value(given_properties)
        assert not expression.matches(given_properties)
    else:
        assert expression.value(given_properties) is value
        assert expression.matches(given_properties) is (value is True)


@given(trees(), properties())
def test_random_filters_match_what_the_plain_evaluation_does(
    tree: Tree, values: dict[str, str]
) -> None:
    assert Expression(render(tree)).matches(values) == matches(tree, values)
