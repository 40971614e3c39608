"""Names of topics, properties and request fields of schedules."""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "recurring_schedules"
JOURNAL_TOPIC: Final = "DUEMQ_SCHEDULES"
JOURNAL_QUEUE: Final = 0
TIMER_PLUGIN: Final = "timer_store"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

# Properties of an occurrence.
SCHEDULE_NAME: Final = "DUEMQ_SCHEDULE"
PLANNED_TIME: Final = "DUEMQ_SCHEDULE_TIME"
NEXT_TIME: Final = "DUEMQ_SCHEDULE_NEXT"
MANUAL: Final = "DUEMQ_SCHEDULE_MANUAL"
"""`trigger` or `backfill`: the occurrence was requested and is not planned by the schedule."""

UNIQUE_KEY: Final = "UNIQ_KEY"
DELIVER_MS: Final = "TIMER_DELIVER_MS"


def occurrence_key(name: str, planned_ms: int) -> str:
    """Return the UNIQ_KEY of an occurrence: the same for each schedule and planned time."""
    return f"{name}@{planned_ms}"
