"""Apache's v5 clients in a cluster of three brokers, and compared with a broker of Apache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.apache import Apache
from tests.interop.apache_proxy import ApacheProxy, typed_topic
from tests.interop.peers import KEYS
from tests.interop.programs import grpc_java_command, grpc_python_command
from tests.interop.session import ClientSession, Event
from tests.interop.test_grpc_proxy import bodies, create_group, receive, series
from tests.support.child_process import Child
from tests.support.duemq_server import DueMQ
from tests.support.extended import extended
from tests.support.free_ports import LOOPBACK
from tests.support.remoting_requests import max_offset
from tests.support.server import Server

pytestmark = pytest.mark.finding("3C6")
NAMES = ("broker-a", "broker-b", "broker-c")
QUEUES, N, WAIT_S, WAIT_MS = 2, 12, 120, 180_000


class Joined(DueMQ):
    """DueMQ broker that registers with the name server of another one."""

    def __init__(self, home: Path, name: str, first: Server | None) -> None:
        super().__init__(home, keys=KEYS | {"brokerName": name})
        self.keys["grpcServerPort"] = str(self.grpc_port)
        if first is not None:
            self.namesrv_port = first.namesrv_port
            self.keys["embeddedNamesrvEnable"] = "false"

    @property
    def grpc_address(self) -> str:
        """`host:port` for v5 clients."""
        return f"{LOOPBACK}:{self.grpc_port}"


class ApacheJoined(Apache):
    """Apache's broker that registers with the name server of another one."""

    def __init__(self, version: str, home: Path, first: Server) -> None:
        super().__init__(version, home, keys=KEYS | {"brokerName": "apache"})
        self.namesrv_port = first.namesrv_port

    def start_namesrv(self) -> None:
        """Do nothing: another server has it."""

    def start_broker(self) -> Child:
        self.keys["namesrvAddr"] = self.namesrv_address
        return super().start_broker()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Joined]]:
    """Three brokers, started; the first one has the name server."""
    with ExitStack() as stack:
        found: list[Joined] = []
        for name in NAMES:
            made = Joined(tmp_path_factory.mktemp(name), name, found[0] if found else None)
            found.append(stack.enter_context(made))
        yield found


@pytest.fixture(scope="module", params=["python", extended("java")])
def client(
    request: pytest.FixtureRequest,
    brokers: list[Joined],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ClientSession]:
    """A client; commands name their endpoint, the default is the first broker."""
    home = tmp_path_factory.mktemp(str(request.param))
    command = (
        grpc_java_command(home, tls=True) if request.param == "java" else grpc_python_command()
    )
    with ClientSession(
        f"grpc-{request.param}", command, namesrv=brokers[0].grpc_address, home=home
    ) as session:
        yield session


def stored(brokers: list[Joined], topic: str) -> list[int]:
    """Return the number of messages of a topic on each broker."""
    return [
        sum(max_offset(each.broker_port, topic, queue) for queue in range(QUEUES))
        for each in brokers
    ]


def produce(client: ClientSession, broker: Joined, topic: str, **more: object) -> list[Event]:
    """Send messages through the port of a broker."""
    return client.events("produce", "sent", topic=topic, namesrv=broker.grpc_address, **more)


@pytest.mark.extended
def test_messages_of_all_brokers_are_received_through_every_port(
    client: ClientSession, brokers: list[Joined], name: str
) -> None:
    for broker in brokers:
        typed_topic(broker, name, "NORMAL", queue_count=QUEUES)
    for number, broker in enumerate(brokers):
        produce(client, broker, name, n=N, body=f"via-{number}")
    assert sum(stored(brokers, name)) == len(brokers) * N
    assert all(stored(brokers, name))
    for broker in brokers:
        group = f"g-{broker.keys['brokerName']}-{name}"
        received = receive(
            client,
            name,
            group,
            until=len(brokers) * N,
            namesrv=broker.grpc_address,
            wait_ms=WAIT_MS,
        )
        assert bodies(received) == sorted(f"via-{n}-{i}" for n in range(3) for i in range(N))


