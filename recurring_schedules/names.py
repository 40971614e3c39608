"""Names of topics, properties and request fields of schedules."""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "recurring_schedules"
JOURNAL_QUEUE: Final = 0
TIMER_PLUGIN: Final = "timer_store"

# Properties of a message that creates a schedule, and the fields of the definition.
REQUEST_NAMES: Final = {
    f"DUEMQ_SCHEDULE_{field.upper()}": field
    for field in (
        "name",
        "cron",
        "zone",
        "every_ms",
        "every_days",
        "phase_ms",
        "exclude",
        "start_ms",
        "end_ms",
        "jitter_ms",
        "catch_up_ms",
        "overlap",
    )
}

UNIQUE_KEY: Final = "UNIQ_KEY"
DELIVER_MS: Final = "TIMER_DELIVER_MS"
REAL_TOPIC: Final = "REAL_TOPIC"


def occurrence_key(name: str, planned_ms: int) -> str:
    """Return the UNIQ_KEY of an occurrence: the same for each schedule and planned time."""
    return f"{name}@{planned_ms}"
