"""Processor time of a call, in milliseconds of a reference machine, for tests of costs.

The call is compared with a fixed loop, which needs only registers, and with a split of 2 MiB,
which needs memory; both run in the same thread. Other processes and other guests of the host slow
down the call and one of the two alike, so that a limit holds on slow and on busy machines.

Some hosts take memory back that a guest has not used for a tenth of a second: the first access to
a page then takes 10 to 30 us, and a call that takes 4 ms when it is repeated took 60 at first. So
the least time of several calls counts, and the least time of each reference.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LOOP_STEPS = 20_000
LOOP_MS = 1.0  # time of the loop on one idle core of the reference machine
TEXT = bytes(range(256)) * 8_192
SPLIT_MS = 8.0  # time of the split there
ROUNDS = 8
REFERENCE_ROUNDS = 3


def cost_ms(action: Callable[[], object], rounds: int = ROUNDS, *, enough_ms: float = 0.0) -> float:
    """Return the least processor time of some calls, in ms of the reference machine.

    Args:
        enough_ms: Limit of the test; a call within it is not repeated.
    """
    _freeze()
    factor = time_factor()
    costs: list[float] = []
    while len(costs) < rounds and (not costs or min(costs) > enough_ms):
        costs.append(thread_s(action) * factor)
    return min(costs)


def costs_s(*actions: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Return the least processor time of each action, in seconds of now, to compare them.

    The calls alternate: a load of the machine that changes meanwhile meets all actions.
    """
    _freeze()
    costs = zip(*([thread_s(action) for action in actions] for _ in range(rounds)), strict=True)
    return [min(each) for each in costs]


def time_factor(rounds: int = REFERENCE_ROUNDS) -> float:
    """Return the factor from seconds of processor time now to ms of the reference machine.

    Args:
        rounds: Runs of the references, of which the least counts; 1 for calls that use other
            pages each time, which no repetition makes faster.
    """
    loop_s, split_s = (min(run() for _ in range(rounds)) for run in (_loop_s, _split_s))
    return min(LOOP_MS / loop_s, SPLIT_MS / split_s)


def thread_s(action: Callable[[], object]) -> float:
    """Return the processor time of one call, in seconds."""
    gc.collect()
    begin_s = time.thread_time()
    action()
    return time.thread_time() - begin_s


def _freeze() -> None:
    """Let the collections before and during the calls examine only what is new."""
    gc.collect()
    gc.freeze()


def _loop_s() -> float:
    begin_s, total = time.thread_time(), 0
    for step in range(LOOP_STEPS):
        total ^= step
    return time.thread_time() - begin_s


def _split_s() -> float:
    begin_s = time.thread_time()
    TEXT.split(b"\x00\x01")
    return time.thread_time() - begin_s
