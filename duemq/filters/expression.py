"""A compiled filter, and the filters that were compiled last."""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import cached_property
from typing import Final

from duemq.filters.evaluation import Evaluate, Properties, closure
from duemq.filters.grammar import parse
from duemq.filters.nodes import FilterError, Node
from duemq.filters.program import Program, program_of

log = logging.getLogger(__name__)
SQL92: Final = "SQL92"
KEPT_MAX: Final = 256
KEPT_CHARS_MAX: Final = 1 << 20


class Expression:
    """An expression that can be evaluated over the properties of messages."""

    def __init__(self, text: str) -> None:
        """Compile an expression.

        Raises:
            FilterError: It does not parse, or exceeds a bound.
        """
        self.text = text
        self.node: Node = parse(text)
        self._evaluate: Evaluate = closure(self.node)

    @cached_property
    def program(self) -> Program | None:
        """Operations of the compiled kernel; None if only the closure can evaluate it."""
        return program_of(self.node)

    def value(self, properties: Properties) -> bool | None:
        """Return true, false, or None if the expression is unknown for these properties.

        Raises:
            ValueError: Two values cannot be compared.
        """
        value = self._evaluate(properties)
        assert value is None or isinstance(value, bool)
        return value

    def matches(self, properties: Properties) -> bool:
        """Return whether a message with these properties is delivered.

        Source: ExpressionMessageFilter.isMatchedByCommitLog
        """
        try:
            return self._evaluate(properties) is True
        except ValueError as fault:
            log.debug("filter %.200r: %.200s", self.text, fault)
            return False


class Compiler:
    """Compiles expressions and keeps the results that were used last, also errors.

    Heartbeats and pulls repeat their expressions.
    """

    def __init__(self, *, kept_max: int = KEPT_MAX, chars_max: int = KEPT_CHARS_MAX) -> None:
        self._kept_max, self._chars_max = kept_max, chars_max
        self._kept: OrderedDict[str, Expression | FilterError] = OrderedDict()
        self._chars = 0

    def compile(self, text: str) -> Expression:
        """Return the compiled expression.

        Raises:
            FilterError: It does not parse, or exceeds a bound.
        """
        result = self._kept.get(text)
        if result is None:
            result = self._add(text)
        else:
            self._kept.move_to_end(text)
        if isinstance(result, FilterError):
            raise FilterError(str(result))
        return result

    def _add(self, text: str) -> Expression | FilterError:
        result: Expression | FilterError
        try:
            result = Expression(text)
        except FilterError as fault:
            result = FilterError(str(fault))
        self._kept[text] = result
        self._chars += len(text)
        while len(self._kept) > self._kept_max or self._chars > self._chars_max:
            dropped, _ = self._kept.popitem(last=False)
            self._chars -= len(dropped)
        return result
