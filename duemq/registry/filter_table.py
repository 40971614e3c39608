"""Table of property filters registered by heartbeats, by group and topic.

A filter is removed when its group ends the subscription. Expressions are compiled at the first
pull, since a heartbeat may contain thousands; long ones in a thread.
Source: ConsumerFilterManager
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec import Struct

from duemq.filters import SQL92, Compiler, Expression, FilterError
from duemq.filters.expression import compiled
from duemq.net.dispatcher import Deferred, Handler
from duemq.registry.subscriptions import Subscription
from duemq_common.request import Request, Response

log = logging.getLogger(__name__)
FILTERS_MAX: Final = 65_536
CHARS_MAX: Final = 16 << 20
COMPILE_INLINE_CHARS_MAX: Final = 512  # a longer filter is compiled in a thread


class RegisteredFilter(Struct):
    """Filter of one group on one topic. ConsumerFilterData

    Attributes:
        version: Version number chosen by the client.
    """

    group: str
    topic: str
    expression: str
    kind: str
    version: int
    born_ms: int
    is_invalid: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the JSON form. ConsumerFilterData"""
        return {
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": False,
            "deadTime": 0,
            "expression": self.expression,
            "expressionType": self.kind,
            "topic": self.topic,
        }


class FilterTable:
    """Filters of all groups of one broker.

    Args:
        now_ms: Returns the time in ms since the epoch.
        filters_max, chars_max: Maximum number of filters and of characters in all expressions.
    """

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: 1,
        *,
        filters_max: int = FILTERS_MAX,
        chars_max: int = CHARS_MAX,
    ) -> None:
        self._now_ms = now_ms
        self._filters_max, self._chars_max = filters_max, chars_max
        self._compiler, self._compiling = Compiler(), asyncio.Lock()
        self._by_group: dict[str, dict[str, RegisteredFilter]] = {}
        self._count = self._chars = 0

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
        elif self._by_group and "subscription" not in fields:
            registered = self.find(fields.get("topic", ""), fields.get("consumerGroup", ""))
            text = registered.expression if registered is not None else ""
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

    def find(self, topic: str, group: str) -> RegisteredFilter | None:
        """Return the filter of a group on a topic."""
        return self._by_group.get(group, {}).get(topic)

    def compiled(self, registered: RegisteredFilter) -> Expression | None:
        """Return the compiled expression of a filter; None if it is invalid.

        Only the compiler's cache keeps it: it takes 250 times the memory of its text.
        """
        if registered.is_invalid:
            return None
        try:
            return self.compile(registered.kind, registered.expression)
        except FilterError as fault:
            log.warning("filter of %s on %s: %.500s", registered.group, registered.topic, fault)
            registered.is_invalid = True
            return None

    def register(self, group: str, subscriptions: Collection[Subscription]) -> None:
        """Register the property filters of a group; remove those of its other topics."""
        topics = {subscription.topic for subscription in subscriptions}
        for topic, registered in list(self._by_group.get(group, {}).items()):
            if topic not in topics:
                self._remove(registered)
        for subscription in subscriptions:
            if not subscription.is_tag and subscription.expression:
                self._register(group, subscription)

    def _register(self, group: str, subscription: Subscription) -> None:
        registered = self._by_group.get(group, {}).get(subscription.topic)
        if registered is not None and subscription.version < registered.version:
            return
        kind, expression = subscription.kind, subscription.expression
        if registered is not None:
            same = (registered.kind, registered.expression) == (kind, expression)
            if subscription.version == registered.version or same:
                registered.version = subscription.version
                return
            self._remove(registered)
        if self._is_full(expression):
            log.warning(
                "filter of %s on %s is not registered: too many filters", group, subscription.topic
            )
            return
        born_ms = self._now_ms()
        self._add(
            RegisteredFilter(
                group, subscription.topic, expression, kind, subscription.version, born_ms
            )
        )

    def _is_full(self, expression: str) -> bool:
        return self._count >= self._filters_max or self._chars + len(expression) > self._chars_max

    def _add(self, new: RegisteredFilter) -> None:
        self._by_group.setdefault(new.group, {})[new.topic] = new
        self._count += 1
        self._chars += len(new.expression)

    def _remove(self, registered: RegisteredFilter) -> None:
        group_filters = self._by_group[registered.group]
        del group_filters[registered.topic]
        if not group_filters:
            del self._by_group[registered.group]
        self._count -= 1
        self._chars -= len(registered.expression)


def check_filter(kind: str, expression: str) -> None:
    """Check an expression by compiling it, without a table; may run in any thread.

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
