"""Texts that parse as in Apache's parser, texts that it refuses, and bounds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from duemq.filters.grammar import CHARS_MAX, TOKENS_MAX, parse
from duemq.filters.nodes import DEPTH_MAX, FilterError
from tests.support.processor_time import cost_ms, costs_s

PARSE_MS_MAX = 100.0
LITTLE_MS = 10.0  # within it, the growth is not measured


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a = 1", "(a == 1)"),
        ("a<>1", "(NOT (a == 1))"),
        ("a = 1 or b = 2 AND c = 3", "((a == 1) || ((b == 2) && (c == 3)))"),
        ("NOT a = 1", "((NOT a) == 1)"),
        ("not(a = 1)", "(NOT (a == 1))"),
        ("a > 1 = b < 2", "((a > 1) == (b < 2))"),
        ("a between 1 and 5 and b", "(((a >= 1) && (a <= 5)) && b)"),
        ("a NOT BETWEEN -1 AND 5.", "((a < (- 1)) || (a > 5.0))"),
        ("a in ('x','y''z')", "(a IN (2 texts))"),
        ("(a) Not In ('x')", "(a NOT IN (1 texts))"),
        ("a CONTAINS 'x' not startswith 'y'", "(NOT STARTSWITH (CONTAINS a))"),
        ("a is null", "(a == NULL)"),
        ("a IS NOT NULL", "(NOT (a == NULL))"),
        ("+ - +5 = a", "((- 5) == a)"),
        ("inx = .5e1", "(inx == 5.0)"),
        ("notx", "notx"),
        ("$_1 = 5L", "($_1 == 5)"),
        ("a /* ** x */ = -- y\n 5", "(a == 5)"),
        ("a = --5", "(a == (- (- 5)))"),
        ("a = 1 -- x\r or -- y\n b = - --5", "((a == 1) || (b == (- (- (- 5)))))"),
        ("TRUE", "TRUE"),
        ("NULL", "NULL"),
    ],
)
def test_text_has_this_meaning(text: str, meaning: str) -> None:
    assert str(parse(text)) == meaning


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a = 1 LIKE 'x'", "(a == 1)"),
        ("a = 1 b ;", "(a == 1)"),
        ("a = 1 )", "(a == 1)"),
        ("a = 007", "(a == 0)"),
        ("a = 0L", "(a == 0)"),
        ("a = 1 -- no line end", "(a == 1)"),
        ("a IS NULL IN ('x')", "(a == NULL)"),
        ("(a = 1) 5", "(a == 1)"),
    ],
)
def test_what_follows_the_expression_is_ignored(text: str, meaning: str) -> None:
    assert str(parse(text)) == meaning


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Encountered <EOF> at line 0, column 0"),
        ("a =", "Encountered <EOF> at line 1, column 3"),
        ("(a", "Encountered <EOF> at line 1, column 2"),
        ("a NOT x", 'Encountered "x" at line 1, column 7'),
        ("a IS x", 'Encountered "x" at line 1, column 6'),
        ("\n\ta = )", 'Encountered ")" at line 2, column 13'),
        ("contains = 1", 'Encountered "contains" at line 1, column 1'),
        ("a = 1 ;", 'Lexical error at line 1, column 7.  Encountered: ";" (59)'),
        ("a != 1", 'Lexical error at line 1, column 3.  Encountered: "!" (33)'),
        ("ſ = 1", 'Lexical error at line 1, column 1.  Encountered: "ſ" (383)'),
        ("5", "Expression will not result in a boolean value: 5"),
        ("NOT 'x'", "Expression will not result in a boolean value: 'x'"),
        ("a > 'x'", "Value ''x'' cannot be compared."),
        ("a > NULL", "Value 'NULL' cannot be compared."),
        ("a > 1 > 2", "Value '(a > 1)' cannot be compared."),
        ("a = NULL", "'NULL' cannot be compared."),
        ("TRUE = 5", "'TRUE' cannot be compared with '5'"),
        ("5 IN ('x')", "Expected a property for In expression, got: 5"),
        ("a BETWEEN 5 AND 1", "left value(5) must less than or equal to right value(1)"),
        ("a BETWEEN 5.5 AND 5", "left value(5.5) must less than or equal to right value(5)"),
        ("a BETWEEN NULL AND 5", "values can not be null!"),
        ("a = 9223372036854775808", 'For input string: "9223372036854775808"'),
        ("a = 1e400", "1e400 is greater than"),
        ("a = 0.0", "0.0 is less than"),
        ("a = 1e-400", "1e-400 is less than"),
    ],
)
def test_refused_text_has_an_error_that_says_where(text: str, error: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert error in str(caught.value)


def test_depth_is_bounded() -> None:
    parse("NOT " * (DEPTH_MAX - 2) + "a")
    parse("(" * 2_000 + "a" + ")" * 2_000)
    for text in ("NOT " * 1_000 + "a", "a" + " CONTAINS 'x'" * 1_000, "a = " * 1_000 + "b"):
        with pytest.raises(FilterError, match="nested more than 128 levels deep"):
            parse(text)


def test_size_is_bounded() -> None:
    terms = " OR ".join(["a=1"] * (TOKENS_MAX // 4))
    assert str(parse(terms)).count("==") == TOKENS_MAX // 4
    with pytest.raises(FilterError, match="more than 4096 tokens"):
        parse(" OR ".join(["a"] * 10_000))
    with pytest.raises(FilterError, match=f"{CHARS_MAX + 1} characters; the limit is {CHARS_MAX}"):
        parse("a" * (CHARS_MAX + 1))


EXPENSIVE = {
    "minus signs": lambda n: "a=" + "-" * n + "1",
    "minus signs in a later line": lambda n: "a=\n" + "-" * n + "1",
    "pairs of minus signs": lambda n: "a=" + "-- " * (TOKENS_MAX // 2) + "x" * n,
    "comments": lambda n: "--\n" * (n // 3) + "a=1",
    "block comments": lambda n: "/**/" * (n // 4) + "a=1",
    "a comment without an end": lambda n: "a=/*" + "*" * n,
    "a comment of comments": lambda n: "a=/*" + "* /*" * (n // 4),
    "a text without an end": lambda n: "a='" + "''" * (n // 2),
    "digits": lambda n: "a=" + "1" * n,
    "zeros": lambda n: "a=" + "0" * n,
    "a float": lambda n: "a=" + "1" * n + ".5e",
    "names": lambda n: " or ".join(f"a{i}" for i in range(n // 9)),
    "intervals": lambda n: " or ".join(f"a{i} between 1 and 9" for i in range(n // 22)),
    "parentheses": lambda n: "(" * (n // 2) + "a" + ")" * (n // 2),
    "texts": lambda n: "a in (" + "'b'," * (n // 4) + "'c')",
    "a syntax error after tabs": lambda n: "\t" * n + "?",
}


def attempt(text: str) -> None:
    with suppress(FilterError):
        parse(text)


@pytest.mark.sampled
@pytest.mark.finding("3S2")
@pytest.mark.parametrize("make", EXPENSIVE.values(), ids=EXPENSIVE)
def test_the_cost_of_an_expression_is_linear_and_bounded(make: Callable[[int], str]) -> None:
    attempt("a = 1")  # builds the parser
    few, many = make(CHARS_MAX // 4 - 10_000 // 4), make(CHARS_MAX - 10_000)
    assert len(many) <= CHARS_MAX
    many_ms = cost_ms(lambda: attempt(many), enough_ms=LITTLE_MS)
    assert many_ms <= PARSE_MS_MAX
    if many_ms > LITTLE_MS:
        few_s, many_s = costs_s(lambda: attempt(few), lambda: attempt(many))
        assert many_s <= 8 * few_s
