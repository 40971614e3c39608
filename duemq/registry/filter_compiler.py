"""Compiler of the property filters of subscriptions.

Expressions are compiled at the first pull, since a heartbeat may contain thousands; long ones in a
thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from typing import Final

from duemq.filters import SQL92, Compiler, Expression, FilterError
from duemq.filters.expression import compiled
from duemq.net.dispatcher import Deferred, Handler
from duemq.registry.subscriptions import Subscription
from duemq_common.request import Request, Response

COMPILE_INLINE_CHARS_MAX: Final = 512  # a longer filter is compiled in a thread


class FilterCompiler:
    """Compiled filters of one broker.

    Only the compiler's cache keeps an expression: it takes 250 times the memory of its text.

    Args:
        subscription_of: Returns the subscription of a group to a topic.
    """

    def __init__(self, subscription_of: Callable[[str, str], Subscription | None]) -> None:
        self._subscription_of = subscription_of
        self._compiler, self._compiling = Compiler(), asyncio.Lock()

    def compile(self, kind: str, expression: str) -> Expression:
        """Return the compiled expression.

        Raises:
            FilterError: The kind is unknown, or the expression is invalid.
        """
        _check_kind(kind, expression)
        return self._compiler.compile(expression)

    def after_compiling(self, handler: Handler) -> Handler:
        """Return a handler that runs after a thread has compiled the request's long filter."""

        @functools.wraps(handler)
        def begin(request: Request) -> Response | Deferred:
            text = self._uncompiled(request.fields)
            return self._compile_first(text, handler, request) if text else handler(request)

        return begin

    def _uncompiled(self, fields: Mapping[str, str]) -> str:
        """Return the long filter of a pull or pop that is not compiled; empty: none."""
        text = ""
        if (fields.get("expressionType") or fields.get("expType")) == SQL92:
            text = fields.get("subscription") or fields.get("exp") or ""
        elif "subscription" not in fields:
            group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
            subscription = self._subscription_of(group, topic)
            if subscription is not None and not subscription.is_tag:
                text = subscription.expression
        is_long = len(text) > COMPILE_INLINE_CHARS_MAX
        return text if is_long and text not in self._compiler else ""

    async def _compile_first(
        self, text: str, handler: Handler, request: Request
    ) -> Response | None:
        async with self._compiling:  # one thread, since all of them share the interpreter
            if text not in self._compiler:
                result = await asyncio.to_thread(compiled, text)
                self._compiler.add(text, result)
        outcome = handler(request)
        return outcome if isinstance(outcome, Response) else await outcome


def check_filter(kind: str, expression: str) -> None:
    """Check an expression by compiling it, without a cache; may run in any thread.

    Raises:
        FilterError: The kind is unknown, or the expression is invalid.
    """
    _check_kind(kind, expression)
    Expression(expression)


def _check_kind(kind: str, expression: str) -> None:
    if kind != SQL92:
        raise FilterError(f"expressionType {kind!r} is neither TAG nor {SQL92}")
    if not expression:
        raise FilterError(f"Expression can't be null! {kind}")
