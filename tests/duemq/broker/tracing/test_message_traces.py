"""Spans of messages: accept, due, stored and pulled, as children of the producer's span."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duemq.broker.broker import Broker
from duemq.client import Message, PendingDecisions, Producer, PullConsumer
from tests.support.running_broker import TIMEOUT_S, running, small

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duemq.broker.tracing.message_traces import MessageTraces, TraceLimits
from duemq.broker.tracing.span_export import SpanExport

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
HOUR = timedelta(hours=1)


class Traced:
    """Broker with traces in memory."""

    def __init__(self, broker: Broker, *, ratio: float = 1.0, messages_max: int = 1_000) -> None:
        self.broker, self.exporter = broker, InMemorySpanExporter()
        self._export = SpanExport(self.exporter, {"service.name": "test"}, queue_max=512)
        limits = TraceLimits(ratio=ratio, messages_max=messages_max)
        ports = broker.plugins.pending_messages
        traces = MessageTraces(broker.store, ports, broker.clock, self._export, limits)
        broker.store.add_dispatcher(traces.on_append)
        broker.parts.stats.on_pulled = traces.on_pulled

    def spans(self) -> list[ReadableSpan]:
        """End the export and return the spans."""
        self._export.close()
        return list(self.exporter.get_finished_spans())

    async def send(self, **message: Any) -> str:
        async with Producer(broker=self.broker.address, timeout_s=TIMEOUT_S) as producer:
            return (await producer.send(Message("T", b"traceparent\x01body", **message))).message_id

    async def fire(self, message_id: str) -> None:
        async with PendingDecisions(broker=self.broker.address, timeout_s=TIMEOUT_S) as decisions:
            results = await decisions.fire(ids=[message_id], topic="T")
            assert [result.verdict for result in results] == ["done"]

    async def pull(self, count: int) -> None:
        """Pull until so many messages have arrived."""
        async with PullConsumer(
            group="G", broker=self.broker.address, timeout_s=TIMEOUT_S
        ) as consumer:
            [queue] = await consumer.queues("T")
            offset = 0
            async with asyncio.timeout(TIMEOUT_S):
                while offset < count:
                    offset = (await consumer.pull(queue, offset)).next_offset


@asynccontextmanager
async def traced(root: Path, **limits: Any) -> AsyncIterator[Traced]:
    async with running(small(root)) as (broker, _):
        yield Traced(broker, **limits)


def named(spans: list[ReadableSpan]) -> list[str]:
    return [span.name for span in spans]


def test_a_timer_has_all_spans(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path) as broker:
            message_id = await broker.send(
                delay=timedelta(milliseconds=20), properties=CONTEXT, keys=["k"], tag="t"
            )
            await broker.pull(1)
            spans = broker.spans()
            assert named(spans) == ["accept", "due", "stored", "pulled"]
            accept, due, stored, pulled = spans
            for span in spans:
                assert f"{span.context.trace_id:032x}" == TRACE
                assert f"{span.parent.span_id:016x}" == SPAN
                assert span.attributes["messaging.message.id"] == message_id
                assert span.attributes["messaging.destination.name"] == "T"
                assert span.attributes["messaging.rocketmq.message.keys"] == "k"
            due_ms = due.attributes["messaging.rocketmq.message.delivery_timestamp"]
            assert due.start_time == due_ms * 1_000_000
            assert accept.start_time + 20_000_000 <= due.start_time <= due.end_time
            assert due.end_time == stored.start_time <= stored.end_time
            assert pulled.attributes["messaging.consumer.group.name"] == "G"

    asyncio.run(main())


@pytest.mark.parametrize(
    "delay", [{"level": 18}, {"delay": HOUR}, {}], ids=["level", "timer", "now"]
)
def test_spans_of_each_kind_of_message(tmp_path: Path, delay: dict[str, Any]) -> None:
    async def main() -> None:
        async with traced(tmp_path) as broker:
            message_id = await broker.send(properties=CONTEXT, **delay)
            if delay:
                await broker.fire(message_id)
            await broker.pull(1)
            fired = ["due"] if delay else []
            assert named(broker.spans()) == ["accept", *fired, "stored", "pulled"]

    asyncio.run(main())


def test_other_messages_have_no_spans(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path) as broker:
            await broker.send()
            await broker.send(properties={"traceparent": CONTEXT["traceparent"][:-1] + "0"})
            await broker.send(properties={"other": CONTEXT["traceparent"]})
            await broker.pull(3)
            assert broker.spans() == []

    asyncio.run(main())


def test_events_of_a_second_are_limited(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path, messages_max=3) as broker:
            second = broker.broker.clock.now_ms() // 1_000
            for _ in range(10):
                await broker.send(properties=CONTEXT)
            seconds = broker.broker.clock.now_ms() // 1_000 - second + 1
            assert 0 < len(broker.spans()) <= 2 * 3 * seconds

    asyncio.run(main())


def test_a_ratio_of_zero_traces_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with traced(tmp_path, ratio=0.0) as broker:
            await broker.send(properties=CONTEXT)
            assert broker.spans() == []

    asyncio.run(main())
