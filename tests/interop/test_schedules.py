"""Schedules that clients create by messages, and their occurrences at clients."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.checks import assert_accepted
from tests.interop.peers import peer_name
from tests.interop.programs import grpc_java_command, grpc_node_command, grpc_python_command
from tests.interop.session import ClientFailed, ClientSession, Event
from tests.support.extended import extended
from tests.support.free_ports import LOOPBACK
from tests.support.server import Server

pytestmark = pytest.mark.skipif(
    peer_name() != "duemq", reason="Apache's brokers have no recurring schedules"
)
EVERY_MS = 1_000


def properties(**values: str) -> str:
    """Return the option of properties whose names begin with DUEMQ_SCHEDULE_."""
    return "|".join(f"DUEMQ_SCHEDULE_{name}={text}" for name, text in values.items())


def name_of(topic: str) -> str:
    """Return the name of a schedule of the topic of a test."""
    return f"s{zlib.crc32(topic.encode())}"


def check_occurrences(received: list[Event], name: str) -> None:
    """Check that messages are consecutive occurrences of a schedule, each once."""
    times = sorted(int(each["properties"]["DUEMQ_SCHEDULE_TIME"]) for each in received)
    assert times == list(range(times[0], times[0] + len(times) * EVERY_MS, EVERY_MS))
    for each in received:
        assert each["body"] == "body-0"
        assert each["properties"]["DUEMQ_SCHEDULE"] == name
        assert each["msgId"] == f"{name}@{each['properties']['DUEMQ_SCHEDULE_TIME']}"


def test_a_java_client_creates_a_schedule(
    server: Server, java: ClientSession, topic: str, group: str
) -> None:
    server.create_topic(topic, queue_count=1)  # occurrences of several queues arrive in any order
    name = name_of(topic)
    request = properties(NAME=name, CRON="* * * * * *", ZONE="Europe/Berlin")
    for _ in range(2):  # the second one changes nothing
        sent = java.events("produce", "sent", topic=topic, n=1, property=request)
        assert_accepted(sent, 1)
    received = java.events("push-consume", "message", topic=topic, group=group, until=3, threads=1)
    check_occurrences(received, name)
    with pytest.raises(ClientFailed, match="exists with another definition"):
        java.run("produce", topic=topic, n=1, body="other", property=request)


def test_a_compressed_body_is_delivered_by_each_occurrence(
    java_with_timers: ClientSession, topic: str, group: str
) -> None:
    request = properties(NAME=name_of(topic), EVERY_MS=str(EVERY_MS))
    java_with_timers.run("produce", topic=topic, n=1, property=request, body_size=20_000)
    received = java_with_timers.events("push-consume", "message", topic=topic, group=group, until=2)
    assert {len(each["body"]) for each in received} == {20_000}


@pytest.mark.parametrize(
    ("request_text", "remark"),
    [
        (properties(NAME="a", CRON="0 9 * *"), "the cron expression '0 9 \\* \\*' is invalid"),
        (properties(NAME="a", CRON="0 9 * * *", ZONE="X/Y"), "there is no time zone 'X/Y'"),
        (properties(TIME="1"), "the property DUEMQ_SCHEDULE_TIME is set by the broker"),
    ],
    ids=["expression", "zone", "forged"],
)
def test_a_java_client_gets_the_reason_of_a_refusal(
    java_with_timers: ClientSession, topic: str, request_text: str, remark: str
) -> None:
    with pytest.raises(ClientFailed, match=remark):
        java_with_timers.run("produce", topic=topic, n=1, property=request_text)


V5_COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "python": lambda _: grpc_python_command(),
    "java": lambda home: grpc_java_command(home, tls=True),
    "node": lambda _: grpc_node_command(),
}


@pytest.mark.parametrize("language", ["python", extended("java"), extended("node")])
def test_a_v5_client_creates_a_schedule(
    language: str, server: Server, topic: str, tmp_path: Path
) -> None:
    command = V5_COMMANDS[language](tmp_path)
    check_v5_client(language, command, f"{LOOPBACK}:{server.grpc_port}", server, topic, tmp_path)


@pytest.mark.extended  # starts Apache's proxy
def test_a_v5_client_creates_a_schedule_through_apaches_proxy(
    server: Server, topic: str, tmp_path: Path
) -> None:
    with ApacheProxy("5.3.3", tmp_path / "proxy", server.namesrv_address) as proxy:
        check_v5_client("python", grpc_python_command(), proxy.address, server, topic, tmp_path)


def check_v5_client(
    language: str, command: list[str], address: str, server: Server, topic: str, home: Path
) -> None:
    """Create a schedule twice, receive its occurrences, and get the reason of a refusal."""
    typed_topic(server, topic, "NORMAL", queue_count=1)
    request = properties(NAME=name_of(topic), CRON="* * * * * *", ZONE="Europe/Berlin")
    with ClientSession(f"grpc-{language}", command, namesrv=address, home=home) as client:
        for _ in range(2):  # the second one changes nothing
            client.run("produce", topic=topic, n=1, property=request)
        received = client.events("receive", "message", topic=topic, group=f"g-{topic}", until=3)
        check_occurrences(received, name_of(topic))
        with pytest.raises(ClientFailed, match="exists with another definition"):
            client.run("produce", topic=topic, n=1, body="other", property=request)
