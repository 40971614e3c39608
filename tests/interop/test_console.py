"""The console of a cluster with an Apache broker: what the broker reports is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from duemq.client import Admin, Client, Message, Producer
from duemq.client.admin.topics import TopicSettings
from duemq.console.application import console_routes
from duemq.http.standalone import ConsoleOptions, serving_console
from tests.duemq.client.admin.test_admin import make_dead_letter
from tests.interop.apache import NEWEST, Apache
from tests.interop.peers import KEYS
from tests.support.requirements import skip_without
from tests.support.server import BROKER_NAME, Server

pytestmark = pytest.mark.extended
TOPIC, GROUP = "console-topic", "console-group"
UNKNOWN = "Unknown: a broker did not report its part."
KNOWN = {
    "/topics": f"<td>{TOPIC}</td>",
    "/groups": f">{GROUP}</a>",
    f"/groups/{GROUP}": "<dt>Not consumed</dt>",
    "/dead-letters": f">{GROUP}</a>",
    f"/dead-letters/{GROUP}": f"<td>{TOPIC}</td>",
    "/levels": '<td class="number">18</td>',
    "/configuration?shown=all&prefix=brokerName": f"<code>{BROKER_NAME}</code>",
}
UNKNOWN_PARTS = ("/timers", "/schedules", "/migrations", "/audits")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        skip_without(),
        Apache(NEWEST, tmp_path_factory.mktemp("broker"), keys=KEYS) as peer,
    ):
        yield peer


async def prepare(namesrv: str) -> str:
    """Store a message, a dead letter and a level message; return an offset message id."""
    async with Admin(namesrv) as admin, Producer(client=admin.client) as producer:
        await admin.create_topic(TOPIC, TopicSettings(read_queues=1, write_queues=1))
        await admin.create_group(GROUP)
        sent = await producer.send(Message(TOPIC, b"hello"))
        await producer.send(Message(TOPIC, b"later", level=18))
        await make_dead_letter(admin, GROUP, TOPIC)
        return sent.offset_message_id


def test_what_an_apache_broker_reports_is_shown(server: Server) -> None:
    async def main() -> None:
        name = await prepare(server.namesrv_address)
        serving = serving_console(
            lambda credentials: Client(server.namesrv_address, credentials=credentials),
            ConsoleOptions(port=0),
            console_routes,
        )
        async with (
            serving as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/console", timeout=60) as client,
        ):
            for path, text in (KNOWN | {f"/messages/{name}": "hello"}).items():
                page = await client.get(path)
                assert page.status_code == 200, path
                assert text in page.text, path
                assert UNKNOWN not in page.text, path
            for path in UNKNOWN_PARTS:
                page = await client.get(path)
                assert page.status_code == 200, path
                assert UNKNOWN in page.text, path
                assert f"{BROKER_NAME}:" in page.text, path

    asyncio.run(main())
