"""Lite topics of RocketMQ 5.5, which DueMQ does not have: every use gets an error with the reason.

The requests arrive at our gRPC port, and through Apache's proxy 5.5.0 in front of our broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from duemq.registry.topic_config import NO_LITE_TOPICS
from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.grpc_calls import command, consumer, resource
from tests.support.extended import extended
from tests.support.free_ports import LOOPBACK
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.v5_client import CALL_S, V5Caller, message, metadata, sending, v5_caller

TOPIC, GROUP, PROXY = "lite-parent", "lite-group", "5.5.0"
UPDATE_GROUP: Final = 200
Answer = tuple[str, str]  # code or gRPC status, text


@pytest.fixture(scope="module", params=["front", extended(PROXY)])
def port(
    request: pytest.FixtureRequest, server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    typed_topic(server, TOPIC, "NORMAL", queue_count=1)
    config = {"groupName": GROUP, "consumeEnable": True, "brokerId": 0}
    assert call(server.broker_port, UPDATE_GROUP, {}, json.dumps(config).encode()).code == 0
    if request.param == "front":
        yield server.grpc_port
        return
    home = tmp_path_factory.mktemp("proxy")
    with ApacheProxy(PROXY, home, server.namesrv_address) as proxy:
        yield int(proxy.address.removeprefix(f"{LOOPBACK}:"))


def outcome(port: int, use: Any) -> Answer:
    async def work() -> Answer:
        async with v5_caller(port, metadata("lite@1")) as caller:
            try:
                status = await use(caller)
            except grpc.aio.AioRpcError as error:
                return error.code().name, error.details() or ""
            return v2.Code.Name(status.code), status.message

    return asyncio.run(work())


async def send(caller: V5Caller) -> v2.Status:
    made = message(TOPIC, lite_topic="session-1", message_type=v2.LITE)
    return (await caller.call(sending(made))).status


async def subscribe(caller: V5Caller) -> v2.Status:
    request = api.SyncLiteSubscriptionRequest(
        action=v2.PARTIAL_ADD,
        topic=resource(TOPIC),
        group=resource(GROUP),
        lite_topic_set=["session-1"],
    )
    return (await caller.call(request)).status


async def register(caller: V5Caller) -> v2.Status:
    settings = consumer(GROUP, TOPIC)
    settings.client_type = v2.LITE_PUSH_CONSUMER
    stream = caller.telemetry()
    await stream.write(command(settings).SerializeToString())
    return (await asyncio.wait_for(stream.read(), CALL_S)).status


OURS: Final = {
    send: ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", NO_LITE_TOPICS),
    subscribe: ("UNIMPLEMENTED", "there is no method"),  # the settings are refused before
    register: ("INTERNAL", NO_LITE_TOPICS),
}
THROUGH_PROXY: Final = {
    send: ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "the expected type is NORMAL"),
    subscribe: ("ILLEGAL_TOPIC", "expected to bind topic null"),
    register: ("INVALID_ARGUMENT", "regular group cannot use LITE mode"),
}
"""Code and a part of the text. The proxy knows that no topic and no group is a lite one."""


@pytest.mark.parametrize("use", OURS)
def test_each_use_is_refused_with_the_reason(port: int, server: Server, use: Any) -> None:
    code, text = (OURS if port == server.grpc_port else THROUGH_PROXY)[use]
    found = outcome(port, use)
    assert (found[0], text in found[1]) == (code, True), found


@pytest.mark.parametrize("code", range(200_070, 200_080))
def test_each_request_of_the_proxy_is_refused_with_the_reason(server: Server, code: int) -> None:
    answer = call(server.broker_port, code, {"topic": TOPIC, "group": GROUP})
    assert answer.code == 3
    assert NO_LITE_TOPICS in answer.remark
