"""Prometheus collector of migrations."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from duemq_migration.ownership.states import State
from duemq_migration.steps.service import MigrationService


class MigrationCollector:
    """A prometheus-client collector over the migrations of one broker."""

    def __init__(self, service: MigrationService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        migrations = self._service.migrations
        levels = sorted(migrations.journal.levels.items())
        state = GaugeMetricFamily(
            "duemq_migration_state",
            "1 for the current state of a level, 0 for the others.",
            labels=["level", "state"],
        )
        paused = _gauge("paused", "1 while a level is paused.")
        remaining = _gauge(
            "remaining", "Messages of a level that are still to be transferred or returned."
        )
        moved = _counter(
            "moved", "Messages transferred to the timers by the newest run of a level."
        )
        returned = _counter("returned", "Messages returned to a level by its newest run.")
        for level, projection in levels:
            current, name = migrations.state_of(level), str(level)
            for one in State:
                state.add_metric([name, one.value], int(one is current.state))
            paused.add_metric([name], int(current.paused))
            remaining.add_metric([name], migrations.remaining(level) if self._service.owners else 0)
            moved.add_metric([name], projection.transferred)
            returned.add_metric([name], projection.returned)
        yield from (state, paused, remaining, moved, returned)
        routed = CounterMetricFamily(
            "duemq_migration_routed", "New messages of routed levels stored as timers."
        )
        routed.add_metric([], migrations.router.routed)
        rate = GaugeMetricFamily(
            "duemq_migration_rate", "Recent rate: messages transferred or returned per second."
        )
        rate.add_metric([], self._service.pace.rate_per_s)
        trouble = GaugeMetricFamily(
            "duemq_migration_ledger_trouble", "1 while the ledger is unavailable."
        )
        trouble.add_metric([], int(bool(self._service.ledger.health.trouble)))
        yield from (routed, rate, trouble)


def _gauge(name: str, doc: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"duemq_migration_{name}", doc, labels=["level"])


def _counter(name: str, doc: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"duemq_migration_{name}", doc, labels=["level"])
