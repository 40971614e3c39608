"""Prometheus collector of broker metrics, read at each scrape.

The registry, which duemq.http.probes serves, also has the histograms of plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from duemq.auth.access import AccessControl
    from duemq.broker.collectors.running_broker import RunningBroker


class BrokerCollector(Collector):
    """Collector of broker metrics, read at each scrape.

    Args:
        gauges: Help text and function by metric name without prefix.
        counters: The same for counters.
    """

    def __init__(
        self,
        gauges: Mapping[str, tuple[str, Callable[[], float]]],
        counters: Mapping[str, tuple[str, Callable[[], float]]],
    ) -> None:
        self._gauges, self._counters = dict(gauges), dict(counters)

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric."""
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(f"duemq_{name}", text, value=value())
        for name, (text, value) in self._counters.items():
            yield CounterMetricFamily(f"duemq_{name}", text, value=value())


def broker_collector(broker: RunningBroker) -> BrokerCollector:
    """Return the collector of a running broker."""
    store, parts = broker.store, broker.parts
    gauges = {
        "up": ("1 while the broker serves.", lambda: 1.0),
        "store_writable": ("1 while the store accepts messages.", lambda: float(store.writable)),
        "commitlog_min_offset": ("First byte of the commit log.", lambda: store.min_offset),
        "commitlog_max_offset": ("End of the commit log.", lambda: store.max_offset),
        "commitlog_durable_offset": (
            "Log offset up to which the log is on disk.",
            lambda: store.durable_offset,
        ),
        "disk_used_ratio": ("Used share of the store's disk.", lambda: store.disk_used_ratio),
        "held_pulls": ("Pulls on hold until a message arrives.", lambda: len(parts.long_polls)),
        "connections": ("Open connections.", lambda: parts.memory.open_count),
        "tls_connections": (
            "Open connections that use TLS.",
            lambda: parts.memory.encrypted_count,
        ),
        "tls_reload_failed": (
            "1 while changed certificates cannot be loaded.",
            lambda: float(broker.tls.reload_failed),
        ),
        "connection_memory_bytes": (
            "Memory of connections: received frames, requests, long polls, unread responses.",
            lambda: parts.memory.used_bytes,
        ),
        "connection_memory_limit_bytes": (
            "Limit of the memory of connections (remotingMemoryMax).",
            lambda: parts.memory.limit_bytes,
        ),
    }
    counters = {
        "pop_quarantined": (
            "Popped messages that cannot be visible again and went to the quarantine topic.",
            lambda: parts.pop.reviver.quarantine.counts.total() if parts.pop else 0.0,
        ),
        "transaction_quarantined": (
            "Half messages that cannot be read and went to the quarantine topic.",
            lambda: parts.transactions.quarantine.counts.total() if parts.transactions else 0.0,
        ),
        "tls_reloads": (
            "Reloads of certificates after a file changed.",
            lambda: broker.tls.reload_count,
        ),
        "connections_refused": (
            "Connections refused at the limit.",
            lambda: parts.memory.refused_count,
        ),
        "connections_shed": (
            "Connections closed because the memory of all connections exceeded its limit.",
            lambda: parts.memory.shed_count,
        ),
        "log_files_removed": ("Files removed by retention.", lambda: store.retention.removed_files),
    }
    return BrokerCollector(gauges, counters | _access_counters(broker.access))


def _access_counters(
    access: AccessControl | None,
) -> dict[str, tuple[str, Callable[[], float]]]:
    """Return the counters of access control; 0 while it is off."""
    return {
        "access_refused": (
            "Requests refused because of a missing account or permission.",
            lambda: access.audit.refused_count if access else 0,
        ),
        "access_reload_failures": (
            "Changed account files (plain_acl.yml) that cannot be loaded.",
            lambda: access.files.failure_count if access and access.files else 0,
        ),
    }
