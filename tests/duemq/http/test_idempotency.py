"""Idempotency keys: a repeated request stores nothing, whatever happened to the first one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.auth.signature import Credentials
from duemq.client import Client
from duemq.client.connection import ServerConnection
from duemq.http.idempotency import KEY_MAX, unique_id_of
from duemq.http.standalone import ConsoleOptions, serving_console
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from tests.duemq.http.rig import api
from tests.support.accounts import KEYS, ROOT
from tests.support.running_broker import running, small

HOUR_MS = 3_600_000
PATH = "/api/v1/messages"
Calling = Callable[[ServerConnection, Request, float], Awaitable[Response]]


async def post(client: httpx.AsyncClient, key: str, **message: Any) -> httpx.Response:
    body = {"topic": "T", "body": "b", **message}
    return await client.post(PATH, json=body, headers={"Idempotency-Key": key})


async def count(client: httpx.AsyncClient, unique_id: str) -> int:
    shown = await client.get(f"{PATH}/{unique_id}")
    return len(shown.json()["messages"]) if shown.status_code == 200 else 0


@pytest.mark.sampled
@pytest.mark.parametrize("when", [{}, {"delay_ms": HOUR_MS}, {"level": 18}])
def test_a_repeat_returns_the_first_result(tmp_path: Path, when: dict[str, int]) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            first = (await post(client, "k", **when)).json()
            assert first["message_id"] == unique_id_of("", "T", "k")
            again = (await post(client, "k", **when)).json()
            assert again == {**first, "repeated": True}
            other = (await post(client, "k2", **when)).json()
            assert not other["repeated"]
            assert await count(client, first["message_id"]) == 1
        async with api(tmp_path) as (_, client):  # a new process: only the log knows the key
            reused = await post(client, "k", body="other", **when)
            assert reused.status_code == 422
            later = (await post(client, "k", **when)).json()
            assert later["repeated"]
            assert later["message_id"] == first["message_id"]
            reused = await post(client, "k", body="other", **when)
            assert reused.status_code == 422
            assert await count(client, first["message_id"]) == 1

    asyncio.run(main())


def test_a_cancelled_message_is_not_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            first = (await post(client, "k", delay_ms=HOUR_MS)).json()
            selection = {"ids": [first["message_id"]], "topic": "T"}
            await client.post("/api/v1/pending/cancel", json=selection)
        async with api(tmp_path) as (_, client):
            assert (await post(client, "k", delay_ms=HOUR_MS)).json()["repeated"]
            listed = await client.get("/api/v1/pending")
            assert listed.json()["messages"] == []

    asyncio.run(main())


def test_requests_at_the_same_time_store_one_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            responses = await asyncio.gather(*[post(client, "k") for _ in range(20)])
            results = [each.json() for each in responses]
            assert len({each["queue_offset"] for each in results}) == 1
            assert sum(not each["repeated"] for each in results) == 1
            assert await count(client, results[0]["message_id"]) == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_lost_response_is_found_by_the_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """The first send reaches the broker or not; in both cases its caller gets no response."""
    call: Calling = ServerConnection.call
    lost: list[Request] = []
    searches: list[Request] = []

    async def losing(connection: ServerConnection, request: Request, timeout_s: float) -> Response:
        if request.code == RequestCode.FIND_MESSAGE_OF_TOPIC:
            searches.append(request)
        if request.code == 310 and not lost:
            lost.append(request)
            if is_stored:
                await call(connection, request, timeout_s)
            raise TimeoutError
        return await call(connection, request, timeout_s)

    async def main() -> None:
        async with api(tmp_path) as (_, client):
            monkeypatch.setattr(ServerConnection, "call", losing)
            first = await post(client, "k", delay_ms=HOUR_MS)
            assert first.status_code == 503
            assert first.json()["message_id"] == unique_id_of("", "T", "k")
            again = await post(client, "k", delay_ms=HOUR_MS)
            assert again.json()["repeated"] == is_stored
            assert await count(client, again.json()["message_id"]) == 1
            assert len(searches) == (2 if is_stored else 3)  # the second of a repeat follows a turn

    asyncio.run(main())


def test_each_message_of_a_batch_has_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            messages = [{"topic": "T", "body": str(number)} for number in range(5)]
            for repeated in (False, True):
                response = await client.post(
                    f"{PATH}/batch", json={"messages": messages}, headers={"Idempotency-Key": "k"}
                )
                results = [each["message"] for each in response.json()["results"]]
                assert [each["repeated"] for each in results] == [repeated] * 5
            assert [await count(client, each["message_id"]) for each in results] == [1] * 5

    asyncio.run(main())


def test_accounts_do_not_share_keys(tmp_path: Path) -> None:
    async def main() -> None:
        auth = (ROOT.access_key, ROOT.secret)
        async with api(tmp_path, auth=auth, **KEYS) as (_, client):
            first = (await post(client, "k")).json()
            assert first["message_id"] == unique_id_of(ROOT.access_key, "T", "k")

    asyncio.run(main())
    assert unique_id_of("a", "T", "k") != unique_id_of("b", "T", "k")
    assert unique_id_of("a", "T", "k", 1) != unique_id_of("a", "T", "k1")


def test_a_repeat_with_a_wrong_secret_gets_no_result(tmp_path: Path) -> None:
    """In `duemq console`, only the brokers know the secrets."""

    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):

            def connect(credentials: Credentials | None) -> Client:
                return Client(broker=broker.address, credentials=credentials)

            options = ConsoleOptions(port=0, has_accounts=True)
            async with (
                serving_console(connect, options) as port,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
            ):
                client.auth = httpx.BasicAuth(ROOT.access_key, ROOT.secret)
                first = (await post(client, "k", delay_ms=HOUR_MS)).json()
                assert (await post(client, "k", delay_ms=HOUR_MS)).json()["repeated"]
                client.auth = httpx.BasicAuth(ROOT.access_key, "wrong")
                refused = await post(client, "k", delay_ms=HOUR_MS)
                assert refused.status_code == 403
                assert first["offset_message_id"] not in refused.text

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "x" * (KEY_MAX + 1), "\x7f"])
def test_malformed_keys_are_refused(shared_api: httpx.Client, key: str) -> None:
    body = {"topic": "T", "body": "b"}
    response = shared_api.post(PATH, json=body, headers={"Idempotency-Key": key})
    assert response.status_code == 400
