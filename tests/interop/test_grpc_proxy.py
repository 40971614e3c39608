"""gRPC clients at the broker's own port, and through Apache's proxy in cluster mode."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.programs import (
    grpc_go_command,
    grpc_java_command,
    grpc_node_command,
    grpc_python_command,
)
from tests.interop.session import ClientSession, Event
from tests.support.extended import extended
from tests.support.free_ports import LOOPBACK
from tests.support.remoting_requests import call, max_offset
from tests.support.server import Server
from tests.support.wait_until import until

PYTHON, JAVA, GO, NODE = "python", "java", "go", "node"
FRONT = "front"  # the gRPC port of the broker; Java and Go use TLS there, their default
COMPLETE = (
    (PYTHON, FRONT),
    (JAVA, FRONT),
    (PYTHON, "5.3.3"),
    (JAVA, "5.5.0"),
    (NODE, FRONT),
    (NODE, "5.3.3"),
)  # tests of the other two versions pass as well
PAIRS = (*COMPLETE, (GO, FRONT), (GO, "5.3.3"))  # Go 5.1.2 has no recall and no push consumer
SEND_MESSAGE, UPDATE_GROUP = 10, 200
COMPRESS = 1  # MessageSysFlag.COMPRESSED_FLAG; higher bits have the compression type
COMPRESSED: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (0, gzip.compress),
    "lz4": (1 << 8, lambda body: bytes(pyarrow.compress(body, "lz4", asbytes=True))),
    "zstd": (2 << 8, lambda body: bytes(pyarrow.compress(body, "zstd", asbytes=True))),
    "zlib": (3 << 8, zlib.compress),
}
KINDS = {
    PYTHON: ("gzip", "zlib"),
    GO: ("gzip", "zlib"),
    NODE: ("gzip",),
    JAVA: tuple(COMPRESSED),
}
N = 4
WAIT_S = 120
Clients = Callable[[str, str], ClientSession]


@pytest.fixture(scope="module")
def clients(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Return the client of a language for a proxy or the front; the first call starts it."""
    proxies: dict[str, ApacheProxy] = {}
    sessions: dict[tuple[str, str], ClientSession] = {}
    with ExitStack() as stack:

        def address_of(version: str) -> str:
            if version == FRONT:
                return f"{LOOPBACK}:{server.grpc_port}"
            if version not in proxies:
                home = tmp_path_factory.mktemp(f"proxy-{version}")
                proxy = ApacheProxy(version, home, server.namesrv_address)
                proxies[version] = stack.enter_context(proxy)
            return proxies[version].address

        def session(language: str, version: str) -> ClientSession:
            address = address_of(version)
            if (language, version) not in sessions:
                home = tmp_path_factory.mktemp(f"grpc-{language}-{version}")
                command = command_of(language, home, tls=version == FRONT)
                sessions[language, version] = stack.enter_context(
                    ClientSession(f"grpc-{language}", command, namesrv=address, home=home)
                )
            return sessions[language, version]

        yield session


def command_of(language: str, home: Path, *, tls: bool) -> list[str]:
    """Return the command that runs the client of a language."""
    if language == GO:
        return grpc_go_command(home)
    if language == NODE:
        return grpc_node_command()
    return grpc_java_command(home, tls=tls) if language == JAVA else grpc_python_command()


def parameters(pairs: Sequence[tuple[str, str]]) -> list[Any]:
    """Return the parameter sets of tests with a client; `make test` has Python at the front."""
    first, *others = pairs
    return [
        pytest.param(first, id="-".join(first)),
        *(extended(pair, id="-".join(pair)) for pair in others),
    ]


@pytest.fixture(params=parameters(PAIRS))
def client(request: pytest.FixtureRequest, clients: Clients) -> ClientSession:
    """A client of each language at the front, and at a proxy."""
    return clients(*request.param)


@pytest.fixture(params=parameters(COMPLETE))
def complete(request: pytest.FixtureRequest, clients: Clients) -> ClientSession:
    """A client with all operations."""
    return clients(*request.param)


def bodies(events: list[Event]) -> list[str]:
    return sorted(str(event["body"]) for event in events)


def series(count: int) -> list[str]:
    return [f"body-{i}" for i in range(count)]


