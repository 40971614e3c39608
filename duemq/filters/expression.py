"""Compiled filter, and a cache of recently used filters."""

from __future__ import annotations

import logging
from collections import OrderedDict
from functools import cached_property
from typing import Final

from duemq.filters.evaluation import Evaluate, Properties, closure
from duemq.filters.nodes import FilterError, Node
from duemq.filters.program import Program, program_of

log = logging.getLogger(__name__)
SQL92: Final = "SQL92"
CACHE_MAX: Final = 4_096
CACHE_CHARS_MAX: Final = 1 << 18
BYTES_PER_CHAR: Final = 256  # memory of a compiled expression, per character of its text


class Expression:
    """Compiled filter expression over message properties."""

    def __init__(self, text: str) -> None:
        """Compile an expression.

        Raises:
            FilterError: The expression is invalid or exceeds a limit.
        """
        from duemq.filters.grammar import parse  # imports Lark, for brokers that filter

        self.text = text
        self.node: Node = parse(text)
        self._evaluate: Evaluate = closure(self.node)

    @cached_property
    def program(self) -> Program | None:
        """Program for the compiled kernel; None if only the closure can evaluate the expression."""
        return program_of(self.node)

    def value(self, properties: Properties) -> bool | None:
        """Return the truth value of the expression for these properties; None: unknown.

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
    """Compiler with a cache of recently used expressions and errors.

    Heartbeats and pulls repeat their expressions.
    """

    def __init__(self, *, cache_max: int = CACHE_MAX, chars_max: int = CACHE_CHARS_MAX) -> None:
        self._cache_max, self._chars_max = cache_max, chars_max
        self._cache: OrderedDict[str, Expression | FilterError] = OrderedDict()
        self._chars = 0

    def compile(self, text: str) -> Expression:
        """Return the compiled expression.

        Raises:
            FilterError: The expression is invalid or exceeds a limit.
        """
        result = self._cache.get(text)
        if result is None:
            self.add(text, result := compiled(text))
        else:
            self._cache.move_to_end(text)
        if isinstance(result, FilterError):
            raise FilterError(str(result))
        return result

    def __contains__(self, text: str) -> bool:
        return text in self._cache

    def add(self, text: str, result: Expression | FilterError) -> None:
        """Add the result of `compiled`, which is not in the cache."""
        self._cache[text] = result
        self._chars += len(text)
        while len(self._cache) > self._cache_max or self._chars > self._chars_max:
            dropped, _ = self._cache.popitem(last=False)
            self._chars -= len(dropped)


def compiled(text: str) -> Expression | FilterError:
    """Return the compiled expression, or the error; may run in any thread."""
    try:
        return Expression(text)
    except FilterError as fault:
        return FilterError(str(fault))
