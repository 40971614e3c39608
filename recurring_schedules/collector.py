"""Collector of the metrics of schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from delayed_delivery.metric_families import gauge
from recurring_schedules.planner import PlannerStats
from recurring_schedules.table import ScheduleTable

COUNTERS: Final = {
    "planned": "Occurrences appended as timers.",
    "late": "Occurrences appended after their due time.",
    "missed": "Occurrences skipped by the catch-up window or the overlap rule.",
    "refused": "Occurrences that the store or a limit of timers refused; they are repeated.",
}
"""Help text of each counter of `PlannerStats`."""


class ScheduleCollector:
    """A prometheus-client collector over a table and the counters of its planner."""

    def __init__(self, table: ScheduleTable, stats: PlannerStats) -> None:
        self._table, self._stats = table, stats

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        counts = self._table.counts()
        yield gauge("duemq_schedules", "Recurring schedules.", "state", counts.items())
        for name, text in COUNTERS.items():
            count = getattr(self._stats, name)
            yield CounterMetricFamily(f"duemq_schedule_{name}", text, value=count)
