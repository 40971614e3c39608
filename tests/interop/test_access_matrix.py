"""Access decisions compared with Apache's: users x resources x actions x request codes.

Both brokers receive the same users, ACLs and signed requests. Decisions are equal if both brokers
refuse with the same remark, or neither refuses. One difference is intended: Apache's broker lets
every group use the retry topics of all other groups.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from duemq.auth.signature import Credentials
from duemq.net.client import RemotingClient
from duemq_common.codes import ResponseCode
from duemq_common.request import Request, Response
from tests.interop.apache import Apache
from tests.support.accounts import KEYS, PROVIDERS, ROOT
from tests.support.duemq_server import DueMQ
from tests.support.server import Server

T = TypeVar("T")
SEED = 20_261_124
CELLS_MIN = 2_000
USERS = 24
IN_FLIGHT = 32
WRITES = {36, 37, 310}
DELETIONS = {207, 215}
NO_PERMISSION = 16
RESOURCES = (
    "*",
    "Topic:*",
    "Topic:orders",
    "Topic:o*",
    "Topic:ord*",
    "Topic:orders-*",
    "Topic:other",
    "Group:*",
    "Group:billing",
    "Group:b*",
    "Group:bill*",
    "Group:x",
    "Cluster:*",
    "Cluster:DefaultCluster",
    "Cluster:Def*",
    "Cluster:Other",
)
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
NETWORKS = (  # type: ignore[var-annotated]
    [],
    [],
    [],
    [],
    [],
    ["127.0.0.1"],
    ["127.0.0.0/8"],
    ["10.0.0.0/8"],
    ["10.0.0.1", "127.0.0.1"],
)
TOPICS = ("orders", "orders-eu", "other", "%RETRY%billing")
NOWHERE = str(
    1 << 50
)  # a log offset without a record: otherwise the topic of the record is checked as well
GROUPS = ("billing", "billing-eu", "x")


@dataclass(frozen=True, slots=True)
class Cell:
    """One request."""

    credentials: Credentials | None
    code: int
    fields: dict[str, str]
    body: bytes = b""

    @property
    def request(self) -> Request:
        """The request, signed."""
        made = Request(self.code, dict(self.fields), self.body, version=479)
        return made if self.credentials is None else self.credentials.sign(made)


def acl_of(chance: random.Random) -> bytes:
    """Return the body of request 3006 with overlapping entries, some of the default policy."""
    policies: dict[str, list[dict[str, object]]] = {}
    for resource in chance.sample(RESOURCES, chance.randint(2, 10)):
        entry = {
            "resource": resource,
            "actions": chance.sample(ACTIONS, chance.randint(2, 6)),
            "sourceIps": chance.choice(NETWORKS),
            "decision": chance.choice(["Allow", "Deny"]),
        }
        policies.setdefault(chance.choice(["Custom", "Custom", "Default"]), []).append(entry)
    found = [{"policyType": kind, "entries": entries} for kind, entries in policies.items()]
    return json.dumps({"policies": found}).encode()


def of_topic(topic: str) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield code, fields and body of requests about a topic."""
    send = ("p", topic, "TBW102", "4", "0", "0", "1", "0", "", "0", "false", "0", "false")
    yield 310, dict(zip("abcdefghijklm", send, strict=True)), b"x"
    queue = {"topic": topic, "queueId": "0"}
    for code in (30, 31, 32, 351, 202, 300):
        yield code, queue | {"lo": "true"}, b""
    yield 29, queue | {"timestamp": "1"}, b""
    yield 12, queue | {"key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, b""
    yield (
        37,
        {
            "topic": topic,
            "producerGroup": "p",
            "tranStateTableOffset": "0",
            "commitLogOffset": "0",
            "commitOrRollback": "8",
            "transactionId": "t",
            "msgId": "m",
        },
        b"",
    )
    yield 215, queue, b""


def of_group(group: str) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield code, fields and body of requests about a consumer group."""
    yield 38, {"consumerGroup": group}, b""
    yield 203, {"consumerGroup": group}, b""
    yield 35, {"clientID": "c", "consumerGroup": group, "producerGroup": "p"}, b""
    yield 36, {"group": group, "offset": NOWHERE, "delayLevel": "0", "originMsgId": "m"}, b""
    yield 352, {"group": group}, b""
    yield 343, {"group": group}, b""


def of_both(topic: str, group: str) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield code, fields and body of requests about a topic and a group."""
    both = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    pull = {"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0"}
    pull |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    yield 11, both | pull, b""
    yield 14, both, b""
    yield 15, both | {"commitOffset": "0"}, b""
    lock = {"consumerGroup": group, "clientId": "c"}
    queues = [{"topic": topic, "brokerName": "broker-a", "queueId": 0}]
    for code in (41, 42):
        yield code, {}, json.dumps(lock | {"mqSet": queues}).encode()
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY"}
    consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
    data = [consumer | {"subscriptionDataSet": [subscription]}]
    beat = {"clientID": "c", "consumerDataSet": data, "producerDataSet": []}
    yield 34, {}, json.dumps(beat).encode()


def of_cluster() -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield code, fields and body of requests about the cluster."""
    yield 204, {"producerGroup": "p", "topic": "T"}, b""
    yield 315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}, b""
    yield 317, {"isOrder": "false"}, b""
    yield 328, {}, b""
    yield 3004, {"username": "u0"}, b""
    yield 3009, {"subject": "User:u0"}, b""
    yield 3010, {"subjectFilter": "none"}, b""


def cells(users: list[Credentials]) -> list[Cell]:
    """Return all cells."""
    requests = [each for topic in TOPICS for each in of_topic(topic)]
    requests += [each for group in GROUPS for each in of_group(group)]
    requests += [each for t in TOPICS for g in GROUPS for each in of_both(t, g)]
    requests += of_cluster()
    strangers = (None, Credentials("absent", "x"), Credentials("u0", "wrong"))
    found = [
        Cell(credentials, *request) for credentials in (*users, *strangers) for request in requests
    ]
    random.Random(SEED).shuffle(found)
    return found


async def responses(
    server: Server, users: list[Credentials], requested: list[Cell]
) -> list[str | None]:
    """Create the users at a server; return the remark of each refused cell, None for others."""
    chance = random.Random(SEED)
    async with RemotingClient(server.broker_address) as client:

        async def remark_of(cell: Cell) -> str | None:
            response = await call(client, cell)
            return (response.remark or "") if response.code == NO_PERMISSION else None

        for number, user in enumerate(users):
            kind = "Normal" if number else "Super"
            made = json.dumps({"password": user.secret, "userType": kind}).encode()
            await expect(client, Cell(ROOT, 3001, {"username": user.access_key}, made))
            if number > 1:  # the second one has no ACL
                subject = {"subject": f"User:{user.access_key}"}
                await expect(client, Cell(ROOT, 3006, subject, acl_of(chance)))
        last = users[-1].access_key
        await expect(client, Cell(ROOT, 3002, {"username": last}, b'{"userStatus":"disable"}'))
        return await in_phases(requested, remark_of)


async def in_phases(requested: list[Cell], result_of: Callable[[Cell], Awaitable[T]]) -> list[T]:
    """Return the result of each cell: writes first, deletions last and one at a time.

    Apache's JVM may crash if a topic is deleted while a record is dispatched to its queues.
    """
    results: dict[int, T] = {}

    async def run(chosen: list[int], in_flight: int) -> None:
        slots = asyncio.Semaphore(in_flight)

        async def one(at: int) -> None:
            async with slots:
                results[at] = await result_of(requested[at])

        await asyncio.gather(*map(one, chosen))

    writes = [at for at, cell in enumerate(requested) if cell.code in WRITES]
    deletions = [at for at, cell in enumerate(requested) if cell.code in DELETIONS]
    others = sorted(set(range(len(requested))).difference(writes, deletions))
    for chosen, in_flight in ((writes, IN_FLIGHT), (others, IN_FLIGHT), (deletions, 1)):
        await run(chosen, in_flight)
    return [results[at] for at in range(len(requested))]


async def call(client: RemotingClient, cell: Cell) -> Response:
    """Return the response; send a request again if the broker refused it because it is busy."""
    while True:
        response = await client.call(cell.request, timeout_s=60)
        if response.code != ResponseCode.SYSTEM_BUSY:
            return response


def foreign_retry(cell: Cell) -> str:
    """Return the group whose retry topic is in a request of another group; empty: none."""
    topic = cell.fields.get("topic") or cell.fields.get("b") or ""
    owner = topic.removeprefix("%RETRY%")
    group = cell.fields.get("consumerGroup") or cell.fields.get("a")
    return owner if owner not in (topic, group) else ""


def is_refused_for(group: str, remark: str | None) -> bool:
    """Return whether a refusal is about a group."""
    return bool(group) and f"to access Group:{group} from" in (remark or "")


async def expect(client: RemotingClient, cell: Cell) -> None:
    """Make a request that must succeed."""
    response = await call(client, cell)
    assert response.code == 0, (cell, response)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Apache's broker and ours, both with accounts."""
    apache = Apache("5.3.3", tmp_path / "apache", keys=KEYS | PROVIDERS, heap="512m")
    with apache, DueMQ(tmp_path / "duemq", keys=KEYS) as ours:
        yield apache, ours


@pytest.mark.extended
def test_every_cell_is_decided_as_apache_decides_it(servers: tuple[Server, Server]) -> None:
    users = [Credentials(f"u{number}", f"secret-{number}") for number in range(USERS)]
    requested = cells(users)
    assert len(requested) >= CELLS_MIN
    theirs, ours = (asyncio.run(responses(server, users, requested)) for server in servers)
    different = [
        (cell, their, our)
        for cell, their, our in zip(requested, theirs, ours, strict=True)
        if their != our and not is_refused_for(foreign_retry(cell), our)
    ]
    refused = sum(their is not None for their in theirs)
    assert CELLS_MIN / 10 < refused < len(requested) - CELLS_MIN / 10  # both decisions are common
    assert not different, f"{len(different)} of {len(requested)} cells differ: {different[:5]}"
