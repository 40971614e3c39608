"""`duemq console`: the pages of a cluster, with an Apache broker, and its logins."""

from __future__ import annotations

import asyncio
import html
import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from duemq.auth.signature import Credentials
from duemq.client import Admin, Client, Message, Producer
from duemq.console.application import ENTRIES, console_routes
from duemq.console.logins import LoginRole
from duemq.http.standalone import ConsoleOptions, serving_console
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Request, Response
from recurring_schedules.definition import Definition
from tests.duemq.console.cluster import clustered
from tests.duemq.console.test_brokers import UNKNOWN, prepare
from tests.duemq.http.rig import TIMEOUT_S
from tests.support.accounts import KEYS, ROOT
from tests.support.free_ports import free_ports
from tests.support.running_broker import running, small
from tests.support.scripted_server import reply, scripted

LISTS = [entry.path for entry in ENTRIES if entry.title and entry.role == LoginRole.VIEWER]
PENDING = "scheduleMessageOffset_3"
LEVEL_QUEUE = '{"brokerName":"apache","queueId":2,"topic":"SCHEDULE_TOPIC_XXXX"}'
SECRET = "sesame"
BROKER = """
import asyncio, sys
from duemq.broker.broker import Broker

async def main():
    async with Broker({properties!r}):
        print(*(name for name in ("jinja2", "starlette", "uvicorn") if name in sys.modules))

asyncio.run(main())
"""


def test_every_list_is_served_for_a_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            await prepare(cluster)
            for path in LISTS:
                assert UNKNOWN not in await cluster.page(path), path

    asyncio.run(main())


def test_the_next_broker_is_shown_with_the_same_search(tmp_path: Path) -> None:
    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            page = await cluster.page("/configuration?shown=all&prefix=BrokerN")
            assert "<code>brokerName</code>" in page
            [link] = re.findall(r'rel="next" href="/console([^"]+)"', page)
            following = await cluster.page(html.unescape(link))
            assert "<code>second</code>" in following
            assert re.findall(r"<td><code>(\w+)</code></td>", following)[0] == "brokerName"
            assert "listenPort" not in following

    asyncio.run(main())


def test_a_broker_without_entries_has_no_page_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with clustered(tmp_path) as cluster:
            second = cluster.second.address
            async with Producer(broker=second, timeout_s=TIMEOUT_S) as producer:
                hour = timedelta(hours=1)
                await producer.send(Message("orders", b"b", keys=["key-1"], delay=hour))
                daily = Definition(name="daily", topic="orders", cron="0 6 * * *")
                await Admin(client=producer.client).create_schedule(daily)
            for path, text in {"/timers": "key-1", "/schedules": "daily"}.items():
                page = await cluster.page(path)
                assert text in page, path
                assert 'rel="next"' not in page, path
            response = await cluster.client.get("/api/v1/schedules")
            assert len(response.json()["schedules"]) == 1
            assert response.json()["cursor"] is None

    asyncio.run(main())


class ApacheBroker:
    """Responses of a name server and an Apache broker, as far as the console needs them."""

    def __init__(self) -> None:
        self.address = ""

    def __call__(self, request: Request) -> bytes:
        """Return the frame of a response."""
        return reply(request, self._response(request))

    def _response(self, request: Request) -> Response:
        bodies: dict[int, object] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: {
                "brokerAddrTable": {"apache": {"cluster": "c", "brokerAddrs": {"0": self.address}}}
            },
            RequestCode.GET_ALL_TOPIC_CONFIG: {
                "topicConfigTable": {"orders": {"topicName": "orders"}}
            },
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: {"topicList": []},
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                "subscriptionGroupTable": {"readers": {"groupName": "readers"}}
            },
            RequestCode.GET_BROKER_RUNTIME_INFO: {"table": {PENDING: "5,7"}},
            RequestCode.GET_TOPIC_STATS_INFO: {"offsetTable": {LEVEL_QUEUE: {"maxOffset": 7}}},
        }
        if request.code == RequestCode.GET_BROKER_CONFIG:
            return Response(body=f"brokerName=apache\naclSecret={SECRET}\n".encode())
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Response(ResponseCode.TOPIC_NOT_EXIST, "there is no such topic")
        if request.code not in bodies:
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")
        return Response(body=json.dumps(bodies[request.code]).encode())


