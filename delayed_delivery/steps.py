"""Long work in bounded steps, between which the event loop does other work.

A generator of steps yields after each one, and returns the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
ROWS_PER_TURN: Final = 256  # rows that take up to 10 us each


async def in_turns(steps: Steps[T]) -> T:
    """Do one step in each turn of the event loop; return the result."""
    results: list[T] = []
    for _ in _completed(steps, results):
        await asyncio.sleep(0)
    return results[0]


async def collected(rows: Iterable[T]) -> list[T]:
    """Return all rows; other work runs after every ROWS_PER_TURN of them."""
    listed: list[T] = []
    for row in rows:
        listed.append(row)
        if len(listed) % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
    return listed


def at_once(steps: Steps[T]) -> T:
    """Do all steps now; return the result."""
    results: list[T] = []
    for _ in _completed(steps, results):
        pass
    return results[0]


def _completed(steps: Steps[T], results: list[T]) -> Steps[None]:
    """Yield after each step; add the result."""
    results.append((yield from steps))
