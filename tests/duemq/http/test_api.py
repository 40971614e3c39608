"""The HTTP API of a broker: sends, pending messages, decisions, errors."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from duemq.broker.broker import Broker
from duemq.http.connection import ConnectionLimits
from duemq.http.endpoints import BODY_BYTES_MAX
from duemq.http.pending import described
from tests.duemq.http.rig import api
from tests.support.accounts import KEYS, ROOT
from tests.support.raw_connection import WAIT_S

Scene = Callable[[Broker, httpx.AsyncClient], Awaitable[Any]]
HOUR_MS = 3_600_000
JSON_TYPE = {"Content-Type": "application/json"}
SURROGATE = rb'{"topic": "T", "body": "\ud800"}'


def serve(root: Path, scene: Scene, **more: Any) -> Any:
    async def main() -> Any:
        async with api(root, **more) as (broker, client):
            return await scene(broker, client)

    return asyncio.run(main())


async def sent(client: httpx.AsyncClient, **message: Any) -> dict[str, Any]:
    response = await client.post("/api/v1/messages", json={"topic": "T", "body": "b", **message})
    assert response.status_code == 201, response.text
    return dict(response.json())


def test_messages_are_sent_listed_moved_fired_and_cancelled(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        await sent(client)
        first = await sent(client, delay_ms=HOUR_MS, keys=["a"])
        second = await sent(client, deliver_at="2099-01-01T00:00:00+01:00", tag="t")
        third = await sent(client, delay_ms=HOUR_MS * 2, properties={"n": "1"})
        page = (await client.get("/api/v1/pending", params={"limit": 2})).json()
        assert [each["unique_key"] for each in page["messages"]] == [
            first["message_id"],
            third["message_id"],
        ]
        rest = await client.get("/api/v1/pending", params={"cursor": page["cursor"]})
        assert [each["unique_key"] for each in rest.json()["messages"]] == [second["message_id"]]

        names = {"ids": [second["message_id"]], "topic": "T"}
        moved = await client.post("/api/v1/pending/move", json={**names, "delay_ms": HOUR_MS})
        assert moved.json()["results"][0]["verdict"] == "done"
        fired = await client.post(
            "/api/v1/pending/fire", json={"ids": [third["message_id"]], "topic": "T"}
        )
        assert fired.json()["results"][0]["verdict"] == "done"
        dry = await client.post("/api/v1/pending/cancel", json={"topic": "T", "dry_run": True})
        assert dry.json()["results"][0]["messages"] == 2
        cancelled = await client.post("/api/v1/pending/cancel", json={"keys": ["a"], "topic": "T"})
        assert cancelled.json()["results"][0]["messages"] == 1
        shown = (await client.get(f"/api/v1/messages/{first['message_id']}")).json()
        assert [each["state"] for each in shown["messages"]] == ["cancelled"]

    serve(tmp_path, scene, timerMaxDelaySec=str(10**10))


def test_pending_messages_of_levels_and_open_pops_are_listed(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        async def listed(**query: Any) -> list[dict[str, Any]]:
            rows, cursor = [], ""
            while cursor is not None:
                response = await client.get("/api/v1/pending", params={**query, "cursor": cursor})
                assert response.status_code == 200, response.text
                rows += response.json()["messages"]
                cursor = response.json()["cursor"]
            return rows

        ids = [(await sent(client, level=level, keys=["k"]))["message_id"] for level in (9, 5, 9)]
        timer = await sent(client, delay_ms=HOUR_MS)
        order = [ids[1], ids[0], ids[2], timer["message_id"]]
        for limit in (1, 2, 3, 100):
            rows = await listed(limit=limit)
            assert [row["unique_key"] for row in rows] == order
        assert [(row["kind"], row.get("level")) for row in rows[1:]] == [
            ("level", 9),
            ("level", 9),
            ("timer", None),
        ]
        assert {row["broker"] for row in rows} == {"test"}
        assert [row["unique_key"] for row in await listed(kind="timers")] == order[3:]
        assert [row["unique_key"] for row in await listed(key="k", limit=2)] == ids
        assert await listed(topic="other") == []
        assert await listed(kind="levels", until_ms=1) == []
        await client.post("/api/v1/pending/cancel", json={"ids": [ids[0]], "topic": "T"})
        assert [row["unique_key"] for row in await listed(kind="levels")] == [ids[1], ids[2]]

    serve(tmp_path, scene)


def test_messages_with_a_key_are_listed_in_pages(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path) as (_, client):
            sent = []
            for number in range(10):
                when = {"level": 17} if number % 2 else {"delay_ms": HOUR_MS + number}
                message = {"topic": "T", "body": "b", "keys": ["campaign"], **when}
                response = await client.post("/api/v1/messages", json=message)
                sent.append(response.json()["message_id"])
            listed, cursor = [], ""
            while cursor is not None:
                query = {"key": "campaign", "limit": "2", "cursor": cursor}
                page = (await client.get("/api/v1/pending", params=query)).json()
                assert len(page["messages"]) <= 2
                listed += [message["unique_key"] for message in page["messages"]]
                cursor = page["cursor"]
            assert listed == sent[1::2] + sent[::2]

    asyncio.run(main())


def test_keys_that_cannot_be_looked_up_are_not_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with api(tmp_path, messageIndexEnable="false") as (_, client):
            response = await client.get("/api/v1/pending?key=k")
            assert response.status_code == 502
            assert "messageIndexEnable is false" in response.json()["detail"]

    asyncio.run(main())


def test_names_may_contain_slashes(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        message = await sent(client, keys=["orders/7", "50%"])
        for name in ("orders%2F7", "orders/7", "50%25"):
            [found] = (await client.get(f"/api/v1/messages/{name}")).json()["messages"]
            assert found["unique_key"] == message["message_id"]
        for name in ("a/b", "a/pause"):
            new = {"name": name, "topic": "T", "every_ms": HOUR_MS, "body": "Yg=="}
            assert (await client.post("/api/v1/schedules", json=new)).json()["created"]
            path = f"/api/v1/schedules/{name}"
            assert (await client.get(path)).json()["definition"]["name"] == name
            assert (await client.post(f"{path}/pause")).json()["state"] == "paused"
            assert (await client.delete(path)).json()["state"] == "deleted"

    serve(tmp_path, scene)


def test_the_checkpoint_of_a_pop_is_described_as_the_popped_message() -> None:
    shown = described({"topic": "rmq_sys_REVIVE_LOG_c", "unique_key": "T@3@7@G@1000@b@ck"})
    assert (shown["kind"], shown["topic"], shown["queue_id"]) == ("pop", "T", 3)
    assert (shown["queue_offset"], shown["group"], shown["popped_ms"]) == (7, "G", 1_000)
    assert described({"topic": "T", "unique_key": "T@3@7@G@1000@b@ck"})["kind"] == "timer"


def test_a_batch_has_one_result_for_each_message(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        encoded = base64.b64encode(b"\0\1").decode()
        messages = [
            {"topic": "T", "body": "x"},
            {"topic": "T", "body_base64": encoded, "level": 3},
            {"topic": "a b", "body": "x"},
            {"topic": "T", "body": "x", "level": 3, "delay_ms": 1},
        ]
        response = await client.post("/api/v1/messages/batch", json={"messages": messages})
        result = response.json()
        assert result["stored"] == 2
        statuses = [each.get("problem", {}).get("status", 201) for each in result["results"]]
        assert statuses == [201, 201, 400, 400]

    serve(tmp_path, scene)


@pytest.mark.parametrize(
    ("method", "path", "request_body", "status", "detail"),
    [
        ("GET", "/api/v2/x", {}, 404, "/api/v2/x"),
        ("DELETE", "/api/v1/pending", {}, 405, "DELETE"),
        ("GET", "/api/v1/pending?limit=0", {}, 400, "limit"),
        ("GET", "/api/v1/pending?limit=many", {}, 400, "limit"),
        ("GET", "/api/v1/pending?limits=1", {}, 400, "limits"),
        ("GET", "/api/v1/pending?topic=a&topic=b", {}, 400, "twice"),
        ("GET", "/api/v1/pending?cursor=9.1", {}, 400, "give that of the page before"),
        ("GET", "/api/v1/pending?cursor=0.x", {}, 400, "give that of the page before"),
        ("GET", "/api/v1/pending?cursor=1.0_0_0", {}, 400, "cursor"),
        ("GET", "/api/v1/pending?kind=pops", {}, 400, "kind"),
        ("GET", "/api/v1/messages/no-such-name", {}, 404, "no-such-name"),
        ("GET", "/api/v1/messages/%7Bname%7D", {}, 404, "{name}"),
        ("GET", "/api/v1/groups/%7Bname%7D", {}, 404, "{name}"),
        ("GET", "/api/v1/groups/a/b", {}, 404, "/api/v1/groups/a/b"),
        ("POST", "/api/v1/messages", {"content": b"{}"}, 415, "application/json"),
        ("POST", "/api/v1/messages", {"json": {}}, 400, "topic"),
        ("POST", "/api/v1/messages", {"json": {"topic": "T", "x": 1}}, 400, "x"),
        ("POST", "/api/v1/messages", {"json": {"topic": "T"}}, 400, "body"),
        ("POST", "/api/v1/messages", {"content": SURROGATE, "headers": JSON_TYPE}, 400, ""),
        (
            "POST",
            "/api/v1/messages",
            {"json": {"topic": "T", "body": "b", "deliver_at": "2030-01-01T00:00:00"}},
            400,
            "timezone",
        ),
        ("POST", "/api/v1/messages", {"json": {"topic": "T" * 200, "body": "b"}}, 400, "127"),
        ("POST", "/api/v1/pending/cancel", {"json": {}}, 400, "no messages selected"),
        ("POST", "/api/v1/pending/move", {"json": {"topic": "T"}}, 400, "deliver_at"),
    ],
)
def test_invalid_requests_are_problems(
    shared_api: httpx.Client,
    method: str,
    path: str,
    request_body: dict[str, Any],
    status: int,
    detail: str,
) -> None:
    response = shared_api.request(method, path, **request_body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert detail in response.text


def test_a_body_that_is_too_long_is_refused(shared_api: httpx.Client) -> None:
    long = b" " * (BODY_BYTES_MAX + 1)
    for content in (long, iter([long])):  # with Content-Length, and in chunks
        response = shared_api.post("/api/v1/messages", content=content, headers=JSON_TYPE)
        assert response.status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"X-Forwarded-For": "192.0.2.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Forwarded-Host": "localhost"},
        {"Via": "1.1 proxy"},
    ],
)
def test_without_accounts_other_sites_and_proxies_are_refused(
    shared_api: httpx.Client, headers: dict[str, str]
) -> None:
    assert shared_api.get("/api/v1/pending", headers=headers).status_code == 403
    assert shared_api.get("/livez").status_code == 200


@pytest.mark.usefixtures("lasting_failures")
def test_accounts_of_the_broker_decide(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        await sent(client)
        for auth in (("root", "wrong"), ("unknown", "x"), ("", "")):
            response = await client.get("/api/v1/pending", auth=auth)
            assert response.status_code == 401
            assert response.headers["www-authenticate"].startswith("Basic")
        for text in ("Bearer x", "Bearer", "Basic", "Basic !", "Basic bm9jb2xvbg==", "Digest x"):
            response = await client.get(
                "/api/v1/pending", headers={"Authorization": text}, auth=None
            )
            assert response.status_code == 401
        for _ in range(10):
            last = await client.get("/api/v1/pending", auth=("root", "guess"))
        assert last.status_code == 429
        assert int(last.headers["retry-after"]) > 0

    serve(tmp_path, scene, auth=(ROOT.access_key, ROOT.secret), **KEYS)


def test_a_caller_above_its_rate_waits(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        responses = await asyncio.gather(*(client.get("/api/v1/pending") for _ in range(20)))
        statuses = Counter(response.status_code for response in responses)
        assert statuses[200] >= 2
        assert statuses[429] == 20 - statuses[200] > 0

    serve(tmp_path, scene, consoleRateMax="2")


def test_the_trace_context_of_a_request_is_a_property_of_the_message(tmp_path: Path) -> None:
    context = f"00-{'a' * 32}-{'b' * 16}-01"

    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        async def context_of(sent_context: str, *, key: str = "", **message: Any) -> str | None:
            headers = {"traceparent": sent_context} | ({"Idempotency-Key": key} if key else {})
            body = {"topic": "T", "body": "b", **message}
            response = await client.post("/api/v1/messages", json=body, headers=headers)
            assert response.status_code == 201, response.text
            path = f"/api/v1/messages/{response.json()['message_id']}"
            [stored] = (await client.get(path)).json()["messages"]
            return stored["properties"].get("traceparent")

        assert await context_of(context) == context
        assert await context_of(context, key="k") == context
        assert await context_of(context[:-2] + "00", key="k") == context  # a repeat
        assert await context_of("invalid") is None
        assert await context_of(context, properties={"traceparent": "own"}) == "own"

    serve(tmp_path, scene)


HALF_BODY = b'{"topic": "T", "body": "half'


def head_of(length: str) -> bytes:
    lines = ["POST /api/v1/messages HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*lines, length, "", ""]).encode()


@pytest.mark.parametrize(
    ("head", "part"),
    [
        (head_of("Content-Length: 1000"), HALF_BODY),
        (head_of("Transfer-Encoding: chunked"), b"1c\r\n" + HALF_BODY + b"\r\n"),
        (head_of("Content-Length: 1000"), b""),
    ],
    ids=["length", "chunks", "head"],
)
def test_a_message_whose_body_is_incomplete_is_not_sent(
    tmp_path: Path, head: bytes, part: bytes
) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        await client.post("/api/v1/topics", json={"name": "T"})
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.console_port)
        writer.write(head + part)
        await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
        state = (await client.get("/api/v1/topics/T")).json()
        assert sum(queue["max_offset"] for queue in state["queues"]) == 0

    serve(tmp_path, scene)


def test_a_body_that_never_ends_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duemq.http.port_server.ConnectionLimits", brief_limits)

    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.console_port)
        writer.write(head_of("Content-Length: 1000") + HALF_BODY)
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()

    serve(tmp_path, scene)


@pytest.mark.parametrize("part", [HALF_BODY, b""], ids=["body", "head"])
def test_a_request_that_is_incomplete_does_not_delay_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: bytes
) -> None:
    async def main() -> None:
        async with api(tmp_path) as (broker, client):
            _, writer = await asyncio.open_connection("127.0.0.1", broker.console_port)
            writer.write(head_of("Content-Length: 1000") + part)
            await writer.drain()
            assert (await client.get("/api/v1/brokers")).is_success  # read after the incomplete one
        writer.close()

    with caplog.at_level(logging.WARNING, "uvicorn.error"):
        asyncio.run(main())
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]


def brief_limits(connections_max: int) -> ConnectionLimits:
    return ConnectionLimits(connections_max, request_s=0.05)


@pytest.mark.usefixtures("lasting_failures")
def test_headers_of_a_configured_proxy_name_the_client(tmp_path: Path) -> None:
    """Failed logins are counted by the address of the client, not of the proxy."""

    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        guess, right = ("root", "wrong"), (ROOT.access_key, ROOT.secret)

        async def status(address: str, auth: tuple[str, str]) -> int:
            headers = {"X-Forwarded-For": address}
            return (await client.get("/api/v1/topics", auth=auth, headers=headers)).status_code

        for _ in range(11):
            last = await status("192.0.2.1", guess)
        assert last == 429
        assert await status("192.0.2.1", right) == 429
        assert await status("198.51.100.1, 192.0.2.1", right) == 429  # the client added the first
        assert await status("192.0.2.2", right) == 200
        assert (await client.get("/api/v1/topics")).status_code == 200

    keys = {**KEYS, "consoleProxies": "10.0.0.0/8"}
    serve(tmp_path, scene, auth=(ROOT.access_key, ROOT.secret), **keys)


@pytest.mark.usefixtures("lasting_failures")
def test_headers_of_other_proxies_are_not_used(tmp_path: Path) -> None:
    async def scene(broker: Broker, client: httpx.AsyncClient) -> None:
        for number in range(12):
            headers = {"X-Forwarded-For": f"192.0.2.{number}"}
            response = await client.get("/api/v1/topics", auth=("root", "wrong"), headers=headers)
        assert response.status_code == 429

    serve(tmp_path, scene, auth=(ROOT.access_key, ROOT.secret), **KEYS)
