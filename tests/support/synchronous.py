"""Synchronous wrapper of asynchronous searches, for tests without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits for I/O; return its result."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value


def at_once(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine to its end, with an event loop only if it needs one."""
    try:
        return finish(make())
    except RuntimeError:  # it uses a thread
        return asyncio.run(make())


class Synchronous:
    """Port of pending messages with synchronous `by_key` and `by_offset`."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def by_key(self, *args: Any, **kwargs: Any) -> Any:
        return at_once(lambda: self._port.by_key(*args, **kwargs))

    def by_offset(self, *args: Any, **kwargs: Any) -> Any:
        return at_once(lambda: self._port.by_offset(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)
