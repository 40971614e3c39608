"""Java's remoting client with rebalance by the broker; assignments equal to Apache's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from delivery.plugin import Request
from duemq.net.client import RemotingClient
from duemq.net.codes import RequestCode
from tests.interop.apache import Apache, mqadmin
from tests.interop.peers import KEYS
from tests.interop.session import ClientSession, Event
from tests.support.server import Server
from tests.support.wait_until import until

VERSION = "5.3.3"
N = 8
RETRY_S = 60  # the client pops a failed message again after 10 s
MODE_FILE = Path("config", "messageRequestMode.json")


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Apache's broker, the judge."""
    with Apache(VERSION, tmp_path_factory.mktemp("apache"), keys=KEYS) as started:
        yield started


def set_mode(server: Server, home: Path, topic: str, group: str, mode: str, shared: int) -> None:
    """Set a mode by Apache's own tool."""
    words = ["setConsumeMode", "-b", server.broker_address, "-t", topic, "-g", group]
    words += ["-m", mode, "-q", str(shared), "-n", server.namesrv_address]
    printed = mqadmin(VERSION, home, *words)
    assert "success" in printed, printed


def consumed(events: list[Event], action: str = "consumed") -> list[str]:
    return sorted(str(e["body"]) for e in events if e.get("action") == action)


def test_a_java_client_pops(
    server: Server, java_with_timers: ClientSession, topic: str, group: str, tmp_path: Path
) -> None:
    """A failed message comes again, once."""
    java_with_timers.run("produce", topic=topic, n=N)
    # Any member creates the group. Until the mode is set, it pulls.
    set_mode(server, tmp_path, topic, group, "POP", 0)
    consuming = java_with_timers.start(
        "push-consume",
        topic=topic,
        group=group,
        server_rebalance=True,
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


@asynccontextmanager
async def members(server: Server, group: str, topic: str, count: int) -> AsyncIterator[Any]:
    """Keep so many members of a group connected; give what asks for assignments."""
    async with AsyncExitStack() as stack:
        clients = []
        for n in range(count):
            client = RemotingClient(server.broker_address)
            clients.append(await stack.enter_async_context(client))
            answer = await client.call(
                Request(RequestCode.HEART_BEAT, {}, _heartbeat(f"m{n}", group, topic), version=479),
                timeout_s=30,
            )
            assert answer.code == 0, answer.remark

        async def ask(**changes: object) -> object:
            wanted = {"topic": topic, "consumerGroup": group, "clientId": "m0"}
            wanted |= {"strategyName": "AVG", "messageModel": "CLUSTERING"} | changes
            answer = await clients[0].call(
                Request(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(wanted).encode(), version=479),
                timeout_s=30,
            )
            if answer.code:
                return answer.code
            found = json.loads(bytes(answer.body))  # type: ignore[arg-type]
            assigned = found.get("messageQueueAssignments")
            return assigned and sorted(map(json.dumps, map(_plain, assigned)))

        yield ask


def _plain(assigned: dict[str, Any]) -> dict[str, Any]:
    return {"mode": assigned["mode"], **assigned["messageQueue"]}


def _heartbeat(client_id: str, group: str, topic: str) -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "unitMode": False}
    consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
    consumer |= {"subscriptionDataSet": [subscription]}
    data = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return json.dumps(data).encode()


QUESTIONS: list[dict[str, object]] = [
    {"clientId": f"m{n}", "strategyName": strategy}
    for n in range(4)
    for strategy in ("AVG", "AVG_BY_CIRCLE")
] + [
    {"clientId": "stranger"},
    {"strategyName": "NONE"},
    {"messageModel": "BROADCASTING"},
    {"consumerGroup": "no-such-group"},
]


async def answers(server: Server, topic: str, group: str, count: int) -> list[object]:
    """Return the answers to all questions; the first one waits for the route."""
    async with members(server, group, topic, count) as ask:
        for _ in range(100):
            if await ask(messageModel="BROADCASTING"):
                break
            await asyncio.sleep(0.1)
        return [await ask(**question) for question in QUESTIONS]


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
        found.append(asyncio.run(answers(each, name, f"g-{name}", count)))
    ours, theirs = found
    assert dict(zip(map(str, QUESTIONS), ours, strict=True)) == dict(
        zip(map(str, QUESTIONS), theirs, strict=True)
    )


def set_mode_directly(server: Server, topic: str, group: str, mode: str, shared: int) -> None:
    """Set a mode without the start of a tool."""
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": shared}

    async def main() -> None:
        async with RemotingClient(server.broker_address) as client:
            request = Request(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())
            answer = await client.call(request, timeout_s=30)
            assert answer.code == 0, answer.remark

    asyncio.run(main())


def test_modes_are_kept_in_apaches_form(server: Server, apache: Server, name: str) -> None:
    texts = []
    for each in (server, apache):
        each.create_topic(name)
        set_mode_directly(each, name, f"g-{name}", "POP", 2)
        path = each.store_dir / MODE_FILE
        until(lambda path=path: path.exists(), seconds=30, what=f"{path} exists")  # type: ignore[misc]
        texts.append(json.loads(path.read_text())["messageRequestModeMap"][name])
    assert texts[0] == texts[1]
