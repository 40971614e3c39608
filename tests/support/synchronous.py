"""Synchronous wrapper of asynchronous searches, for tests without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from delayed_delivery.pending import HitQuery, PendingPiece


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits for I/O; return its result."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; within an event loop, it must not wait for I/O."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return finish(work)


class Synchronous:
    """Port of pending messages with synchronous `by_key` and `by_offset`."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def by_key(self, *args: Any, **kwargs: Any) -> Any:
        return at_once(self._port.by_key(*args, **kwargs))

    def by_offset(self, *args: Any, **kwargs: Any) -> Any:
        return at_once(self._port.by_offset(*args, **kwargs))

    def pieces(self, topic: str, from_ms: int = 0, until_ms: int = 1 << 60) -> list[PendingPiece]:
        """Return the pieces of a search that have messages."""
        pieces, cursor = [], ""
        query = HitQuery(topic=topic, from_ms=from_ms, until_ms=until_ms)
        while True:
            following = self._port.search(query, cursor)
            pieces += [following] if following.offsets.size else []
            if following.cursor is None:
                return pieces
            cursor = following.cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)
