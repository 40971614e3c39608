"""Random SQL92 filters as trees, with their text and a naive evaluation.

The evaluation tracks the Java class of each value at run time, whereas the product determines the
types of operands when it compiles a filter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Tree = tuple[Any, ...]
Value = tuple[str, Any] | None
NAMES = ("a", "b", "c", "KEYS", "$x_1")
WORDS = ("x", "xy", "y", "", "true", "TRUE", "5", "it's", "ü", "null")
NUMBERS = (
    "0",
    "5",
    "-5",
    "+7",
    "2147483647",
    "2147483648",
    "-2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "5.0",
    "5.",
    ".5",
    "-0.0",
    "0.0",
    "1e3",
    "1E400",
    "NaN",
    "-Infinity",
    " 5 ",
    "5L",
    "5d",
    "0x10p1",
    "٣",
    "1_0",
    "inf",
    "--5",
    "007",
)
VALUES = WORDS + NUMBERS
LITERALS = (
    "0",
    "5",
    "7L",
    "10",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "0.5",
    "5.",
    ".5",
    "5E0",
    "1e3",
)


class JavaError(Exception):
    """Exception that Java throws during the evaluation."""


def properties() -> st.SearchStrategy[dict[str, str]]:
    values = st.sampled_from(VALUES).filter(bool)
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=4)


def trees() -> st.SearchStrategy[Tree]:
    """Return trees that Apache accepts."""
    return st.recursive(
        leaves(),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(("and", "or")), inner, inner),
            st.tuples(st.just("not"), inner),
            st.tuples(st.sampled_from(("is null", "is not null")), inner),
            st.tuples(st.sampled_from(("=", "<>")), inner, st.just(("property", "a"))),
        ).filter(lambda tree: tree[0] not in ("=", "<>") or tree[1] != ("null",)),
        max_leaves=8,
    )


@st.composite
def leaves(draw: st.DrawFn) -> Tree:
    """Return comparisons, and single operands that are truth values."""
    names = st.tuples(st.just("property"), st.sampled_from(NAMES))
    numbers = st.tuples(st.just("number"), st.sampled_from(LITERALS))
    signed = st.tuples(st.just("-"), st.one_of(numbers, names))
    texts = st.tuples(st.just("text"), st.sampled_from(WORDS))
    truths = st.tuples(st.just("truth"), st.booleans())
    words = st.lists(st.sampled_from(WORDS), min_size=1)
    measures = st.one_of(names, names, numbers, signed)
    tree: Tree = draw(
        st.one_of(
            st.tuples(st.sampled_from(("<", "<=", ">", ">=")), measures, measures),
            st.tuples(
                st.sampled_from(("=", "<>")),
                st.one_of(names, names, texts, numbers, signed),
                st.one_of(names, texts, numbers, signed, truths),
            ),
            st.tuples(st.sampled_from(("=", "<>")), names, st.one_of(texts, numbers, truths)),
            st.tuples(st.sampled_from(("in", "not in")), names, words),
            st.tuples(
                st.sampled_from(("contains", "startswith", "endswith")),
                st.booleans(),
                st.one_of(names, names, texts, truths),
                st.sampled_from(WORDS),
            ),
            st.tuples(
                st.sampled_from(("between", "not between")),
                measures,
                st.sampled_from(("0", "5", ".5")).map(lambda n: ("number", n)),
                st.sampled_from(("5", "10", "1e3")).map(lambda n: ("number", n)),
            ),
            st.tuples(st.sampled_from(("is null", "is not null")), st.one_of(names, texts, signed)),
            names,
            truths,
            st.just(("null",)),
        )
    )
    return tree


def render(tree: Tree) -> str:
    """Return the text of a tree, with parentheses around operands that are not leaves."""
    match tree:
        case ("property", name):
            return str(name)
        case ("number", text):
            return str(text)
        case ("-", operand):
            return f"-{render(operand)}"
        case ("text", text):
            return quoted(text)
        case ("truth", value):
            return "TRUE" if value else "false"
        case ("null",):
            return "NULL"
        case ("and" | "or" as operator, left, right):
            return f"({render(left)}) {operator.upper()} ({render(right)})"
        case ("not", operand):
            return f"NOT ({render(operand)})"
        case ("in" | "not in" as operator, operand, words):
            return f"{render(operand)} {operator} ({', '.join(map(quoted, words))})"
        case ("contains" | "startswith" | "endswith" as operator, negated, operand, word):
            negation = "NOT " if negated else ""
            return f"({render(operand)}) {negation}{operator} {quoted(word)}"
        case ("between" | "not between" as operator, operand, low, high):
            return f"{render(operand)} {operator} {render(low)} AND {render(high)}"
        case ("is null" | "is not null" as operator, operand):
            return f"({render(operand)}) {operator}"
        case (operator, left, right):
            return f"({render(left)}) {operator} ({render(right)})"
    raise AssertionError(tree)


def quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"


def matches(tree: Tree, values: Mapping[str, str]) -> bool:
    """Return whether a message with these properties is delivered."""
    try:
        return truth(tree, values) is True
    except JavaError:
        return False


def truth(tree: Tree, values: Mapping[str, str]) -> bool | None:
    """Evaluate a tree as a truth value."""
    if tree[0] == "property":
        return False if tree[1] in values else None
    value = evaluate(tree, values)
    assert value is None or value[0] == "Boolean"
    return None if value is None else bool(value[1])


def evaluate(tree: Tree, values: Mapping[str, str]) -> Value:
    """Return (Java class, value), None for null."""
    match tree:
        case ("property", name):
            return ("String", values[name]) if name in values else None
        case ("number", text):
            return literal(text)
        case ("text", text):
            return "String", text
        case ("truth", value):
            return "Boolean", value
        case ("null",):
            return None
        case ("-", operand):
            value = evaluate(operand, values)
            numeric = value is not None and value[0] in ("Integer", "Long", "Double")
            return (value[0], -value[1]) if numeric and value else None
    response = truth_of(tree, values)
    return None if response is None else ("Boolean", response)


def truth_of(tree: Tree, values: Mapping[str, str]) -> bool | None:
    match tree:
        case ("and", left, right):
            first = truth(left, values)
            if first is False:
                return False
            second = truth(right, values)
            return False if second is False else None if None in (first, second) else True
        case ("or", left, right):
            first = truth(left, values)
            if first is True:
                return True
            second = truth(right, values)
            return True if second is True else None if None in (first, second) else False
        case ("not", operand):
            return opposite(truth(operand, values))
        case ("in" | "not in" as operator, operand, words):
            value = evaluate(operand, values)
            return None if value is None else (value[1] in words) is (operator == "in")
        case ("contains" | "startswith" | "endswith" as operator, negated, operand, word):
            if not word:
                return False
            value = evaluate(operand, values)
            if value is None or value[0] != "String":
                return False
            text = value[1]
            results = {"contains": word in text, "startswith": text[: len(word)] == word}
            results["endswith"] = text[-len(word) :] == word
            return results[operator] is not negated
        case ("between", operand, low, high):
            return truth_of(("and", (">=", operand, low), ("<=", operand, high)), values)
        case ("not between", operand, low, high):
            return truth_of(("or", ("<", operand, low), (">", operand, high)), values)
        case ("is null", operand):
            return evaluate(operand, values) is None
        case ("is not null", operand):
            return evaluate(operand, values) is not None
        case ("=", left, right):
            return equal(evaluate(left, values), evaluate(right, values))
        case ("<>", left, right):
            return opposite(equal(evaluate(left, values), evaluate(right, values)))
        case (operator, left, right):
            lv = evaluate(left, values)
            rv = None if lv is None else evaluate(right, values)
            if lv is None or rv is None:
                return None
            if lv[0] == rv[0] == "String":
                lv, rv = ("Double", double(lv[1])), ("Double", double(rv[1]))
            response = compared(lv, rv)
            return {"<": response < 0, "<=": response <= 0, ">": response > 0, ">=": response >= 0}[
                operator
            ]
    raise AssertionError(tree)


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def equal(left: Value, right: Value) -> bool | None:
    if left is None:
        return None if right is not None else True
    return right is not None and (left == right or compared(left, right) == 0)


def compared(left: tuple[str, Any], right: tuple[str, Any]) -> int:
    """Return the sign of the comparison of two Java objects."""
    classes = {left[0], right[0]}
    if left[0] == "Boolean" and right[0] == "String":
        raise JavaError("ClassCastException")
    if classes == {"Boolean", "String"}:
        left = ("Boolean", left[1].lower() == "true")
    elif "Boolean" in classes and len(classes) > 1:
        return -1
    elif "String" in classes and len(classes) > 1:
        other = (classes - {"String"}).pop()
        left = left if left[0] == other else (other, number(left[1], other))
        right = right if right[0] == other else (other, number(right[1], other))
    if "Double" in classes:
        return sign_of_doubles(float(left[1]), float(right[1]))
    return 0 if left[1] == right[1] else -1 if left[1] < right[1] else 1


def sign_of_doubles(left: float, right: float) -> int:
    keys = [
        (math.isnan(x), 0.0 if math.isnan(x) else x, math.copysign(1, x)) for x in (left, right)
    ]
    if math.isnan(left) and math.isnan(right):
        return 0
    return (keys[0] > keys[1]) - (keys[0] < keys[1])


def literal(text: str) -> tuple[str, Any]:
    if re.search("[.eE]", text):
        return "Double", float(text)
    value = int(text.rstrip("lL"))
    return ("Integer" if value < 1 << 31 else "Long"), value


def number(text: str, java_class: str) -> int | float:
    if java_class == "Double":
        return double(text)
    if not re.fullmatch(r"[+-]?\d+", text):
        raise JavaError(text)
    bits = 31 if java_class == "Integer" else 63
    if not -(1 << bits) <= int(text) < 1 << bits:
        raise JavaError(text)
    return int(text)


def double(text: str) -> float:
    """Parse a text as Double.valueOf does; supports the texts in VALUES and decimal numbers."""
    values = {"5d": 5.0, "0x10p1": 32.0, "NaN": math.nan, "-Infinity": -math.inf}
    plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text.strip())
    if text in values:
        return values[text]
    if plain is None:
        raise JavaError(text)
    return float(text)
