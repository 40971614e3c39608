"""The API with a broker that is away: its part is unknown, the other parts are returned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.client import Admin, Client, Message, Producer
from duemq.client.admin.topics import TopicSettings
from duemq.console.application import ENTRIES, console_routes
from duemq.console.logins import LoginRole
from duemq.http.broker_states import NOT_REGISTERED
from duemq.http.standalone import ConsoleOptions, serving_console
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from recurring_schedules.definition import Definition
from tests.duemq.client.admin.test_admin import make_dead_letter
from tests.duemq.console.cluster import Cluster, clustered
from tests.duemq.console.test_brokers import prepare
from tests.duemq.http.rig import TIMEOUT_S
from tests.support.running_broker import running, small
from tests.support.scripted_server import reply, scripted

ABSENT = [{"broker": "second", "reason": NOT_REGISTERED}]
LISTS = {
    "/topics": "topic-first",
    "/groups": "readers",
    "/groups/readers": "readers",
    "/groups/readers/lag": "readers",
    "/pending": "key-first",
    "/schedules": "report-first",
    "/configuration": "brokerName",
    "/quarantine": "messages",
    "/dead-letters": "groups",
    "/dead-letters/readers": "messages",
    "/messages/key-first": "topic-first",
    "/topics/topic-first": "topic-first",
}
STATES = (
    "/brokers",
    "/replicas",
    "/timers",
    "/levels",
    "/audits",
    "/forecast",
    "/deliveries",
)
NAMES = ("/messages/key-second", "/topics/topic-second", "/schedules/report-second")
CLOSED = "127.0.0.1:1"


async def pages_of(client: httpx.AsyncClient, path: str) -> list[Any]:
    """Return all pages of a list."""
    pages: list[Any] = []
    cursor = ""
    while True:
        query = {"cursor": cursor} if cursor else {}
        response = await client.get(f"/api/v1{path}", params=query)
        assert response.status_code == 200, (path, response.text)
        pages.append(response.json())
        cursor = pages[-1].get("cursor") or ""
        if not cursor:
            return pages


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Return the result of a request that changes something."""
    response = await client.post(f"/api/v1{path}", json=body)
    assert response.status_code == 200, (path, response.text)
    return response.json()


async def states_of(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """Return the reason why the state of each broker is unknown; empty: it is known."""
    rows = (await client.get(f"/api/v1{path}")).json()["brokers"]
    return {row["broker"]: row.get("failure", "") for row in rows}


async def check_known(client: httpx.AsyncClient) -> None:
    """Check that no part is unknown while both brokers run."""
    for path in LISTS:
        assert all(page["unknown"] == [] for page in await pages_of(client, path)), path
    for path in STATES:
        assert await states_of(client, path) == {"first": "", "second": ""}, path
    for path in NAMES:
        assert (await client.get(f"/api/v1{path}")).status_code == 200, path


async def check_lists(client: httpx.AsyncClient) -> None:
    """Check that lists have the part of the first broker, and name the second one."""
    for path, text in LISTS.items():
        pages = await pages_of(client, path)
        assert text in json.dumps(pages), path
        assert [part for page in pages for part in page["unknown"]] == ABSENT, path
    assert (await pages_of(client, "/groups/readers"))[0]["lag"] is None
    assert (await pages_of(client, "/groups/readers/lag"))[0]["lag"] is None
    [letters] = (await pages_of(client, "/dead-letters"))[0]["groups"]
    assert letters == {"group": "readers", "messages": None, "last_stored_at": None}
    assert await states_of(client, "/configuration") == {"first": ""}
    for path in STATES:
        assert await states_of(client, path) == {"first": "", "second": NOT_REGISTERED}, path
    for path in NAMES:
        response = await client.get(f"/api/v1{path}")
        assert (response.status_code, NOT_REGISTERED in response.text) == (503, True), path


async def check_actions(client: httpx.AsyncClient) -> None:
    """Check that actions have their effect at the first broker, and name the second one."""
    both = {"keys": ["key-first", "key-second"]}
    fired = await post(client, "/pending/fire", both)
    assert [one["verdict"] for one in fired["results"]] == ["done", "unknown"]
    assert fired["unknown"] == ABSENT
    resent = await post(client, "/dead-letters/readers/resend", {})
    assert [one["status"] for one in resent["results"]] == ["sent"]
    rest = await post(client, "/dead-letters/readers/resend", {"cursor": resent["cursor"]})
    assert (rest["results"], rest["unknown"]) == ([], ABSENT)
    topic = await post(client, "/topics", {"name": "topic-first", "write_queues": 2})
    assert (len(topic["queues"]), topic["unknown"]) == (8, ABSENT)
    reset = {"topic": "topic-first", "to": "latest"}
    changes = await post(client, "/groups/readers/offsets", reset)
    assert (len(changes["changes"]), changes["unknown"]) == (8, ABSENT)
    paused = await client.post("/api/v1/schedules/report-second/pause")
    assert (paused.status_code, NOT_REGISTERED in paused.text) == (503, True)


async def with_letters(cluster: Cluster) -> None:
    """Prepare both brokers, the first one with a dead letter."""
    await prepare(cluster)
    async with Producer(broker=cluster.first.address, timeout_s=TIMEOUT_S) as producer:
        admin = Admin(client=producer.client)
        await admin.create_topic("letters", TopicSettings(read_queues=1, write_queues=1))
        await producer.send(Message("letters", b"b"))
        await make_dead_letter(admin, "readers", "letters")


def test_the_part_of_a_stopped_broker_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            await with_letters(cluster)
            await check_known(cluster.client)
            await cluster.stop_second()
            await check_lists(cluster.client)
            await check_actions(cluster.client)

    asyncio.run(main())


class NameServer:
    """Name server with two masters, and one topic that both have.

    Args:
        addresses: Addresses of the masters, by name.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses

    def __call__(self, request: Request) -> bytes:
        """Return the frame of a response."""
        brokers = [
            {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": address}}
            for name, address in self._addresses.items()
        ]
        queues = [
            {"brokerName": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}
            for name in self._addresses
        ]
        bodies = {
            RequestCode.GET_BROKER_CLUSTER_INFO: {
                "brokerAddrTable": {one["brokerName"]: one for one in brokers}
            },
            RequestCode.GET_ROUTEINFO_BY_TOPIC: {"brokerDatas": brokers, "queueDatas": queues},
        }
        return reply(request, Response(body=json.dumps(bodies[RequestCode(request.code)]).encode()))


@asynccontextmanager
async def console_of(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the console of the cluster of a name server."""
    serving = serving_console(lambda _: Client(address), ConsoleOptions(port=0), console_routes)
    async with (
        serving as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S) as client,
    ):
        yield client


