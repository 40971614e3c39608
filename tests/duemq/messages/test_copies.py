"""Copies of messages: found as soon as they are stored; malformed requests are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from duemq.auth.signature import Credentials
from duemq_common.bodies.copies import KEYS_MAX, CopiesRequest, CopiesResponse
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from tests.support.accounts import KEYS, ROOT, prepare_all, user_steps
from tests.support.running_broker import BrokerClient, connected, running, small

MARK = "COPY_OF"
READER = Credentials("reader", "reader-secret")


async def copies(remote: BrokerClient, topic: str, *keys: str) -> list[list[str]]:
    """Return the marks of the copies of messages."""
    response = await response_to(remote, topic, CopiesRequest(MARK, [key.encode() for key in keys]))
    assert response.code == ResponseCode.SUCCESS, response.remark
    return msgspec.msgpack.decode(bytes(response.body), type=CopiesResponse).marks


async def response_to(remote: BrokerClient, topic: str, request: object) -> Response:
    """Return the response to a request for copies."""
    body = msgspec.msgpack.encode(request)
    return await remote.call(RequestCode.FIND_COPIES, {"topic": topic}, body)


def test_copies_are_found_as_soon_as_they_are_stored(tmp_path: Path) -> None:
    """Messages with the id as a key, of other topics, or without the mark are no copies."""

    async def main() -> None:
        async with running(small(tmp_path)) as (_, remote):
            await remote.send("T", b"first", UNIQ_KEY="u")
            assert await copies(remote, "T", "u", "v") == [[], []]
            for number in range(3):
                await remote.send("T", b"copy", UNIQ_KEY="u", COPY_OF=f"u{number}")
                marks = [f"u{each}" for each in range(number + 1)]
                assert await copies(remote, "T", "v", "u") == [[], marks]
            await remote.send("T", b"key", UNIQ_KEY="w", KEYS="u", COPY_OF="x")
            await remote.send("U", b"topic", UNIQ_KEY="u", COPY_OF="y")
            assert await copies(remote, "T", "u", "w", "u") == [marks, ["x"], marks]
            assert await copies(remote, "absent", "u") == [[]]

    asyncio.run(main())


def test_all_copies_are_examined_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of a Java client's batch share one id: a copy that is left out is sent again."""

    async def main() -> None:
        async with running(small(tmp_path)) as (_, remote):
            marks = [f"{number}" for number in range(70)]
            for mark in marks:
                await remote.send("T", b"copy", UNIQ_KEY="u", COPY_OF=mark)
            monkeypatch.setattr("duemq.messages.copies.COPIES_MAX", 70)
            assert await copies(remote, "T", "u", "v", "u") == [marks, [], marks]
            await remote.send("T", b"copy", UNIQ_KEY="v", COPY_OF="x")
            request = CopiesRequest(MARK, [b"u", b"v"])
            refused = await response_to(remote, "T", request)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "more than 70 messages of T have these ids" in str(refused.remark)

    asyncio.run(main())


def test_malformed_requests_are_refused(tmp_path: Path) -> None:
    malformed = (
        CopiesRequest(MARK, []),
        CopiesRequest(MARK, [b"k"] * (KEYS_MAX + 1)),
        CopiesRequest(MARK, [b"k" * 256]),
        CopiesRequest(MARK, [b""]),
        CopiesRequest(MARK, [b"\xff"]),
        CopiesRequest("", [b"k"]),
        CopiesRequest("m" * 256, [b"k"]),
        [MARK, [b"k"], 1],
        {"mark": MARK},
        "text",
    )

    async def main() -> None:
        async with running(small(tmp_path)) as (_, remote):
            for request in malformed:
                response = await response_to(remote, "T", request)
                assert response.code == ResponseCode.MESSAGE_ILLEGAL, request
            internal = await response_to(remote, "rmq_sys_wheel_timer", CopiesRequest(MARK, [b"k"]))
            assert internal.code == ResponseCode.NO_PERMISSION

    asyncio.run(main())


def test_copies_are_for_accounts_that_may_read_the_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(small(tmp_path, **KEYS)) as (broker, _):
            await prepare_all(broker.address, ROOT, user_steps(READER, {"Topic:T": ["Sub"]}))
            async with connected(broker.address, READER) as remote:
                codes = [
                    (await response_to(remote, topic, CopiesRequest(MARK, [b"k"]))).code
                    for topic in ("T", "U")
                ]
            assert codes == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]

    asyncio.run(main())