@pytest.mark.extended
def test_a_push_consumer_gets_the_messages_of_all_brokers(
    client: ClientSession, brokers: list[Joined], name: str
) -> None:
    for broker in brokers:
        typed_topic(broker, name, "NORMAL", queue_count=QUEUES)
    consuming = client.start(
        "push-consume", topic=name, group=f"g-{name}", namesrv=brokers[1].grpc_address
    )
    produce(client, brokers[2], name, n=N)
    consuming.wait_for("message", N, seconds=WAIT_S)
    client.start("stop", target=consuming.id)
    assert bodies(consuming.named("message")) == sorted(series(N))
    assert all(stored(brokers, name))


@pytest.mark.extended
def test_message_groups_stay_in_order(
    client: ClientSession, brokers: list[Joined], name: str
) -> None:
    """Each endpoint returns the same order of queues, so a group has one queue."""
    for broker in brokers:
        typed_topic(broker, name, "FIFO", queue_count=QUEUES)
        create_group(broker, f"g-{name}", consumeMessageOrderly=True)
    for turn in range(2):
        for number, broker in enumerate(brokers):
            produce(client, broker, name, n=2, message_group="m", body=f"m{turn}-{number}")
    assert sorted(stored(brokers, name)) == [0, 0, N]
    consuming = client.start("push-consume", topic=name, group=f"g-{name}")
    consuming.wait_for("message", N, seconds=WAIT_S)
    client.start("stop", target=consuming.id)
    assert [event["body"] for event in consuming.named("message")] == [
        f"m{turn}-{number}-{i}" for turn in range(2) for number in range(3) for i in range(2)
    ]


@pytest.mark.extended
def test_transactions_end_and_are_checked_at_their_brokers(
    client: ClientSession, brokers: list[Joined], name: str
) -> None:
    for broker in brokers:
        typed_topic(broker, name, "TRANSACTION", queue_count=QUEUES)
    for broker in brokers:
        produce(client, broker, name, n=3, end="rollback", body="gone")
        produce(client, broker, name, n=3, end="commit", body="kept")
    open_half = client.start(
        "produce",
        topic=name,
        n=3,
        end="none",
        body="open",
        linger_ms=WAIT_S * 1_000,
        namesrv=brokers[1].grpc_address,
    )
    open_half.wait_for("checked", 3, seconds=WAIT_S)
    received = receive(client, name, f"g-{name}", until=N)
    client.start("stop", target=open_half.id)
    kept = [f"kept-{i}" for i in range(3)] * 3
    assert bodies(received) == sorted([*kept, *(f"open-{i}" for i in range(3))])


@pytest.mark.extended
def test_messages_are_recalled_through_every_port(
    client: ClientSession, brokers: list[Joined], name: str
) -> None:
    for broker in brokers:
        typed_topic(broker, name, "DELAY", queue_count=QUEUES)
    sent = produce(client, brokers[0], name, n=len(brokers), delay_ms=30_000)
    for event in sent:
        for broker in brokers:
            found = client.events(
                "recall",
                "recalled",
                topic=name,
                handle=event["recallHandle"],
                namesrv=broker.grpc_address,
            )
            assert found[0]["msgId"] == event["msgId"]


@pytest.mark.extended
def test_apaches_proxy_serves_brokers_of_both_kinds(
    brokers: list[Joined], tmp_path: Path, name: str
) -> None:
    """v5 clients of a mixed cluster connect to the proxy; a port of ours leaves Apache's out."""
    with (
        ApacheJoined("5.3.3", tmp_path / "apache", brokers[0]) as apache,
        ApacheProxy("5.3.3", tmp_path / "proxy", brokers[0].namesrv_address) as proxy,
        ClientSession(
            "grpc-python", grpc_python_command(), namesrv=proxy.address, home=tmp_path
        ) as client,
    ):
        servers: list[Server] = [brokers[0], apache]
        for server in servers:
            typed_topic(server, name, "NORMAL", queue_count=QUEUES)
        client.events("produce", "sent", topic=name, n=N, body="proxy")
        counts = [
            sum(max_offset(each.broker_port, name, n) for n in range(QUEUES)) for each in servers
        ]
        assert all(counts)
        produce(client, brokers[1], name, n=N, body="port")
        assert stored(brokers[:1], name) == [counts[0] + N]
        received = receive(client, name, f"g-{name}", until=2 * N)
        assert bodies(received) == sorted(
            f"{way}-{i}" for way in ("proxy", "port") for i in range(N)
        )
    assert "broker apache (" in brokers[1].broker.log_path.read_text()
