"""Traces of a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from delayed_delivery.pending import PendingMessages
from duemq.broker.components import BrokerComponents
from duemq.configuration.tracing_config import TracingConfig
from duemq_common.clock import Clock
from duemq_common.errors import UsageError

MISSING: Final = (
    "otelTracesEndpoint needs OpenTelemetry: install the extra `otel` of duemq ({name} is missing)"
)


@asynccontextmanager
async def tracing(
    config: TracingConfig,
    parts: BrokerComponents,
    ports: Callable[[], Sequence[PendingMessages]],
    clock: Clock,
) -> AsyncIterator[None]:
    """Export spans of messages while the block is active.

    Args:
        ports: Returns the components that own pending messages.
    Raises:
        UsageError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        from duemq.broker.tracing.message_traces import MessageTraces, TraceLimits
        from duemq.broker.tracing.span_export import SpanExport
    except ImportError as error:
        raise UsageError(MISSING.format(name=error.name)) from error
    identity = parts.identity
    resource = {
        "service.name": "duemq",
        "service.namespace": identity.cluster_name,
        "service.instance.id": identity.broker_name,
    }
    export = SpanExport(
        OTLPSpanExporter(endpoint=config.endpoint), resource, queue_max=config.queue_max
    )
    limits = TraceLimits(ratio=config.sample_ratio, messages_max=config.messages_max)
    traces = MessageTraces(parts.store, ports, clock, export, limits)
    parts.store.add_dispatcher(traces.on_append)
    parts.stats.on_pulled = traces.on_pulled
    try:
        yield
    finally:
        parts.stats.on_pulled = None
        parts.store.remove_dispatcher(traces.on_append)
        await asyncio.to_thread(export.close)
