"""Export of traces to a receiver of OTLP/HTTP, which may be away, and a broker without traces."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from duemq.client import Message, Producer
from duemq.configuration.tracing_config import TracingConfig
from duemq_common.errors import ConfigError
from tests.support.free_ports import free_ports
from tests.support.running_broker import TIMEOUT_S, running, small

CONTEXT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
RECEIVED_S = 30.0
EXPORTING = ("end of traces", "OtelBatch")  # names of threads


class Receiver(ThreadingHTTPServer):
    """Receiver of traces.

    Attributes:
        bodies: Bodies of the requests.
        arrived: Set when a request has arrived.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.arrived = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver = self.server
        assert isinstance(receiver, Receiver)
        assert self.headers["Content-Type"] == "application/x-protobuf"
        receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        receiver.arrived.set()

    def log_message(self, *words: object) -> None:
        """Write no lines."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


async def sent(root: Path, port: int, count: int) -> None:
    """Send traced messages to a broker that exports to a port."""
    endpoint = f"http://127.0.0.1:{port}/v1/traces"
    async with (
        running(small(root, otelTracesEndpoint=endpoint)) as (broker, _),
        Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer,  # sends once
    ):
        for _ in range(count):
            await producer.send(Message("T", b"b", properties=CONTEXT))


def test_a_receiver_gets_the_spans(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    with receiving() as receiver:
        asyncio.run(sent(tmp_path, receiver.server_port, 2))
        assert receiver.arrived.wait(RECEIVED_S)
    names, resources = [], []
    for body in receiver.bodies:
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = {one.key: one.value.string_value for one in each.resource.attributes}
            resources.append(attributes["service.instance.id"])
            names += [span.name for scope in each.scope_spans for span in scope.spans]
    assert sorted(names) == ["accept", "accept", "stored", "stored"]
    assert set(resources) == {"test"}


def test_a_receiver_that_is_away_delays_neither_sends_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    monkeypatch.setattr("duemq.broker.tracing.span_export.CLOSE_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")  # it repeats the request once
    [port] = free_ports(1)
    asyncio.run(sent(tmp_path, port, 1_000))
    for thread in threading.enumerate():
        if thread.name.startswith(EXPORTING):  # it would draw random numbers in other tests
            thread.join(RECEIVED_S)


def test_without_an_endpoint_nothing_is_imported_and_nothing_is_called(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _):
            assert broker.parts.stats.on_pulled is None

    asyncio.run(main())
    code = "import duemq.broker.broker, sys; print([n for n in sys.modules if 'opentel' in n])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    assert output.stdout == "[]\n"


def test_an_endpoint_is_a_url() -> None:
    with pytest.raises(ConfigError, match="http://"):
        TracingConfig(endpoint="127.0.0.1:4318")
