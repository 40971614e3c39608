"""`duemq console`: the same API for a cluster that the name server knows."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from duemq.auth.signature import Credentials
from duemq.broker.http_ports import RESPONSE_S, responds
from duemq.client import Client, Refused
from duemq.http import admission
from duemq.http.admission import FAILURES_MAX
from duemq.http.standalone import ConsoleOptions, serving_console
from duemq_common.codes import ResponseCode
from duemq_common.errors import UsageError
from tests.support.accounts import KEYS, ROOT
from tests.support.running_broker import running, small


def test_a_cluster_is_served_through_its_name_server(tmp_path: Path) -> None:
    async def main() -> None:
        keys = {"embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}
        async with running(small(tmp_path, **keys)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker.namesrv_address, credentials=credentials)

            async with (
                serving_console(connect, ConsoleOptions(port=0)) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                assert (await client.get("/readyz")).status_code == 200
                message = {"topic": "T", "body": "b", "delay_ms": 3_600_000}
                sent = await client.post("/api/v1/messages", json=message)
                assert sent.json()["broker"] == "test"
                page = (await client.get("/api/v1/pending")).json()
                assert [each["broker"] for each in page["messages"]] == ["test"]

    asyncio.run(main())


def test_brokers_check_the_accounts(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker=broker.address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                path = "/api/v1/topics"
                assert (await client.get(path)).status_code == 401
                assert (await client.get(path, auth=("root", "wrong"))).status_code == 403
                right = (ROOT.access_key, ROOT.secret)
                assert (await client.get(path, auth=right)).status_code == 200

    asyncio.run(main())


def test_failed_logins_at_the_brokers_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "FAILURE_WINDOW_S", 1e9)

    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker=broker.address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                path, right = "/api/v1/timers", (ROOT.access_key, ROOT.secret)
                assert (await client.get(path, auth=right)).status_code == 200
                statuses = [
                    (await client.get(path, auth=("root", f"wrong-{number}"))).status_code
                    for number in range(FAILURES_MAX + 1)
                ]
                assert statuses == [403] * FAILURES_MAX + [429]
                assert (await client.get(path, auth=right)).status_code == 429

    asyncio.run(main())


def test_a_name_server_may_check_the_accounts(tmp_path: Path) -> None:
    async def main() -> None:
        keys = {**KEYS, "embeddedNamesrvEnable": "true", "embeddedNamesrvPort": "0"}
        async with running(small(tmp_path, **keys)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker.namesrv_address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                assert (await client.get("/readyz")).text == "ok\n"
                path = "/api/v1/topics"
                assert (await client.get(path, auth=("root", "wrong"))).status_code == 403
                right = (ROOT.access_key, ROOT.secret)
                assert (await client.get(path, auth=right)).status_code == 200

    asyncio.run(main())


def test_an_unreachable_cluster_is_not_ready() -> None:
    async def main() -> None:
        def connect(credentials: Credentials | None) -> Client:
            return Client("127.0.0.1:1", credentials=credentials)

        async with (
            serving_console(connect, ConsoleOptions(port=0)) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            ready = await client.get("/readyz")
            assert ready.status_code == 503
            assert "does not respond" in ready.text
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/api/v1/topics")).status_code == 503

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "status"), [(ResponseCode.NO_PERMISSION, 200), (ResponseCode.SYSTEM_BUSY, 503)]
)
def test_a_name_server_that_refuses_for_other_reasons_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, code: ResponseCode, status: int
) -> None:
    async def refuse(client: Client) -> list[tuple[str, str]]:
        raise Refused(code, "no")

    async def main() -> None:
        options = ConsoleOptions(port=0)
        async with (
            serving_console(lambda _: Client("127.0.0.1:1"), options) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            assert (await client.get("/readyz")).status_code == status

    monkeypatch.setattr(Client, "masters", refuse)
    asyncio.run(main())


def test_other_machines_need_accounts() -> None:
    async def main() -> None:
        options = ConsoleOptions(host="0.0.0.0", port=0)
        with pytest.raises(UsageError, match="--accounts"):
            async with serving_console(lambda _: Client("127.0.0.1:1"), options):
                pass

    asyncio.run(main())


def test_a_stopped_loop_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.broker.http_ports.RESPONSE_S", 0.05)
    loop, ended = asyncio.new_event_loop(), threading.Event()
    thread = threading.Thread(target=lambda: (loop.call_soon(ended.wait), loop.run_forever()))
    thread.start()
    assert not asyncio.run(responds(loop))
    ended.set()
    monkeypatch.setattr("duemq.broker.http_ports.RESPONSE_S", RESPONSE_S)
    assert asyncio.run(responds(loop))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert not asyncio.run(responds(loop))


def test_a_turn_in_the_turn_of_the_timeout_is_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of the probe was late, not that of the broker."""
    monkeypatch.setattr("duemq.broker.http_ports.RESPONSE_S", 0)
    loop: Any = SimpleNamespace(call_soon_threadsafe=lambda call, *values: call(*values))
    assert asyncio.run(responds(loop))