def receive(client: ClientSession, topic: str, group: str, **options: object) -> list[Event]:
    """Receive and acknowledge messages with a SimpleConsumer; return their events."""
    return client.events("receive", "message", topic=topic, group=group, **options)


@pytest.mark.parametrize(
    "pair",
    [pair if FRONT in pair and GO not in pair else extended(pair) for pair in PAIRS],
    ids="-".join,
)
def test_messages_are_received_once(
    pair: tuple[str, str], clients: Clients, server: Server, name: str
) -> None:
    client = clients(*pair)
    typed_topic(server, name, "NORMAL")
    sent = client.events("produce", "sent", topic=name, n=N, tags="A", keys="k")
    received = receive(client, name, f"g-{name}", until=N, tags="A")
    assert bodies(received) == series(N)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}
    assert {event["tags"] for event in received} == {"A"}
    assert sorted(event["keys"] for event in received) == [f"k-{i}" for i in range(N)]
    assert receive(client, name, f"g-{name}", until=1, wait_ms=1) == []


def test_a_compressed_message_of_a_remoting_client_is_received(
    client: ClientSession, server: Server, name: str
) -> None:
    """Clients receive the body in a compression that they support; v5 clients send gzip."""
    typed_topic(server, name, "NORMAL", queue_count=1)
    kinds = KINDS[client.name.removeprefix("grpc-")]
    sent = {kind: f"{kind} compressed ".encode() * 400 for kind in kinds}
    fields = {"producerGroup": "p", "topic": name, "queueId": "0", "bornTimestamp": "1"}
    fields |= {"defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "flag": "0"}
    for kind, body in sent.items():
        flag, compress = COMPRESSED[kind]
        own = {"sysFlag": str(COMPRESS | flag), "properties": f"UNIQ_KEY\1{kind:0>32}\2"}
        assert call(server.broker_port, SEND_MESSAGE, fields | own, compress(body)).code == 0
    received = receive(client, name, f"g-{name}", until=len(sent))
    assert bodies(received) == sorted(body.decode() for body in sent.values())


def test_delayed_messages_are_not_early(client: ClientSession, server: Server, name: str) -> None:
    typed_topic(server, name, "DELAY")
    begin_ms = time.time_ns() // 1_000_000  # the response to a first send may take a second
    client.run("produce", topic=name, n=2, delay_ms=3_500)
    received = receive(client, name, f"g-{name}", until=2)
    assert bodies(received) == series(2)
    assert min(event["at"] for event in received) >= begin_ms + 3_000


def test_recalled_messages_are_not_delivered(
    complete: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "DELAY")
    recalled = complete.events("produce", "sent", topic=name, delay_ms=6_000, body="recalled")
    found = complete.events("recall", "recalled", topic=name, handle=recalled[0]["recallHandle"])
    assert found[0]["msgId"] == recalled[0]["msgId"]
    complete.run("produce", topic=name, delay_ms=6_500)
    assert bodies(receive(complete, name, f"g-{name}", until=1)) == series(1)


def test_a_message_is_redelivered_after_its_changed_invisible_time(
    client: ClientSession, server: Server, name: str
) -> None:
    """The invisible time of the first two is changed to one second instead of ten."""
    typed_topic(server, name, "NORMAL")
    client.run("produce", topic=name, n=N)
    group = f"g-{name}"
    received = receive(client, name, group, until=N, hold_first=2, change_ms=1_000)
    held = [event for event in received if event["action"] == "held"]
    again = [event for event in received if event["attempt"] == 2]
    assert len(held) == 2
    assert bodies(again) == bodies(held)
    assert bodies([e for e in received if e["action"] == "acknowledged"]) == series(N)
    assert again[0]["at"] >= held[0]["at"] + 900


@pytest.mark.parametrize("pair", [extended((JAVA, FRONT)), extended((JAVA, "5.5.0"))], ids="-".join)
def test_the_highest_priority_is_received_first(
    pair: tuple[str, str], clients: Clients, server: Server, name: str
) -> None:
    client = clients(*pair)
    typed_topic(server, name, "PRIORITY")
    client.run("produce", topic=name, n=N, priorities=True)
    received = receive(client, name, f"g-{name}", until=N, batch=1)
    assert [event["body"] for event in received] == series(N)[::-1]
    assert [event["priority"] for event in received] == list(range(N))[::-1]


def test_a_group_of_messages_stays_in_order(
    client: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "FIFO")
    create_group(server, f"g-{name}", consumeMessageOrderly=True)
    client.run("produce", topic=name, n=N, message_group="m")
    received = receive(client, name, f"g-{name}", until=N, batch=1)
    assert [event["body"] for event in received] == series(N)
    assert {event["messageGroup"] for event in received} == {"m"}


def test_a_transaction_is_received_once_it_is_committed(
    client: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "TRANSACTION")
    client.run("produce", topic=name, end="rollback", body="gone")
    client.run("produce", topic=name, n=2, end="commit")
    assert bodies(receive(client, name, f"g-{name}", until=2)) == series(2)


def test_the_broker_checks_a_transaction_without_an_end(
    client: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "TRANSACTION")
    producing = client.start("produce", topic=name, end="none", linger_ms=WAIT_S * 1_000)
    [sent] = producing.wait_for("sent")
    assert producing.wait_for("checked", seconds=WAIT_S)[0]["msgId"] == sent["msgId"]
    assert bodies(receive(client, name, f"g-{name}", until=1)) == series(1)
    client.start("stop", target=producing.id)


def test_a_push_consumer_retries(complete: ClientSession, server: Server, name: str) -> None:
    typed_topic(server, name, "NORMAL")
    complete.run("produce", topic=name, n=N)
    consuming = complete.start(
        "push-consume", topic=name, group=f"g-{name}", fail_first=1, wait_ms=3 * WAIT_S * 1_000
    )
    received = consuming.wait_for("message", N + 1, seconds=WAIT_S)
    complete.start("stop", target=consuming.id)
    failed = [event for event in received if event["action"] == "later"]
    assert bodies([event for event in received if event["action"] == "consumed"]) == series(N)
    assert bodies([e for e in received if e["attempt"] == 2]) == bodies(failed)


def test_a_message_that_always_fails_is_a_dead_letter(
    clients: Clients, server: Server, name: str
) -> None:
    client, group = clients(*PAIRS[0]), f"g-{name}"
    typed_topic(server, name, "NORMAL")
    create_group(server, group, retryMaxTimes=1)
    client.run("produce", topic=name)
    consuming = client.start(
        "push-consume", topic=name, group=group, fail_first=100, wait_ms=3 * WAIT_S * 1_000
    )
    consuming.wait_for("message", 2, seconds=WAIT_S)
    until(
        lambda: dead_letters(server, group),
        seconds=WAIT_S,
        what="the message is in the dead letter topic",
    )
    client.start("stop", target=consuming.id)
    assert len(consuming.named("message")) == 2


def test_a_message_that_is_never_acknowledged_is_a_dead_letter(
    client: ClientSession, server: Server, name: str
) -> None:
    group = f"g-{name}"
    typed_topic(server, name, "NORMAL")
    create_group(server, group, retryMaxTimes=1)
    client.run("produce", topic=name)
    receiving = client.start(
        "receive",
        topic=name,
        group=group,
        hold_first=100,
        change_ms=1_000,
        wait_ms=3 * WAIT_S * 1_000,
    )
    receiving.wait_for("message", 2, seconds=WAIT_S)
    until(
        lambda: dead_letters(server, group),
        seconds=WAIT_S,
        what="the message is in the dead letter topic",
    )
    client.start("stop", target=receiving.id)
    assert [event["attempt"] for event in receiving.named("message")] == [1, 2]


def dead_letters(server: Server, group: str) -> int:
    """Return the number of dead letters of a group, 0 while their topic does not exist."""
    try:
        return max_offset(server.broker_port, f"%DLQ%{group}", 0)
    except AssertionError:
        return 0


def create_group(server: Server, group: str, **changes: object) -> None:
    """Create a consumer group."""
    config = {"groupName": group, "consumeEnable": True, "brokerId": 0} | changes
    response = call(server.broker_port, UPDATE_GROUP, {}, json.dumps(config).encode())
    assert response.code == 0, response.remark
