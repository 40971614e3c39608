"""The kernel of filters against the closures of the same expressions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duemq.filters import Expression
from duemq.filters.kernels.match import evaluate
from duemq.filters.kernels.values import find_values
from duemq.filters.layout import ERROR, FALSE, TRUE, UNDECIDED, UNKNOWN
from message_store.log.properties import decode_properties
from tests.support.sql_filters import VALUES, Tree, properties, render, trees

VALUE_OF = {True: TRUE, False: FALSE, None: UNKNOWN}


def kernel_value(expression: Expression, text: bytes) -> int:
    """Return the value of an expression's program for a property text."""
    program = expression.program
    assert program is not None
    data = np.frombuffer(b"#" + text + b"#", np.uint8)
    _, places, stack = program.scratch
    find_values(data, 1, 1 + len(text), *program.names, places)
    return int(evaluate(data, places, program.arrays, stack))


def closure_value(expression: Expression, text: bytes) -> int:
    try:
        return VALUE_OF[expression.value(decode_properties(text))]
    except ValueError:
        return ERROR


def encoded(values: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()


@given(trees(), st.lists(properties(), min_size=1, max_size=5))
def test_the_kernel_has_the_value_of_the_closure(
    tree: Tree, messages: list[dict[str, str]]
) -> None:
    expression = Expression(render(tree))
    if expression.program is None:
        return
    for values in messages:
        text = encoded(values)
        value = kernel_value(expression, text)
        assert value in (closure_value(expression, text), UNDECIDED)


NUMERALS = st.text(st.sampled_from("0123456789+-.eE \x00fNx٣"), min_size=1, max_size=24)


@given(
    st.sampled_from(
        (
            "a = 5",
            "a > 2147483647",
            "a <= 9223372036854775807",
            "a >= 0.5",
            "a = 1E22",
            "a < b",
            "5.5 > a",
            "-5 >= a",
            "a = TRUE",
            "a = b",
            "a <> '5'",
        )
    ),
    st.one_of(NUMERALS, st.sampled_from(VALUES[:5]), st.floats().map(str), st.integers().map(str)),
    NUMERALS,
)
def test_numbers_are_read_as_java_does_or_left_undecided(
    expression_text: str, a: str, b: str
) -> None:
    expression, text = Expression(expression_text), encoded({"a": a, "b": b})
    assert kernel_value(expression, text) in (closure_value(expression, text), UNDECIDED)


@given(
    st.sampled_from(("a = 'ü'", "a CONTAINS 'ü'", "a = b", "a STARTSWITH 'ü' OR a ENDSWITH '5'")),
    st.lists(st.sampled_from((b"a", b"b", b"\x01", b"\x02", b"\xc3", b"\xbc", b"\xf0", b"5"))),
)
def test_any_property_text_has_the_value_of_the_closure(
    expression_text: str, pieces: list[bytes]
) -> None:
    expression, text = Expression(expression_text), b"".join(pieces)
    assert kernel_value(expression, text) in (closure_value(expression, text), UNDECIDED)


@pytest.mark.parametrize(
    ("expression", "text", "value"),
    [
        ("a = 5", b"a\x015\x02", TRUE),
        ("a = 5", b"a\x01-7\x02", FALSE),
        ("a = 5", b"b\x015\x02", UNKNOWN),
        ("a = 5", b"a\x01x\x02", ERROR),
        ("a = -9223372036854775807", b"a\x01-9223372036854775807", TRUE),
        ("a < 9223372036854775807", b"a\x01-9223372036854775808", TRUE),
        ("a > 2147483648", b"a\x019223372036854775808", ERROR),
        ("a > 5", b"a\x012147483648", ERROR),
        ("a > 0.5", b"a\x01 1.5e3 ", TRUE),
        ("a > 0.5", b"a\x01-.25", FALSE),
        ("a > 0.5", b"a\x01NaN", UNDECIDED),
        ("a > 0.5", b"a\x0112345678901234567890", UNDECIDED),
        ("a < b", b"a\x01-0\x02b\x010.0\x02", TRUE),
        ("a = TRUE", b"a\x01tRuE\x02", TRUE),
        ("TRUE = a", b"a\x01true\x02", ERROR),
        ("a = 'x'", b"a\x01y\x02a\x01x\x02", TRUE),
        ("a IS NULL", b"a\x01\x02", TRUE),
        ("a NOT IN ('x', 'yy')", b"a\x01yy\x02", FALSE),
        ("a = b", b"a\x01\xff\x02b\x01\xfe\x02", UNDECIDED),
    ],
)
def test_usual_values_are_decided(expression: str, text: bytes, value: int) -> None:
    assert kernel_value(Expression(expression), text) == value
