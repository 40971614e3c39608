"""Invalid calls of gRPC clients: our port against Apache's proxy 5.3.3 in front of its broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from duemq.v5.protocol import definition as v2
from duemq.v5.protocol import service as api
from tests.interop.apache import Apache
from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.grpc_calls import (
    CALL_S,
    DELAY,
    GROUP,
    GROUPS,
    NORMAL,
    OTHER,
    TOPICS,
    TRANSACTION,
    Case,
    GrpcPeer,
    command,
    consumer,
    of_handles,
    of_malformed,
    of_receives,
    of_sends,
    producer,
    resource,
)
from tests.interop.peers import KEYS
from tests.support.remoting_requests import call
from tests.support.server import Server
from tests.support.v5_client import message, metadata, sending, v5_caller

VERSION: Final = "5.3.3"
pytestmark = pytest.mark.extended  # starts Apache's broker and proxy
UPDATE_GROUP: Final = 200
UNKNOWN: Final = "refusals-unknown"
TRIES, BUSY = 5, "TOO_MANY_REQUESTS"  # for Apache's broker on a busy machine
YEAR_S: Final = 366 * 86_400


async def ack_twice(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"twice")
    handle, name = popped.receipt_handle, popped.message_id
    first = await peer.acknowledged(handle, message_id=name)
    return f"{first}, {await peer.acknowledged(handle, message_id=name)}"


async def ack_of_another_group(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"foreign")
    found = await peer.acknowledged(popped.receipt_handle, group=OTHER)
    await peer.acknowledged(popped.receipt_handle)
    return found


async def ack_of_another_topic(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"elsewhere")
    found = await peer.acknowledged(popped.receipt_handle, topic=DELAY)
    await peer.acknowledged(popped.receipt_handle)
    return found


async def ack_of_a_valid_and_a_forged_handle(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"half")
    expired = f"0 1 60000 0 0 {peer.broker} 0 0 0"
    return await peer.acknowledged(popped.receipt_handle, expired)


async def ack_of_the_same_handle_twice_at_once(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"same")
    return await peer.acknowledged(popped.receipt_handle, popped.receipt_handle)


async def ack_of_nothing(peer: GrpcPeer) -> str:
    return await peer.acknowledged()


async def change_of_another_group(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"foreign change")
    found = await peer.changed(popped.receipt_handle, group=OTHER)
    await peer.acknowledged(popped.receipt_handle)
    return found


def change_to(seconds: int) -> Case:
    async def case(peer: GrpcPeer) -> str:
        popped = await peer.popped(f"change to {seconds}".encode())
        found = await peer.changed(popped.receipt_handle, seconds)
        await peer.acknowledged(popped.receipt_handle)
        return found

    return case


async def change_after_ack(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"acknowledged")
    await peer.acknowledged(popped.receipt_handle)
    return await peer.changed(popped.receipt_handle)


async def forward_after_ack(peer: GrpcPeer) -> str:
    popped = await peer.popped(b"acknowledged, then forwarded")
    await peer.acknowledged(popped.receipt_handle)
    return await peer.forwarded(popped.receipt_handle)


def end(name: str, resolution: Any = v2.COMMIT, topic: str = "refusals-t") -> Case:
    async def case(peer: GrpcPeer) -> str:
        return await peer.code(
            api.EndTransactionRequest(
                topic=resource(topic), message_id="m", transaction_id=name, resolution=resolution
            )
        )

    return case


def ends(*resolutions: Any) -> Case:
    """Return a case that ends a half message several times; the outcome is that of the others."""

    async def case(peer: GrpcPeer) -> str:
        half = message(TRANSACTION, message_type=v2.TRANSACTION)
        [entry] = (await peer.caller.call(sending(half))).entries
        found = [await end(entry.transaction_id, each)(peer) for each in resolutions]
        assert found[0] == "OK"
        return ", ".join(found[1:])

    return case


def subscription_of(kind: Any) -> Case:
    """Return a case that sends settings with a subscription as a client of a type."""
    settings = consumer(GROUP, NORMAL)
    settings.client_type = kind
    return stream(settings)


def recall(handle: str, topic: str = DELAY) -> Case:
    async def case(peer: GrpcPeer) -> str:
        request = api.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
        return await peer.code(request)

    return case


async def recall_in_another_topic(peer: GrpcPeer) -> str:
    made = sending(message(DELAY, deliver_ms=peer.now_ms + 60_000))
    [entry] = (await peer.caller.call(made)).entries
    request = api.RecallMessageRequest(topic=resource(NORMAL), recall_handle=entry.recall_handle)
    return await peer.code(request)


def route(topic: str, *, with_endpoints: bool = True) -> Case:
    async def case(peer: GrpcPeer) -> str:
        request = api.QueryRouteRequest(topic=resource(topic), endpoints=ENDPOINTS)
        if not with_endpoints:
            request.ClearField("endpoints")
        return await peer.code(request)

    return case


def assignment(topic: str, group: str, *, with_endpoints: bool = True) -> Case:
    async def case(peer: GrpcPeer) -> str:
        request = api.QueryAssignmentRequest(
            topic=resource(topic), group=resource(group), endpoints=ENDPOINTS
        )
        if not with_endpoints:
            request.ClearField("endpoints")
        return await peer.code(request)

    return case


ENDPOINTS: Final = v2.Endpoints(scheme=v2.IPv4, addresses=[v2.Address(host="127.0.0.1", port=1)])


def stream(*settings: v2.Settings) -> Case:
    async def case(peer: GrpcPeer) -> str:
        return await peer.stream(*map(command, settings))

    return case


def without_metadata(*names: str) -> Case:
    async def case(peer: GrpcPeer) -> str:
        fields = [pair for pair in peer.caller.fields if pair[0] not in names]
        return await GrpcPeer(
            type(peer.caller)(peer.caller.channel, fields), peer.broker, peer.now_ms
        ).sent(message(NORMAL))

    return case


async def telemetry_without_metadata(peer: GrpcPeer) -> str:
    caller = type(peer.caller)(peer.caller.channel, [])
    return await GrpcPeer(caller, peer.broker, peer.now_ms).stream(command(producer(NORMAL)))


async def malformed_telemetry(peer: GrpcPeer) -> str:
    stream = peer.caller.telemetry()
    try:
        await stream.write(b"\xff\xff\xff")
        await asyncio.wait_for(stream.read(), CALL_S)
    except grpc.aio.AioRpcError as error:
        return f"gRPC {error.code().name}"
    return "no error"


async def heartbeat_without_settings(peer: GrpcPeer) -> str:
    return await peer.code(api.HeartbeatRequest(client_type=v2.PRODUCER))


async def termination_without_settings(peer: GrpcPeer) -> str:
    return await peer.code(api.NotifyClientTerminationRequest())


def unknown_method(name: str) -> Case:
    async def case(peer: GrpcPeer) -> str:
        method = peer.caller.channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{name}")
        return await peer.outcome(method(b"", metadata=peer.caller.fields, timeout=CALL_S))

    return case


async def text_that_is_not_utf8(peer: GrpcPeer) -> str:
    data = b"\x0a\x06\x12\x04\xff\xfe\xff\xfe"  # QueryRoute: topic, name
    return await peer.outcome(peer.caller.raw("QueryRoute", data, timeout_s=CALL_S))


CASES: Final[dict[str, Case]] = {
    **dict(of_malformed()),
    **dict(of_sends()),
    **dict(of_receives()),
    **dict(of_handles()),
    "malformed: Telemetry": malformed_telemetry,
    "malformed: text": text_that_is_not_utf8,
    "method that is not served": unknown_method("PullMessage"),
    "method that does not exist": unknown_method("Nothing"),
    "metadata: no client id": without_metadata("x-mq-client-id"),
    "metadata: no language": without_metadata("x-mq-language"),
    "metadata: no version": without_metadata("x-mq-client-version"),
    "metadata: none for telemetry": telemetry_without_metadata,
    "acknowledged: twice": ack_twice,
    "acknowledged: by another group": ack_of_another_group,
    "acknowledged: in another topic": ack_of_another_topic,
    "acknowledged: one valid, one expired": ack_of_a_valid_and_a_forged_handle,
    "acknowledged: the same handle twice at once": ack_of_the_same_handle_twice_at_once,
    "acknowledged: nothing": ack_of_nothing,
    "changed: by another group": change_of_another_group,
    "changed: to 0 s": change_to(0),
    "changed: to 1 s": change_to(1),
    "changed: to -1 s": change_to(-1),
    "changed: to a year": change_to(YEAR_S),
    "changed: after its acknowledgement": change_after_ack,
    "forwarded: after its acknowledgement": forward_after_ack,
    "end: no transaction id": end(""),
    "end: unknown transaction id": end("0-0"),
    "end: text as transaction id": end("x y"),
    "end: no resolution": end("0-0", v2.TRANSACTION_RESOLUTION_UNSPECIFIED),
    "end: twice": ends(v2.ROLLBACK, v2.ROLLBACK),
    "end: a commit after a rollback": ends(v2.ROLLBACK, v2.COMMIT),
    "end: empty topic": end("0-0", topic=""),
    "recall: empty handle": recall(""),
    "recall: text": recall("x"),
    "recall: unknown topic": recall("x", UNKNOWN),
    "recall: empty topic": recall("x", ""),
    "recall: topic of another type": recall_in_another_topic,
    "route: empty topic": route(""),
    "route: unknown topic": route(UNKNOWN),
    "route: system topic": route("rmq_sys_wheel_timer"),
    "route: no endpoints": route(NORMAL, with_endpoints=False),
    "assignment: unknown topic": assignment(UNKNOWN, GROUP),
    "assignment: empty group": assignment(NORMAL, ""),
    "assignment: unknown group": assignment(NORMAL, UNKNOWN),
    "assignment: no endpoints": assignment(NORMAL, GROUP, with_endpoints=False),
    "telemetry: empty settings": stream(v2.Settings()),
    "telemetry: producer without topics": stream(producer()),
    "telemetry: producer of an empty topic": stream(producer("")),
    "telemetry: producer of an unknown topic": stream(producer(UNKNOWN)),
    "telemetry: consumer without a group": stream(consumer("", NORMAL)),
    "telemetry: consumer of a system group": stream(consumer("CID_RMQ_SYS_x", NORMAL)),
    "telemetry: consumer of an unknown group": stream(consumer(UNKNOWN, NORMAL)),
    "telemetry: consumer of an unknown topic": stream(consumer(GROUP, UNKNOWN)),
    "telemetry: consumer of an empty topic": stream(consumer(GROUP, "")),
    "telemetry: subscription of a producer": subscription_of(v2.PRODUCER),
    "telemetry: subscription of a pull consumer": subscription_of(v2.PULL_CONSUMER),
    "telemetry: subscription of an unspecified client": subscription_of(v2.CLIENT_TYPE_UNSPECIFIED),
    "heartbeat: no settings": heartbeat_without_settings,
    "termination: no settings": termination_without_settings,
}
BAD_FILTER, NO_MESSAGE = "ILLEGAL_FILTER_EXPRESSION", "MESSAGE_NOT_FOUND"
INTERNAL, OTHER_TYPE = "INTERNAL_SERVER_ERROR", "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
DIFFERENT: Final[dict[str, tuple[str, str]]] = {
    "send: unknown topic": ("TOPIC_NOT_FOUND", OTHER_TYPE),
    "recall: unknown topic": ("TOPIC_NOT_FOUND", OTHER_TYPE),
    "send: two messages": ("OK: OK OK", "OK"),
    "send: delay of 2 days": ("OK", "ILLEGAL_DELIVERY_TIME"),
    "send: malformed delay": ("ILLEGAL_DELIVERY_TIME", INTERNAL),
    "send: key of the protocol in a trace context": ("ILLEGAL_MESSAGE_PROPERTY_KEY", "OK"),
    "receive: without settings": (NO_MESSAGE, INTERNAL),
    "receive: no messages": (INTERNAL, NO_MESSAGE),
    "receive: SQL that does not parse": (BAD_FILTER, INTERNAL),
    "receive: SQL of types that do not match": (BAD_FILTER, INTERNAL),
    "receive: SQL of 10,000 terms": (BAD_FILTER, NO_MESSAGE),
    "receive: SQL of 10,000 brackets": (BAD_FILTER, INTERNAL),
    "receive: 10,000 tags": (BAD_FILTER, NO_MESSAGE),
    "end: text as transaction id": ("INVALID_TRANSACTION_ID", INTERNAL),
    "end: twice": ("OK", INTERNAL),
    "end: a commit after a rollback": ("OK", INTERNAL),
    "end: no resolution": ("OK", INTERNAL),
    "telemetry: consumer of an empty topic": ("gRPC INVALID_ARGUMENT", "OK"),
}
"""Cases whose outcomes differ: ours, Apache's. docs/compat.md has the reasons."""


