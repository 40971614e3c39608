"""Start of the Prometheus endpoint of a running broker."""

from __future__ import annotations

from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from duemq.broker.collectors.collector import broker_collector, metrics_server
from duemq.broker.collectors.native_metrics import NativeCollector
from duemq.broker.collectors.replication_collector import ReplicationCollector
from duemq.broker.collectors.running_broker import RunningBroker
from duemq.configuration.exposure import warn_if_exposed
from duemq.metrics.http_server import serving

LOOPBACK = "127.0.0.1"


async def serve_metrics(
    broker: RunningBroker, metrics: CollectorRegistry, stack: AsyncExitStack, *, required: bool
) -> int | None:
    """Serve /metrics until `stack` exits; return the port, None if it cannot be bound.

    Args:
        required: Raise UsageError instead of logging a warning.
    """
    config = broker.config
    metrics.register(broker_collector(broker))
    metrics.register(NativeCollector(broker))
    metrics.register(ReplicationCollector(broker.parts.replication))
    address = config.metrics_host or (LOOPBACK if broker.access else config.bind_address)
    port = await stack.enter_async_context(
        serving(
            metrics_server(broker, metrics),
            address,
            config.metrics_port,
            required=required,
        )
    )
    if port is not None:
        key, off = "metricsPromExporterHost", "metricsExporterType=DISABLE"
        warn_if_exposed("/metrics", address, port, key=key, off=off)
    return port
