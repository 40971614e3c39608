"""Apache's gRPC client for Rust at the broker's own port; only with `--rust-client`.

Its crates take three minutes to compile, and need a newer compiler than Debian 12 has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.interop.apache_proxy import typed_topic
from tests.interop.checks import bodies, series
from tests.interop.programs import grpc_rust_command
from tests.interop.session import ClientFailed, ClientSession, Event
from tests.interop.test_grpc_proxy import create_group
from tests.support.free_ports import LOOPBACK
from tests.support.server import Server

N = 4
INVISIBLE_MS = 10_000  # minimum of a simple consumer
WAIT_S = 60


@pytest.fixture(scope="module")
def rust(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientSession]:
    """The client, without TLS: it cannot be configured to trust a certificate."""
    command, home = grpc_rust_command(), tmp_path_factory.mktemp("rust")
    address = f"{LOOPBACK}:{server.grpc_port}"
    with ClientSession("grpc-rust", command, namesrv=address, home=home) as session:
        yield session


def receive(client: ClientSession, topic: str, **options: object) -> list[Event]:
    """Receive and acknowledge messages with a SimpleConsumer; return their events."""
    return client.events("receive", "message", topic=topic, group=f"g-{topic}", **options)


def test_messages_are_received_once(rust: ClientSession, server: Server, name: str) -> None:
    typed_topic(server, name, "NORMAL")
    sent = rust.events("produce", "sent", topic=name, n=N, tags="A", keys="k")
    received = receive(rust, name, until=N, tags="A")
    assert sorted(bodies(received)) == series(N)
    assert {event["msgId"] for event in received} == {event["msgId"] for event in sent}
    assert {event["tags"] for event in received} == {"A"}
    assert sorted(event["keys"] for event in received) == [f"k-{i}" for i in range(N)]


def test_a_message_without_a_topic_is_refused(rust: ClientSession, name: str) -> None:
    with pytest.raises(ClientFailed, match="TOPIC_NOT_FOUND"):
        rust.run("produce", topic=name)


def test_delayed_messages_are_not_early(rust: ClientSession, server: Server, name: str) -> None:
    typed_topic(server, name, "DELAY")
    begin_ms = time.time_ns() // 1_000_000
    rust.run("produce", topic=name, n=2, delay_ms=3_500)
    received = receive(rust, name, until=2)
    assert sorted(bodies(received)) == series(2)
    assert min(event["at"] for event in received) >= begin_ms + 3_000


def test_only_unacknowledged_messages_are_redelivered(
    rust: ClientSession, server: Server, name: str
) -> None:
    """Acknowledged messages of the same receive would be visible again at the same time."""
    typed_topic(server, name, "NORMAL", queue_count=1)
    rust.run("produce", topic=name, n=N)
    received = receive(rust, name, until=N, hold_first=2, invisible_ms=INVISIBLE_MS)
    held = [event for event in received if event["action"] == "held"]
    again = [event for event in received if event["attempt"] == 2]
    assert len(held) == 2
    assert sorted(bodies(again)) == sorted(bodies(held))
    assert sorted(bodies([e for e in received if e["action"] == "acknowledged"])) == series(N)
    assert again[0]["at"] >= held[0]["at"] + INVISIBLE_MS - 100


def test_a_group_of_messages_stays_in_order(rust: ClientSession, server: Server, name: str) -> None:
    typed_topic(server, name, "FIFO", queue_count=1)
    create_group(server, f"g-{name}", consumeMessageOrderly=True)
    rust.run("produce", topic=name, n=N, message_group="m")
    received = receive(rust, name, until=N, batch=1)
    assert bodies(received) == series(N)
    assert {event["messageGroup"] for event in received} == {"m"}


def test_a_transaction_is_received_once_it_is_committed(
    rust: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "TRANSACTION")
    rust.run("produce", topic=name, end="rollback", body="gone")
    rust.run("produce", topic=name, n=2, end="commit")
    assert sorted(bodies(receive(rust, name, until=2))) == series(2)


def test_the_broker_checks_a_transaction_without_an_end(
    rust: ClientSession, server: Server, name: str
) -> None:
    typed_topic(server, name, "TRANSACTION")
    producing = rust.start("produce", topic=name, end="none", linger_ms=WAIT_S * 1_000)
    [sent] = producing.wait_for("sent")
    assert producing.wait_for("checked", seconds=WAIT_S)[0]["msgId"] == sent["msgId"]
    assert bodies(receive(rust, name, until=1)) == series(1)
    rust.start("stop", target=producing.id)
