"""Long work in bounded steps, between which the event loop does other work.

A generator of steps yields after each one, and returns the result.

    other work, 200 ms of processor time | steps, 20 ms | other work, 300 ms | steps, 30 ms | ...

A step of a few milliseconds in each turn of the loop would take minutes in a broker whose turns are
long, such as one with thousands of topics. Therefore the steps take a tenth of its time, and at
least one step is done in each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Final, TypeVar

from duemq_common.clock import thread_processor_s

T = TypeVar("T")
Steps = Generator[None, None, T]
ROWS_PER_TURN: Final = 256  # rows that take up to 10 us each
SHARE: Final = 0.1  # of the loop's processor time


class Pauses:
    """Pauses between the steps of long work."""

    def __init__(self) -> None:
        self._until_s = 0.0  # end of this turn's steps, in processor time of the thread

    async def after_step(self) -> None:
        """Let the event loop do other work, unless steps have had less than their share."""
        begin_s = thread_processor_s()
        if begin_s < self._until_s:
            return
        await asyncio.sleep(0)
        end_s = thread_processor_s()
        self._until_s = end_s + SHARE * (end_s - begin_s)


async def in_turns(steps: Steps[T]) -> T:
    """Do the steps with pauses; return the result."""
    results, pauses = list[T](), Pauses()
    for _ in _completed(steps, results):
        await pauses.after_step()
    return results[0]


async def collected(rows: Iterable[T]) -> list[T]:
    """Return all rows, with a pause after every ROWS_PER_TURN of them."""
    listed, pauses = list[T](), Pauses()
    for row in rows:
        listed.append(row)
        if len(listed) % ROWS_PER_TURN == 0:
            await pauses.after_step()
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
