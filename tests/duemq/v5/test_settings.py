"""Settings of v5 clients: what the broker keeps of them."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from duemq.net.http2.grpc_call import GrpcCall
from duemq.v5.broker_requests import BrokerRequests
from duemq.v5.client_calls import ClientCalls, heartbeat_of
from duemq.v5.clients import V5Clients
from duemq.v5.config import V5Config
from duemq.v5.context import context_of
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from duemq.v5.settings import kept_settings
from duemq_common.clock import FakeClock
from duemq_common.request import Response

LONG = "x" * 100_000
UNKNOWN_FIELD = b"\xfa\x7f\x80\x10" + b"y" * 2_048  # number 2,047, 2,048 bytes


def producer() -> v2.Settings:
    settings = v2.Settings(client_type=v2.PRODUCER)
    for name in ("T", "U"):
        settings.publishing.topics.add(name=name, resource_namespace=LONG)
    return settings


def consumer() -> v2.Settings:
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.CopyFrom(v2.Resource(name="G", resource_namespace=LONG))
    for name, kind, expression in (("T", v2.TAG, "a || b"), ("U", v2.SQL, "a > 1")):
        settings.subscription.subscriptions.add(
            topic=v2.Resource(name=name, resource_namespace=LONG),
            expression=v2.FilterExpression(type=kind, expression=expression),
        )
    return settings


class OneCommand:
    """Telemetry stream of a client that sends one command."""

    address, deadline_s, unsent = ("10.0.0.7", 1), None, b""

    def __init__(self, settings: v2.Settings) -> None:
        self.commands = [api.TelemetryCommand(settings=settings).SerializeToString(), None]
        self.sent: list[bytes] = []

    def text(self, name: bytes) -> str:
        return "c" if name == b"x-mq-client-id" else ""

    async def receive(self) -> bytes | None:
        return self.commands.pop(0)

    def send(self, message: bytes) -> None:
        self.sent.append(message)


class NoBroker:
    """Broker that accepts every request."""

    access = None

    async def call_or_raise(self, *request: object) -> Response:
        return Response()


@pytest.mark.parametrize("settings", [producer(), consumer()], ids=["producer", "consumer"])
def test_a_client_keeps_no_long_texts_of_its_settings(settings: v2.Settings) -> None:
    settings.user_agent.platform = LONG
    clients = V5Clients(FakeClock(), lambda context, peer: None, lambda client, request: None)
    broker, call = cast(BrokerRequests, NoBroker()), cast(GrpcCall, OneCommand(settings))
    config = V5Config(host="h", port=1, body_bytes_max=9, type_check=True, permission=6)
    calls = ClientCalls(broker, clients, lambda name: None, lambda: config)
    asyncio.run(calls.telemetry(call))
    kept = clients.for_call(context_of(call)).settings
    assert kept is not None
    assert kept.ByteSize() < 100


@pytest.mark.parametrize("settings", [producer(), consumer()], ids=["producer", "consumer"])
def test_only_what_later_calls_need_is_kept(settings: v2.Settings) -> None:
    settings.user_agent.platform = LONG
    settings.access_point.addresses.add(host=LONG)
    settings.request_timeout.FromMilliseconds(2_500)
    settings.MergeFromString(UNKNOWN_FIELD)
    kept = kept_settings(settings)
    assert kept.ByteSize() < 100
    assert heartbeat_of("c", kept) == heartbeat_of("c", settings)
    assert kept.request_timeout.ToMilliseconds() == 2_500
