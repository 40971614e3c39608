"""Processor time of a call, in milliseconds of a reference machine, for tests of costs.

The call is compared with a fixed loop that runs in the same thread. Other processes slow
down both alike, so that a limit holds on slow and on busy machines.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LOOP_STEPS = 20_000
LOOP_MS = 1.0  # time of the loop on one idle core of the reference machine
ROUNDS = 3


def cost_ms(action: Callable[[], object], rounds: int = ROUNDS, *, enough_ms: float = 0.0) -> float:
    """Return the least processor time of some calls, in ms of the reference machine.

    Args:
        enough_ms: Limit of the test; a call within it is not repeated.
    """
    gc.collect()
    gc.freeze()  # the collections before the calls examine only what is new
    costs: list[float] = []
    while len(costs) < rounds and (not costs or min(costs) > enough_ms):
        costs.append(_once_ms(action))
    return min(costs)


def loop_factor() -> float:
    """Return the factor from seconds of processor time now to ms of the reference machine."""
    return LOOP_MS / _loop_s()


def _once_ms(action: Callable[[], object]) -> float:
    gc.collect()
    before_s = _loop_s()
    begin_s = time.thread_time()
    action()
    took_s = time.thread_time() - begin_s
    return took_s / ((before_s + _loop_s()) / 2) * LOOP_MS


def _loop_s() -> float:
    begin_s, total = time.thread_time(), 0
    for step in range(LOOP_STEPS):
        total ^= step
    return time.thread_time() - begin_s
