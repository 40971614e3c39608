"""Nodes of a parsed filter, and Apache's checks when it builds them.

    text --grammar--> nodes --evaluation--> closure
                            --program-----> operations of the compiled kernel

A node has the kind of its value: text for a property, the literal's kind for a constant, a truth
value for other nodes; only constants cannot be missing. Operators are therefore selected at
compile time.
Source: ComparisonExpression, LogicExpression, UnaryExpression
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from duemq.filters import java_values

DEPTH_MAX = 128


class FilterError(ValueError):
    """Filter expression that is invalid in Apache or exceeds a limit."""


class Kind(Enum):
    """Kind of a node's value; values can be missing, except those of constants."""

    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    TEXT = "String"
    BOOLEAN = "Boolean"
    NOTHING = "null"

    @property
    def is_number(self) -> bool:
        return self in (Kind.INTEGER, Kind.LONG, Kind.DOUBLE)


class Constant(Struct, frozen=True):
    """Literal."""

    kind: Kind
    value: int | float | str | bool | None
    depth: int = 1

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        return str(self.value).upper() if isinstance(self.value, bool) else str(self.value)


class Property(Struct, frozen=True):
    """Message property."""

    name: str
    kind: Kind = Kind.TEXT
    depth: int = 1

    def __str__(self) -> str:
        return self.name


class Negative(Struct, frozen=True):
    """Unary minus; the value is missing if the operand is not a number."""

    operand: Node
    kind: Kind
    depth: int

    def __str__(self) -> str:
        return f"(- {self.operand})"


class Not(Struct, frozen=True):
    operand: Node
    depth: int
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        return f"(NOT {self.operand})"


class Cast(Struct, frozen=True):
    """Property used as a truth value: false if present, since it is text, otherwise unknown."""

    operand: Property
    depth: int = 2
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        return str(self.operand)


class Junction(Struct, frozen=True):
    """AND or OR of at least two operands, evaluated from left to right."""

    operands: tuple[Node, ...]
    is_or: bool
    depth: int
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        return "(" + (" || " if self.is_or else " && ").join(map(str, self.operands)) + ")"


class Comparison(Struct, frozen=True):
    """Comparison with one of the operators `=`, `<`, `<=`, `>`, `>=`."""

    operator: str
    left: Node
    right: Node
    depth: int
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        symbol = "==" if self.operator == "=" else self.operator
        return f"({self.left} {symbol} {self.right})"


class Search(Struct, frozen=True):
    """CONTAINS, STARTSWITH or ENDSWITH test, possibly negated."""

    operator: str
    operand: Node
    text: str
    negated: bool
    depth: int
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        return f"({'NOT ' if self.negated else ''}{self.operator} {self.operand})"


class InList(Struct, frozen=True):
    """IN or NOT IN test."""

    operand: Property
    texts: frozenset[str]
    negated: bool
    depth: int = 2
    kind: Kind = Kind.BOOLEAN

    def __str__(self) -> str:
        return f"({self.operand} {'NOT IN' if self.negated else 'IN'} ({len(self.texts)} texts))"


Node = Constant | Property | Negative | Not | Cast | Junction | Comparison | Search | InList
NULL = Constant(Kind.NOTHING, None)


def depth_over(*operands: Node) -> int:
    """Return the depth of a node with these operands.

    Raises:
        FilterError: The depth exceeds DEPTH_MAX.
    """
    depth = 1 + max(operand.depth for operand in operands)
    if depth > DEPTH_MAX:
        raise FilterError(f"the expression is nested more than {DEPTH_MAX} levels deep")
    return depth


def whole_constant(image: str) -> Constant:
    """Return the constant of a literal such as `5` or `5L`: an Integer if in range, else a Long."""
    value = java_values.parse_whole(image.rstrip("lL"), java_values.LONG_MAX)
    return Constant(Kind.INTEGER if value <= java_values.INTEGER_MAX else Kind.LONG, value)


def float_constant(image: str) -> Constant:
    """Return the constant of a literal such as `5.5`; raise FilterError if 0 or infinite."""
    value = java_values.parse_double(image)
    if value == float("inf"):
        raise FilterError(f"{image} is greater than 1.7976931348623157E308")
    if value == 0:
        raise FilterError(f"{image} is less than 4.9E-324")
    return Constant(Kind.DOUBLE, value)


def negative(operand: Node) -> Node:
    kind = operand.kind if operand.kind.is_number else Kind.NOTHING
    return Negative(operand, kind, depth_over(operand))


def negation(operand: Node) -> Node:
    operand = as_boolean(operand)
    return Not(operand, depth_over(operand))


def junction(operands: Sequence[Node], *, is_or: bool) -> Node:
    booleans = tuple(map(as_boolean, operands))
    return Junction(booleans, is_or, depth_over(*booleans))


def as_boolean(node: Node) -> Node:
    """Return a node as a truth value.

    Raises:
        FilterError: The node is neither a truth value nor a property.
    """
    if isinstance(node, Property):
        return Cast(node)
    if node.kind is Kind.BOOLEAN or node is NULL:
        return node
    raise FilterError(f"Expression will not result in a boolean value: {node}")


def is_boolean(node: Node) -> bool:
    """Return whether the node is a BooleanExpression in Apache, as TRUE, FALSE and NULL are."""
    return node.kind is Kind.BOOLEAN or node is NULL


def equality(left: Node, right: Node) -> Node:
    for operand in (left, right):
        if operand is NULL:
            raise FilterError("'NULL' cannot be compared.")
    both = isinstance(left, Constant) and isinstance(right, Constant)
    if both and is_boolean(left) and not is_boolean(right):
        raise FilterError(f"'{left}' cannot be compared with '{right}'")
    return Comparison("=", left, right, depth_over(left, right))


def inequality(left: Node, right: Node) -> Node:
    return negation(equality(left, right))


def is_null(operand: Node) -> Node:
    return Comparison("=", operand, NULL, depth_over(operand))


def order(operator: str, left: Node, right: Node) -> Node:
    """Return the comparison of two numbers or properties by `<`, `<=`, `>` or `>=`."""
    for operand in (left, right):
        text_or_truth = isinstance(operand, Constant) and not operand.kind.is_number
        if text_or_truth or is_boolean(operand):
            raise FilterError(f"Value '{operand}' cannot be compared.")
    return Comparison(operator, left, right, depth_over(left, right))


def between(operand: Node, low: Node, high: Node) -> Node:
    if isinstance(low, Constant) and isinstance(high, Constant):
        if NULL in (low, high):
            raise FilterError("Illegal values of between, values can not be null!")
        if low.kind.is_number and high.kind.is_number and _is_above(low, high):
            raise FilterError(
                f"Illegal values of between, left value({low.value}) must less than or equal to "
                f"right value({high.value})"
            )
    return junction((order(">=", operand, low), order("<=", operand, high)), is_or=False)


def not_between(operand: Node, low: Node, high: Node) -> Node:
    return junction((order("<", operand, low), order(">", operand, high)), is_or=True)


def _is_above(left: Constant, right: Constant) -> bool:
    low, high = left.value, right.value
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if Kind.DOUBLE in (left.kind, right.kind):
        return float(low) > float(high)
    return low > high


def search(operator: str, operand: Node, text: str, *, negated: bool) -> Node:
    return Search(operator, operand, text, negated, depth_over(operand))


def membership(operand: Node, texts: Sequence[str], *, negated: bool) -> Node:
    if not isinstance(operand, Property):
        raise FilterError(f"Expected a property for In expression, got: {operand}")
    return InList(operand, frozenset(texts), negated)
