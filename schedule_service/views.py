"""Views of the level service as plain data: for `duemq levels`, the console and brokerStatus."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from schedule_service.config import ScheduleConfig
from schedule_service.level import Level

NextDue = Callable[[Level], int | None]
"""Returns when the next pending message of a level is due."""


def levels_view(
    levels: Mapping[int, Level],
    delays_ms: npt.NDArray[np.int64],
    config: ScheduleConfig,
    now_ms: int,
    next_due_ms: NextDue,
) -> dict[str, object]:
    """Return a view of every configured level, and of other levels with a queue."""
    numbers = sorted({*range(1, delays_ms.size), *levels})
    return {
        "now_ms": now_ms,
        "mode": "async" if config.async_deliver else "sync",
        "message_delay_level": config.levels,
        "pending": sum(level.cursor.pending for level in levels.values()),
        "levels": [
            _level_view(number, levels.get(number), delays_ms, next_due_ms) for number in numbers
        ],
    }


def _level_view(
    number: int, level: Level | None, delays_ms: npt.NDArray[np.int64], next_due_ms: NextDue
) -> dict[str, object]:
    level = level or Level.empty(number)
    failing = level.in_flight.failing
    return {
        "level": number,
        "delay_ms": int(delays_ms[number]) if number < delays_ms.size else None,
        "pending": level.cursor.pending,
        "next_due_ms": next_due_ms(level),
        "offset": level.cursor.first_undelivered,
        "max_offset": level.cursor.end,
        "segments": len(level.cursor.segments),
        "in_flight": level.in_flight.records,
        "failures": failing.failures if failing else 0,
        "delivered": level.stats.delivered,
        "expired": level.stats.lost,
        "refused": level.stats.refused,
        "quarantined": level.stats.by_reason(),
        "lateness_ms": level.stats.lateness[0].as_dict(),
    }


def runtime_view(levels: Mapping[int, Level]) -> dict[str, str]:
    """Return the entries of brokerStatus: scheduleMessageOffset_N = delivered,max."""
    return {
        f"scheduleMessageOffset_{number}": f"{level.cursor.first_undelivered},{level.cursor.end}"
        for number, level in sorted(levels.items())
        if level.cursor.end
    }
