"""Prometheus collector of migrations."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from delayed_delivery.metric_families import counter, gauge
from duemq_migration.ownership.states import State
from duemq_migration.steps.service import MigrationService


class MigrationCollector:
    """A prometheus-client collector over the migrations of one broker."""

    def __init__(self, service: MigrationService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        service, migrations = self._service, self._service.migrations
        projections = dict(sorted(migrations.journal.levels.items()))
        states = {level: migrations.state_of(level) for level in projections}
        text = "1 for the current state of a level, 0 for the others."
        family = GaugeMetricFamily("duemq_migration_state", text, labels=["level", "state"])
        for level, current in states.items():
            for one in State:
                family.add_metric([str(level), one.value], int(one is current.state))
        yield family
        paused = [(level, int(current.paused)) for level, current in states.items()]
        yield gauge("duemq_migration_paused", "1 while a level is paused.", "level", paused)
        left = [(n, migrations.remaining(n) if service.owners else 0) for n in projections]
        text = "Messages of a level that are still to be transferred or returned."
        yield gauge("duemq_migration_remaining", text, "level", left)
        moved = [(level, one.transferred) for level, one in projections.items()]
        text = "Messages transferred to the timers by the newest run of a level."
        yield counter("duemq_migration_moved", text, "level", moved)
        returned = [(level, one.returned) for level, one in projections.items()]
        text = "Messages returned to a level by its newest run."
        yield counter("duemq_migration_returned", text, "level", returned)
        text = "New messages of routed levels stored as timers."
        yield CounterMetricFamily("duemq_migration_routed", text, value=migrations.router.routed)
        text = "Recent rate: messages transferred or returned per second."
        yield GaugeMetricFamily("duemq_migration_rate", text, value=service.pace.rate_per_s)
        text, trouble = "1 while the ledger is unavailable.", bool(service.ledger.health.trouble)
        yield GaugeMetricFamily("duemq_migration_ledger_trouble", text, value=int(trouble))