def prepare(server: Server) -> None:
    """Create topics and groups."""
    for topic, kind in TOPICS.items():
        typed_topic(server, topic, kind, queue_count=1)
    for group in GROUPS:
        config = {"groupName": group, "consumeEnable": True, "brokerId": 0}
        assert call(server.broker_port, UPDATE_GROUP, {}, json.dumps(config).encode()).code == 0


Ports = dict[str, int]


@pytest.fixture(scope="module")
def ports(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """Ports of ours and of Apache's proxy in front of Apache's broker."""
    prepare(server)
    home = tmp_path_factory.mktemp("apache")
    with Apache(VERSION, home / "broker", keys=KEYS) as apache:
        prepare(apache)
        with ApacheProxy(VERSION, home / "proxy", apache.namesrv_address) as proxy:
            yield {"ours": server.grpc_port, "apache": proxy.port}


async def outcomes(ports: Ports, name: str) -> tuple[str, str]:
    """Return our outcome of a case, and Apache's."""

    async def of(port: int) -> str:
        async with v5_caller(port, metadata(f"{name}@1".replace(" ", "-"))) as caller:
            request = api.QueryRouteRequest(topic=resource(NORMAL), endpoints=ENDPOINTS)
            broker = (await caller.call(request)).message_queues[0].broker.name
            return await CASES[name](GrpcPeer(caller, broker, int(time.time() * 1_000)))

    ours, apaches = await asyncio.gather(of(ports["ours"]), of(ports["apache"]))
    for _ in range(TRIES):
        if apaches != BUSY:
            break
        apaches = await of(ports["apache"])
    return ours, apaches


@pytest.mark.parametrize("name", CASES)
def test_the_outcome_equals_apaches(ports: Ports, name: str) -> None:
    ours, apaches = asyncio.run(outcomes(ports, name))
    assert (ours, apaches) == DIFFERENT.get(name, (apaches, apaches))
