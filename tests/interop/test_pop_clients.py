"""Java's remoting client with rebalance by the broker; assignments equal to Apache's."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duemq.net.client import RemotingClient
from duemq_common.codes import RequestCode
from duemq_common.request import Request
from tests.interop.admin_process import mqadmin
from tests.interop.apache import NEWEST, Apache
from tests.interop.checks import assert_once, series
from tests.interop.conftest import JavaSessions
from tests.interop.peers import KEYS
from tests.interop.session import ClientSession, Event
from tests.interop.store_work import json_of_running
from tests.support.extended import extended
from tests.support.requirements import skip_without
from tests.support.server import Server
from tests.support.wait_until import until

VERSION = "5.3.3"
N = 8
INVISIBLE_MS = 5_000  # minimum of Java clients
RETRY_S = 60  # the client pops a failed message again after 10 s
ROUTE_S = 120
MODE_FILE = Path("config", "messageRequestMode.json")


@pytest.fixture(scope="module", autouse=True)
def starting_apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[Server] | None]:
    """Start of Apache's broker during the first tests, if a test needs it.

    The thread that starts the processes lives as long as they: the kernel ends them with it.
    """
    tests = [item for item in request.session.items if item.path == request.path]
    if not any(
        "apache" in item.fixturenames for item in tests if isinstance(item, pytest.Function)
    ):
        yield None
        return
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        with skip_without():
            server = Apache(VERSION, tmp_path_factory.mktemp("apache"), keys=KEYS)
        yield pool.submit(stack.enter_context, server)


@pytest.fixture
def apache(starting_apache: Future[Server]) -> Server:
    """Apache's broker, the reference."""
    return starting_apache.result()


def set_mode(server: Server, home: Path, topic: str, group: str, mode: str, shared: int) -> None:
    """Set a request mode with mqadmin."""
    words = ["setConsumeMode", "-b", server.broker_address, "-t", topic, "-g", group]
    words += ["-m", mode, "-q", str(shared), "-n", server.namesrv_address]
    printed = mqadmin(VERSION, home, *words)
    assert "success" in printed, printed


def consumed(events: list[Event], action: str = "consumed") -> list[str]:
    return sorted(str(e["body"]) for e in events if e.get("action") == action)


@pytest.fixture(
    params=[
        extended(VERSION, id=f"java-{VERSION}"),
        pytest.param(NEWEST, id=f"java-{NEWEST}"),
    ]
)
def java(request: pytest.FixtureRequest, java_sessions: JavaSessions) -> ClientSession:
    """Apache's Java client, in the versions that pop."""
    return java_sessions(str(request.param))


def test_a_java_client_pops(
    server: Server, java: ClientSession, topic: str, group: str, tmp_path: Path
) -> None:
    """A failed message is redelivered once; an acknowledged one is not redelivered.

    A message without acknowledgement would be redelivered before the failed message.
    """
    java.run("produce", topic=topic, n=N)
    # The first member creates the group; it pulls until the mode is set.
    set_mode(server, tmp_path, topic, group, "POP", 0)
    consuming = java.start(
        "push-consume",
        topic=topic,
        group=group,
        server_rebalance=True,
        pop_invisible_ms=INVISIBLE_MS,
        fail_first=1,
        retry_level=0,
        until=N,
        linger_ms=500,
    )
    events = consuming.result(seconds=RETRY_S + 60)
    assert consumed(events) == [f"body-{i}" for i in range(N)]
    failed = consumed(events, "later")
    again = [e for e in events if e.get("reconsumeTimes") == 1]
    assert consumed(again) == failed
    handles = [e["properties"].get("POP_CK") for e in events if e["event"] == "message"]
    assert None not in handles
    times = {handle.split(" ")[2] for handle in handles}
    assert str(INVISIBLE_MS) in times


@pytest.mark.parametrize("mode", ["PULL", "POP"])
def test_members_consume_from_the_queues_that_the_broker_assigns(
    server: Server, java: ClientSession, topic: str, group: str, mode: str
) -> None:
    """No message is lost; once the queues are assigned, no two pulling members share a queue."""
    set_mode_directly(server, topic, group, mode, 0)
    options = {"topic": topic, "group": group, "server_rebalance": True, "wait_ms": 480_000}
    members = [java.start("push-consume", instance=f"{group}-{n}", **options) for n in range(2)]
    for member in members:
        member.wait_for("started")
    parts = itertools.count()

    def received(part: int) -> list[list[Event]]:
        prefix = f"part{part}-"
        return [
            [event for event in member.named("message") if event["body"].startswith(prefix)]
            for member in members
        ]

    def a_part_is_shared() -> bool:
        part = next(parts)
        java.run("produce", topic=topic, n=N, body=f"part{part}")
        wanted = set(series(N, f"part{part}"))
        until(
            lambda: {event["body"] for found in received(part) for event in found} == wanted,
            seconds=120,
            what=f"all of part {part} is received",
        )
        found = received(part)
        handles = {"POP_CK" in event["properties"] for each in found for event in each}
        return (
            sum(map(len, found)) == N
            and handles == {mode == "POP"}
            and (mode == "POP" or all(found))
        )

    until(a_part_is_shared, seconds=240, what="both members have queues of their own")
    for member in members:
        member.stop()


