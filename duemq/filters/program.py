"""Program of a filter: its nodes as operations of the compiled kernel.

Constants with U+FFFD, comparisons of truth values, and comparisons without a property have no
operations; closures evaluate such expressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from duemq.filters import layout
from duemq.filters.evaluation import RANGES
from duemq.filters.nodes import (
    NULL,
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
from message_store.kernels.bytes import Bytes
from message_store.layout import SCANNED, Rows

Numbers = npt.NDArray[np.int64]
OPERATORS: Final = {
    "=": layout.EQUAL,
    "<": layout.LESS,
    "<=": layout.AT_MOST,
    ">": layout.GREATER,
    ">=": layout.AT_LEAST,
}
MIRRORED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
SEARCHES: Final = {
    "CONTAINS": layout.CONTAINS,
    "STARTSWITH": layout.STARTS,
    "ENDSWITH": layout.ENDS,
}
TRUTH: Final = {False: layout.FALSE, True: layout.TRUE, None: layout.UNKNOWN}
REPLACEMENT: Final = "\ufffd"
NAME_COST: Final = 20


class NoOperationError(Exception):
    """Node without an operation."""


class Program(Struct, frozen=True):
    """Arguments of `match_records` for a filter.

    Attributes:
        names: (texts, ends) of the property names.
        arrays: (operations, whole numbers, doubles, texts, ends).
        scratch: Working arrays of the kernel.
        cost: Estimated steps for one record.
    """

    names: tuple[Bytes, Numbers]
    arrays: tuple[Numbers, Numbers, npt.NDArray[np.float64], Bytes, Numbers]
    scratch: tuple[Rows, Numbers, Numbers]
    cost: int


def program_of(node: Node) -> Program | None:
    """Return the program of a filter; None if a node has no operation."""
    assembler = _Assembler()
    try:
        assembler.add(node)
    except NoOperationError:
        return None
    return assembler.program(node.depth)


class _Assembler:
    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._names: dict[str, int] = {}
        self._whole: list[int] = []
        self._doubles: list[float] = []
        self._texts: list[bytes] = []

    def program(self, depth: int) -> Program:
        names, name_ends = _joined(name.encode() for name in self._names)
        texts, text_ends = _joined(self._texts)
        scratch = (
            np.zeros(1, SCANNED),
            np.zeros((len(self._names), 2), np.int64),
            np.zeros(depth + 2, np.int64),
        )
        operations = np.array(self._rows, np.int64).reshape(-1, layout.COLUMNS)
        whole, doubles = np.array(self._whole, np.int64), np.array(self._doubles, np.float64)
        cost = len(self._rows) + len(self._texts) + NAME_COST * (1 + len(self._names))
        arrays = (operations, whole, doubles, texts, text_ends)
        return Program((names, name_ends), arrays, scratch, cost)

    def add(self, node: Node) -> None:
        """Add the operations of a truth node.

        Raises:
            NoOperationError: The node has no operation.
        """
        match node:
            case Constant():
                self._row(layout.PUSH, argument=_truth(node))
            case Cast():
                self._row(layout.PRESENT, node.operand, layout.FALSE, absent=layout.UNKNOWN)
            case Not():
                self.add(node.operand)
                self._row(layout.NOT)
            case Junction():
                self._add_junction(node)
            case Comparison():
                self._add_comparison(node)
            case Search():
                self._add_search(node)
            case InList():
                first = len(self._texts)
                for text in sorted(node.texts):
                    self._text(text)
                self._row(
                    layout.MEMBER,
                    node.operand,
                    first,
                    int(node.negated),
                    layout.UNKNOWN,
                    len(self._texts),
                )
            case _:
                raise NoOperationError

    def _row(
        self,
        operation: int,
        operand: Property | None = None,
        argument: int = 0,
        operator: int = 0,
        absent: int = 0,
        extra: int = 0,
    ) -> list[int]:
        index = 0 if operand is None else self._name(operand)
        self._rows.append([operation, index, argument, operator, absent, extra])
        return self._rows[-1]

    def _name(self, operand: Property) -> int:
        return self._names.setdefault(operand.name, len(self._names))

    def _text(self, text: str) -> int:
        if REPLACEMENT in text:
            raise NoOperationError  # in Java, invalid UTF-8 decodes to it
        self._texts.append(text.encode("utf-8", "surrogatepass"))
        return len(self._texts) - 1

    def _add_junction(self, node: Junction) -> None:
        decisive = TRUTH[node.is_or]
        jumps = []
        self.add(node.operands[0])
        for operand in node.operands[1:]:
            jumps.append(self._row(layout.JUMP, operator=decisive))
            self.add(operand)
            self._row(layout.MERGE, argument=decisive)
        for jump in jumps:
            jump[layout.ARGUMENT] = len(self._rows)

    def _add_search(self, node: Search) -> None:
        if not node.text or not isinstance(node.operand, Property):
            raise NoOperationError
        index = self._text(node.text)
        self._row(SEARCHES[node.operator], node.operand, index, int(node.negated), layout.FALSE)

    def _add_comparison(self, node: Comparison) -> None:
        left, right, operator = node.left, node.right, node.operator
        if isinstance(left, Property) and isinstance(right, Property):
            operation = layout.PAIR_EQUAL if operator == "=" else layout.PAIR_ORDER
            self._row(operation, left, self._name(right), OPERATORS[operator])
        elif isinstance(left, Property):
            absent = layout.TRUE if right is NULL else layout.UNKNOWN
            self._add_constant_comparison(left, _constant(right), operator, absent)
        elif isinstance(right, Property):
            constant = _constant(left)
            absent = layout.FALSE if operator == "=" else layout.UNKNOWN
            if constant.kind is Kind.BOOLEAN:
                self._row(layout.FAIL, right, absent=absent)
            else:
                self._add_constant_comparison(right, constant, MIRRORED[operator], absent)
        else:
            raise NoOperationError

    def _add_constant_comparison(
        self, operand: Property, constant: Constant, operator: str, absent: int
    ) -> None:
        value = constant.value
        if value is None:
            self._row(layout.PRESENT, operand, layout.FALSE, absent=absent)
        elif isinstance(value, bool):
            self._row(layout.BOOLEAN, operand, int(value), absent=absent)
        elif isinstance(value, str):
            self._row(layout.TEXT, operand, self._text(value), absent=absent)
        elif isinstance(value, float):
            self._doubles.append(value)
            index = len(self._doubles) - 1
            self._row(layout.DOUBLE, operand, index, OPERATORS[operator], absent)
        else:
            self._whole.append(value)
            index, maximum = len(self._whole) - 1, RANGES[constant.kind]
            self._row(layout.WHOLE, operand, index, OPERATORS[operator], absent, maximum)


def _truth(node: Constant) -> int:
    assert node.value is None or isinstance(node.value, bool)
    return TRUTH[node.value]


def _constant(node: Node) -> Constant:
    """Return a constant or negated constant as a constant.

    Raises:
        NoOperationError: The node is neither.
    """
    if isinstance(node, Constant):
        return node
    if isinstance(node, Negative) and node.kind.is_number:
        inner = _constant(node.operand)
        assert isinstance(inner.value, int | float)
        return Constant(inner.kind, -inner.value)
    raise NoOperationError


def _joined(texts: Iterable[bytes]) -> tuple[Bytes, Numbers]:
    """Return the concatenated texts, and their ends as (n + 1,), from 0."""
    pieces = list(texts)
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return np.frombuffer(b"".join(pieces) or b"\0", np.uint8).copy(), ends
