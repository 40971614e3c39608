"""Planned times of a backfill, which are in the past. The start and end of a schedule do not count.

The broker searches for them when it sends their messages; a client counts them before it requests
that.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from delayed_delivery.steps import Steps
from recurring_schedules.definition import Definition, InvalidDefinition
from recurring_schedules.occurrences import StepWork, search_after

MESSAGES_MAX: Final = 10_000
BYTES_MAX: Final = 64 << 20
RECORD_BYTES: Final = 1_000  # of an occurrence without its body, at most


def times_between(definition: Definition, from_ms: int, until_ms: int) -> Steps[list[int]]:
    """Return the planned times in [from_ms, until_ms), in order. A step finds at most one of them.

    Raises:
        InvalidDefinition: There are more than a backfill sends.
    """
    unbounded, times = replace(definition, start_ms=0, end_ms=0), list[int]()
    count_max = min(MESSAGES_MAX, BYTES_MAX // (len(definition.body) + RECORD_BYTES))
    planned_ms = yield from search_after(unbounded, from_ms - 1, StepWork())
    while planned_ms is not None and planned_ms < until_ms:
        times.append(planned_ms)
        if len(times) > count_max:
            reason = f"the range has more than {count_max} occurrences: give a shorter one"
            raise InvalidDefinition(reason)
        yield
        planned_ms = yield from search_after(unbounded, planned_ms, StepWork())
    return times
