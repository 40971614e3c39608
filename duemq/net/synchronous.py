"""Requests that are usually answered without waiting, so that they need no task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from delivery.plugin import Request, Response

Waiting = Coroutine[Any, Any, Response | None]


class Synchronous:
    """A request handler whose first part does not wait.

    Args:
        begin: returns the answer, or a coroutine that will have it.
    """

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Request], Response | Waiting]) -> None:
        self.begin = begin

    async def __call__(self, request: Request) -> Response | None:
        """As any other handler."""
        answer = self.begin(request)
        return answer if isinstance(answer, Response) else await answer
