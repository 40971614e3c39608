"""Turns of searches and decisions: one slice of messages at a time, after due deliveries.

    slice, about 1 ms  ->  other requests, due deliveries  ->  next slice

A slice holds the event loop, so a message that becomes due meanwhile is delivered after it. Its
delivery needs two turns of the event loop to begin, and slices of the same or of another request
would run in these; so the next slice starts when no delivery is due any more, or would be before
its end.

A second with a million due messages takes many turns of deliveries. Operators can cancel messages
of that second meanwhile, so a slice waits for a limited number of turns only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from delayed_delivery.pending import PendingMessages
from duemq_common.clock import Clock, thread_processor_s

DUE_TURNS_MAX: Final = 8  # turns in which deliveries come before the next slice
AHEAD_MS: Final = 1  # what is due within it is delivered before a slice
SLICE_S: Final = 0.0014  # processor time of the messages of a slice, about, without FIXED_S
SLICE_S_MAX: Final = 0.002  # if SLICE_HITS_MIN messages take longer, a slice has fewer
FIXED_S: Final = 0.0004  # processor time of a slice that does not depend on its messages, about
WAITS_MAX: Final = 4  # a slice may take this many times its processor time
SLICE_HITS_MIN = 64  # fewer would spend most of their time on the fixed cost
SLICE_HITS_FIRST: Final = 32  # of the first request
SLICE_HITS_LEAST: Final = 8  # of messages that take long, such as moves of level messages
SLICE_HITS_MAX = 480  # NumPy lets other threads run in each operation on more than 500 values
GROWTH_MAX: Final = 4


class DecisionTurns:
    """Turns of all decision requests of a broker; an async context manager.

    One block is active at a time, in the order of arrival. It begins after other requests and
    deliveries that are due.

    Args:
        ports: Returns the components that own pending messages.
    Attributes:
        sizes: Number of messages of the next slice by action, from the last request.
    """

    def __init__(self, ports: Callable[[], Sequence[PendingMessages]], clock: Clock) -> None:
        self._ports, self._clock, self.sizes = ports, clock, dict[str, int]()
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await self.others_first()
        except BaseException:
            self._lock.release()
            raise

    async def __aexit__(self, *exc: object) -> None:
        self._lock.release()

    async def others_first(self) -> None:
        """Return after other requests and due deliveries, at most DUE_TURNS_MAX turns of these.

        A delivery that is due before the next slice ends comes first, too, after one wait.
        """
        await asyncio.sleep(0)
        has_waited = False
        for _ in range(DUE_TURNS_MAX):
            now_ms = self._clock.now_ms()
            if self._wake_due(now_ms):
                await asyncio.sleep(0)
            elif not has_waited and self._wake_due(now_ms + AHEAD_MS):
                has_waited = True
                await asyncio.sleep(AHEAD_MS / 1_000)
            else:
                return

    def _wake_due(self, now_ms: int) -> bool:
        """Wake all deliveries that are due at a time; return whether there are any."""
        return bool([port for port in self._ports() if port.wake_due(now_ms)])


class SliceSize:
    """Number of messages of the next slice of a request.

    Args:
        sizes: See `DecisionTurns`.
    Attributes:
        count: The number.
    """

    def __init__(self, sizes: dict[str, int], action: str) -> None:
        self._sizes, self._action = sizes, action
        self.count = min(sizes.get(action, SLICE_HITS_FIRST), SLICE_HITS_MIN)
        self._now_s = asyncio.get_running_loop().time

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the decisions of a slice, which the block makes, and set the next number."""
        begin_s, processor_s = self._now_s(), thread_processor_s()
        yield
        self.count = next_size(
            self.count, thread_processor_s() - processor_s, self._now_s() - begin_s
        )
        self._sizes[self._action] = self.count


def next_size(count: int, processor_s: float, took_s: float) -> int:
    """Return the number of messages of the next slice, given those of this one and its times.

    Each slice has a fixed cost. While threads of the console work, a slice takes up to WAITS_MAX
    times its processor time, however small it is: smaller slices would decide on fewer messages in
    the same time. Records that are not in memory take longer than that.

    Args:
        processor_s: Processor time of this thread.
        took_s: Time of the slice.
    """
    least_s = SLICE_S / GROWTH_MAX
    took_s = max(max(processor_s, took_s / WAITS_MAX) - FIXED_S, least_s)
    longest = max(int(count * SLICE_S_MAX / max(processor_s - FIXED_S, least_s)), SLICE_HITS_LEAST)
    return min(max(int(count * SLICE_S / took_s), SLICE_HITS_MIN), SLICE_HITS_MAX, longest)