def test_an_apache_broker_is_shown_as_far_as_it_responds() -> None:
    known = {
        "/topics": "<td>orders</td>",
        "/groups": ">readers</a>",
        "/levels": r'<td class="number">3</td>',
        "/configuration?shown=all": "<code>brokerName</code>",
        "/dead-letters": "There are none.",
        "/quarantine": "There are none.",
    }
    unknown = ("/timers", "/schedules", "/migrations", "/audits")

    async def main() -> None:
        apache = ApacheBroker()
        async with scripted(apache) as address:
            apache.address = address
            serving = serving_console(
                lambda credentials: Client(address, credentials=credentials),
                ConsoleOptions(port=0),
                console_routes,
            )
            async with (
                serving as port,
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}/console", timeout=TIMEOUT_S
                ) as client,
            ):
                for path, text in known.items():
                    page = await client.get(path)
                    assert page.status_code == 200, path
                    assert text in page.text, path
                    assert UNKNOWN not in page.text, path
                    assert SECRET not in page.text
                for path in unknown:
                    page = await client.get(path)
                    assert page.status_code == 200, path
                    assert UNKNOWN in page.text, path
                    assert "apache:" in page.text, path
                for path in ("/", "/replicas"):
                    page = await client.get(path)
                    assert page.status_code == 200, path
                    assert '<span class="unknown">unknown</span>' in page.text

    asyncio.run(main())


@pytest.mark.usefixtures("lasting_failures")
def test_logins_of_a_cluster_are_checked_by_its_brokers_and_failures_limited(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker=broker.address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options, console_routes) as port,
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}/console", timeout=TIMEOUT_S
                ) as client,
            ):
                right = {"access_key": ROOT.access_key, "secret": ROOT.secret}
                entered = await client.post("/login", data=right)
                assert entered.status_code == 303
                assert "Role: administrator." in (await client.get("/")).text
                statuses = [
                    (await client.post("/login", data=right | {"secret": f"x{n}"})).status_code
                    for n in range(11)
                ]
                assert statuses == [403] * 10 + [429]
                assert (await client.post("/login", data=right)).status_code == 429

    asyncio.run(main())


def test_the_command_serves_the_console_until_a_signal(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path)) as (broker, _):
            words = ("console", "--broker", broker.address, "--port", "0", "--json")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "duemq", *words, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            ready = json.loads(await process.stdout.readline())
            async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=True) as client:
                page = await client.get(ready["console"])
            assert "Pending timers" in page.text
            process.terminate()
            assert await process.wait() == 0

    asyncio.run(main())


@pytest.mark.sampled
@pytest.mark.parametrize("has_console", [False, True])
def test_a_broker_imports_the_console_only_with_its_port(tmp_path: Path, has_console: bool) -> None:
    [port] = free_ports(1)
    keys = {"consolePort": str(port)} if has_console else {}
    program = BROKER.format(properties=small(tmp_path, **keys))
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=TIMEOUT_S, check=True, capture_output=True
    )
    names = re.findall(rb"\w+", done.stdout)
    assert (b"jinja2" in names) is has_console


def test_a_read_only_console_of_a_cluster_has_viewers_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):
            options = ConsoleOptions(port=0, has_accounts=True, is_read_only=True)
            serving = serving_console(
                lambda credentials: Client(broker=broker.address, credentials=credentials),
                options,
                console_routes,
            )
            async with (
                serving as port,
                httpx.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}/console", timeout=TIMEOUT_S
                ) as client,
            ):
                account = {"access_key": ROOT.access_key, "secret": ROOT.secret}
                assert (await client.post("/login", data=account)).status_code == 303
                assert "Role: viewer." in (await client.get("/")).text

    asyncio.run(main())
