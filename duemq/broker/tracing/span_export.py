"""Export of spans by OpenTelemetry's SDK, in a thread of the SDK.

    event loop --span--> queue of at most `queue_max` --thread--> receiver

A full queue drops spans. Nothing waits for the receiver.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from duemq.broker.tracing.contexts import TraceContext

SCOPE: Final = "duemq"
BATCH_SPANS_MAX: Final = 512
INTERVAL_MS: Final = 1_000
CLOSE_S: Final = 2.0
NS_PER_MS: Final = 1_000_000
SAMPLED: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)

Attributes = Mapping[str, str | int]


class SpanExport:
    """Spans of messages, and their export.

    Args:
        exporter: Sends spans to the receiver.
        resource: Attributes of the broker.
        queue_max: Maximum number of spans in memory.
    """

    def __init__(
        self, exporter: SpanExporter, resource: Mapping[str, str], *, queue_max: int
    ) -> None:
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=Resource.create(resource), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=queue_max,
                schedule_delay_millis=INTERVAL_MS,
                max_export_batch_size=min(BATCH_SPANS_MAX, queue_max),
            )
        )
        self._tracer = self._provider.get_tracer(SCOPE)

    def add(
        self,
        name: str,
        context: TraceContext,
        *,
        start_ms: int,
        end_ms: int,
        kind: trace.SpanKind,
        attributes: Attributes,
    ) -> None:
        """Add a span of a message; times are ms since the epoch."""
        parent = trace.SpanContext(context.trace_id, context.span_id, True, SAMPLED)
        span = self._tracer.start_span(
            name,
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            kind=kind,
            attributes=attributes,
            start_time=start_ms * NS_PER_MS,
        )
        span.end(end_ms * NS_PER_MS)

    def close(self) -> None:
        """Export the remaining spans, and stop; return after `CLOSE_S` at the latest."""
        thread = threading.Thread(target=self._provider.shutdown, name="end of traces", daemon=True)
        thread.start()
        thread.join(CLOSE_S)