def test_actions_reach_the_broker_that_responds(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            running(small(tmp_path)) as (broker, _),
            scripted(NameServer({"gone": CLOSED, "test": broker.address})) as namesrv,
            console_of(namesrv) as client,
        ):
            async with Producer(broker=broker.address, timeout_s=TIMEOUT_S) as producer:
                hour = timedelta(hours=1)
                for topic in ("T", "T", "S"):
                    await producer.send(Message(topic, b"b", keys=[f"key-{topic}"], delay=hour))
                definition = Definition(name="report", topic="S", cron="0 6 * * *")
                await Admin(client=producer.client).create_schedule(definition)
            for action, more in (("fire", {}), ("move", {"delay_ms": 1}), ("cancel", {})):
                dry = {"keys": ["key-T", "other"], "dry_run": True, **more}
                done, unknown = (await post(client, f"/pending/{action}", dry))["results"]
                assert (done["verdict"], done["messages"]) == ("done", 2)
                assert unknown["verdict"] == "unknown"
                assert f"{CLOSED} does not respond" in done["remark"]
                assert f"{CLOSED} does not respond" in unknown["remark"]
            bulk = await client.post("/api/v1/pending/cancel", json={"topic": "T"})
            assert bulk.status_code == 503
            assert f"{CLOSED} does not respond" in bulk.text
            assert "2 messages were decided on before" in bulk.text
            paused = await post(client, "/schedules/report/pause", None)
            assert paused["state"] == "paused"

    asyncio.run(main())


PARTS = ("timers", "levels", "schedules", "entries", "audits", "keys", "rows", "messages")
FORMS: dict[str, Any] = {
    "empty": {},
    "list": [],
    "null": None,
    "number": 7,
    "rows": {name: [{}] for name in PARTS} | {"cursor": None, "damage": [], "after": -1},
    "texts": dict.fromkeys(PARTS, "x") | {"cursor": 7, "pending": "x", "now_ms": "x"},
}


@pytest.mark.sampled
@pytest.mark.parametrize("form", [*map(json.dumps, FORMS.values()), "no JSON", "\0"])
def test_responses_of_another_form_are_unknown(form: str) -> None:
    """The broker answers each request with the same text; no page and no path fails."""

    async def main() -> None:
        async with (
            scripted(lambda request: reply(request, Response(body=form.encode()))) as broker,
            scripted(NameServer({"other": broker})) as namesrv,
            console_of(namesrv) as client,
        ):
            for entry in ENTRIES:
                path = entry.path.replace("{name:path}", "other").replace("{name}", "other")
                page = await client.get(f"/console{path}")
                is_list = entry.title and entry.role == LoginRole.VIEWER
                expected = {200} if is_list else {200, 400, 403, 404, 501, 502, 503}
                assert page.status_code in expected, (path, page.text)
            for path in (*LISTS, *STATES, *NAMES):
                response = await client.get(f"/api/v1{path}")
                assert response.status_code in (200, 404, 501, 502, 503), (path, response.text)

    asyncio.run(main())
