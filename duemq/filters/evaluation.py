"""Evaluation of a filter over the properties of one message, by a closure per node.

The value of a truth node is true, false, or None for SQL's unknown. A comparison that throws in
Java raises here; such a message does not match.
Source: ComparisonExpression, LogicExpression, UnaryExpression
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from duemq.filters import java_values
from duemq.filters.nodes import (
    Cast,
    Comparison,
    Constant,
    InList,
    Junction,
    Kind,
    Negative,
    Node,
    Not,
    Property,
    Search,
)

Properties = Mapping[str, str]
Value = int | float | str | None  # type according to the node's kind
Evaluate = Callable[[Properties], Value]
Compare = Callable[..., int]

RANGES: Final = {Kind.INTEGER: java_values.INTEGER_MAX, Kind.LONG: java_values.LONG_MAX}
PREDICATES: Final[dict[str, Callable[[int], bool]]] = {
    "=": lambda response: response == 0,
    "<": lambda response: response < 0,
    "<=": lambda response: response <= 0,
    ">": lambda response: response > 0,
    ">=": lambda response: response >= 0,
}


class IncomparableError(ValueError):
    """Comparison of two values that throws in Java."""


def closure(node: Node) -> Evaluate:
    """Return a function that computes the value of a node from properties."""
    match node:
        case Constant():
            value = node.value
            return lambda properties: value
        case Property():
            name = node.name
            return lambda properties: properties.get(name)
        case Negative():
            return _negative(node)
        case Not():
            operand = closure(node.operand)
            return lambda properties: None if (v := operand(properties)) is None else not v
        case Cast():
            name = node.operand.name
            return lambda properties: False if name in properties else None
        case Junction():
            return _junction(node)
        case Comparison():
            return _comparison(node)
        case Search():
            return _search(node)
        case InList():
            return _membership(node)


def _negative(node: Negative) -> Evaluate:
    operand = closure(node.operand)
    if node.kind.is_number:
        number = cast("Callable[[Properties], float]", operand)
        return lambda properties: -number(properties)

    def missing(properties: Properties) -> None:
        operand(properties)  # may raise

    return missing


def _junction(node: Junction) -> Evaluate:
    operands = tuple(map(closure, node.operands))
    decisive = node.is_or

    def junction(properties: Properties) -> bool | None:
        unknown = False
        for operand in operands:
            value = operand(properties)
            if value is decisive:
                return node.is_or
            unknown |= value is None
        return None if unknown else not decisive

    return junction


def _comparison(node: Comparison) -> Evaluate:
    left, right = closure(node.left), closure(node.right)
    compare, predicate = _compare(node), PREDICATES[node.operator]

    def equality(properties: Properties) -> bool | None:
        lv, rv = left(properties), right(properties)
        if lv is None:
            return True if rv is None else None
        return False if rv is None else predicate(compare(lv, rv))

    def order(properties: Properties) -> bool | None:
        lv = left(properties)
        if lv is None:
            return None
        rv = right(properties)
        return None if rv is None else predicate(compare(lv, rv))

    return equality if node.operator == "=" else order


def _compare(node: Comparison) -> Compare:
    """Return Java's comparison for the kinds of the operands."""
    kinds = left, right = node.left.kind, node.right.kind
    if kinds == (Kind.TEXT, Kind.TEXT):
        return _compare_texts if node.operator == "=" else _compare_texts_as_numbers
    if kinds == (Kind.BOOLEAN, Kind.BOOLEAN):
        return java_values.compare_numbers
    if kinds == (Kind.BOOLEAN, Kind.TEXT):
        return _incomparable  # Apache casts the truth value to a String
    if kinds == (Kind.TEXT, Kind.BOOLEAN):
        return lambda lv, rv: java_values.compare_numbers(java_values.parse_boolean(lv), rv)
    if left is Kind.TEXT and right.is_number:
        parse, compare = _parser(right), _compare_kind(right)
        return lambda lv, rv: compare(parse(lv), rv)
    if left.is_number and right is Kind.TEXT:
        parse, compare = _parser(left), _compare_kind(left)
        return lambda lv, rv: compare(lv, parse(rv))
    if left.is_number and right.is_number:
        if Kind.DOUBLE in kinds:
            return lambda lv, rv: java_values.compare_doubles(float(lv), float(rv))
        return java_values.compare_numbers
    return lambda lv, rv: -1


def _parser(kind: Kind) -> Callable[[str], float]:
    """Return a function that parses a number of this kind."""
    if kind is Kind.DOUBLE:
        return java_values.parse_double
    maximum = RANGES[kind]
    return lambda text: java_values.parse_whole(text, maximum)


def _compare_kind(kind: Kind) -> Compare:
    return java_values.compare_doubles if kind is Kind.DOUBLE else java_values.compare_numbers


def _incomparable(left: bool, right: str) -> int:
    raise IncomparableError(f"a truth value cannot be compared with the text {right!r}")


def _compare_texts(left: str, right: str) -> int:
    return 0 if left == right else 1


def _compare_texts_as_numbers(left: str, right: str) -> int:
    return java_values.compare_doubles(
        java_values.parse_double(left), java_values.parse_double(right)
    )


def _search(node: Search) -> Evaluate:
    operand, text, negated = closure(node.operand), node.text, node.negated
    matches: Callable[[str], bool] = {
        "CONTAINS": lambda value: text in value,
        "STARTSWITH": lambda value: value.startswith(text),
        "ENDSWITH": lambda value: value.endswith(text),
    }[node.operator]

    def search(properties: Properties) -> bool:
        if not text:
            return False
        value = operand(properties)
        return isinstance(value, str) and matches(value) is not negated

    return search


def _membership(node: InList) -> Evaluate:
    name, texts, negated = node.operand.name, node.texts, node.negated

    def member(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in texts) is not negated

    return member