def test_the_newest_lite_pull_consumer(java_sessions: JavaSessions, topic: str, group: str) -> None:
    """DefaultLitePullConsumer of 5.5.0 selects its queues itself, and resumes at its offsets."""
    java = java_sessions(NEWEST)
    for body in ("first", "second"):
        java.run("produce", topic=topic, n=N, body=body)
        options = {"topic": topic, "group": group, "until": N, "linger_ms": 200}
        assert_once(java.events("lite-pull", "message", **options), series(N, body))


@asynccontextmanager
async def members(server: Server, group: str, topic: str, count: int) -> AsyncIterator[Any]:
    """Keep `count` members of a group connected; yield a function that requests assignments."""
    async with AsyncExitStack() as stack:
        clients = []
        for n in range(count):
            client = RemotingClient(server.broker_address)
            clients.append(await stack.enter_async_context(client))
            response = await client.call(
                Request(RequestCode.HEART_BEAT, {}, _heartbeat(f"m{n}", group, topic), version=479),
                timeout_s=60,
            )
            assert response.code == 0, response.remark

        async def query_assignment(**changes: object) -> object:
            wanted = {"topic": topic, "consumerGroup": group, "clientId": "m0"}
            wanted |= {"strategyName": "AVG", "messageModel": "CLUSTERING"} | changes
            response = await clients[0].call(
                Request(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(wanted).encode(), version=479),
                timeout_s=60,
            )
            if response.code:
                return response.code
            found = json.loads(bytes(response.body))
            assigned = found.get("messageQueueAssignments")
            return assigned and sorted(map(json.dumps, map(_plain, assigned)))

        yield query_assignment


def _plain(assigned: dict[str, Any]) -> dict[str, Any]:
    return {"mode": assigned["mode"], **assigned["messageQueue"]}


def _heartbeat(client_id: str, group: str, topic: str) -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "unitMode": False}
    consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
    consumer |= {"subscriptionDataSet": [subscription]}
    data = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return json.dumps(data).encode()


QUESTIONS: list[dict[str, object]] = [  # type: ignore[assignment]
    {"clientId": f"m{n}", "strategyName": strategy}
    for n in range(4)
    for strategy in ("AVG", "AVG_BY_CIRCLE")
] + [
    {"clientId": "stranger"},
    {"strategyName": "NONE"},
    {"messageModel": "BROADCASTING"},
    {"consumerGroup": "no-such-group"},
]


async def responses(server: Server, topic: str, group: str, count: int) -> list[object]:
    """Return the responses to all requests; the first one waits for the route."""
    async with members(server, group, topic, count) as query_assignment:
        async with asyncio.timeout(ROUTE_S):
            while not await query_assignment(messageModel="BROADCASTING"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return [await query_assignment(**question) for question in QUESTIONS]


@pytest.mark.parametrize(
    ("queues", "count", "mode"),
    [
        (8, 3, None),
        (2, 4, None),
        (8, 3, ("POP", 0)),
        (8, 4, ("POP", 1)),
        (6, 4, ("POP", 2)),
        (2, 4, ("POP", 1)),
    ],
)
def test_assignments_are_apaches(
    server: Server,
    apache: Server,
    name: str,
    tmp_path: Path,
    queues: int,
    count: int,
    mode: tuple[str, int] | None,
) -> None:
    found = []
    for each in (server, apache):
        each.create_topic(name, queue_count=queues)
        if mode is not None:
            set_mode_directly(each, name, f"g-{name}", *mode)
        found.append(asyncio.run(responses(each, name, f"g-{name}", count)))
    ours, theirs = found
    assert dict(zip(map(str, QUESTIONS), ours, strict=True)) == dict(
        zip(map(str, QUESTIONS), theirs, strict=True)
    )


def set_mode_directly(server: Server, topic: str, group: str, mode: str, shared: int) -> None:
    """Set a request mode by a request, without mqadmin."""
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": shared}

    async def main() -> None:
        async with RemotingClient(server.broker_address) as client:
            request = Request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())
            response = await client.call(request, timeout_s=60)
            assert response.code == 0, response.remark

    asyncio.run(main())


def test_modes_are_stored_in_apaches_format(server: Server, apache: Server, name: str) -> None:
    texts = []
    for each in (server, apache):
        each.create_topic(name)
        set_mode_directly(each, name, f"g-{name}", "POP", 2)
        path = each.store_dir / MODE_FILE
        value = until(partial(json_of_running, path), seconds=120, what=f"{path} exists")
        texts.append(value["messageRequestModeMap"][name])
    assert texts[0] == texts[1]
