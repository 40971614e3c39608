"""History requests about names that no message has: searches of all topics on a busy broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delayed_delivery import steps
from duemq.auth.request_table import LONG_READS, ROWS
from duemq.broker.broker import Broker
from duemq.client import Client, Unreachable
from duemq.messages import history_request
from duemq.messages.history_request import TOPICS_PER_TURN, HistoryProcessor
from duemq_common.bodies.histories import HistoryRequest, HistoryResponse, OpenPop
from duemq_common.codes import RequestCode
from duemq_common.request import Request, Response
from message_store.index.key_search import Matches, search
from message_store.log.record import Record
from message_store.store import MessageStore
from tests.support.raw_connection import WAIT_S
from tests.support.running_broker import small
from tests.support.stores import open_store, put_one

PIECES = 100


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with open_store(tmp_path) as opened:
        for number in range(PIECES * TOPICS_PER_TURN):
            opened.topics.add(f"t{number}")
        yield opened


@pytest.fixture
def processor(store: MessageStore) -> HistoryProcessor:
    async def open_pops(records: Sequence[Record]) -> tuple[dict[int, list[OpenPop]], bool]:
        return {}, False

    return HistoryProcessor(store, list, lambda queue_offset: True, open_pops)


def request(name: str) -> Request:
    return Request(RequestCode.FIND_MESSAGE, {}, msgspec.json.encode(HistoryRequest(name)))


def test_a_search_of_all_topics_takes_few_turns(
    processor: HistoryProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_s = 0.0

    def processor_s() -> float:
        nonlocal used_s
        used_s += 0.001  # of a search
        return used_s

    monkeypatch.setattr(steps, "thread_processor_s", processor_s)

    async def main() -> int:
        nonlocal used_s
        task, turns = asyncio.create_task(processor.find(request("absent"))), 0
        while not task.done():
            used_s += 0.2
            turns += 1
            await asyncio.sleep(0)
        assert task.result().code == 0
        return turns

    assert asyncio.run(main()) < PIECES / 2


def test_one_request_at_a_time_searches_all_topics(
    store: MessageStore, processor: HistoryProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has no response in time repeats its request."""
    searched = list[str]()
    put_one(store, "t7", properties={"UNIQ_KEY": "last"})

    async def recorded(store: Any, topics: Sequence[str], keys: Sequence[str]) -> Matches:
        if len(topics) == TOPICS_PER_TURN:
            searched.append(keys[0])
        return await search(store, topics, keys)

    monkeypatch.setattr(history_request, "search", recorded)
    names = ["first", "first", "last"]

    async def main() -> list[HistoryResponse]:
        responses = await asyncio.gather(*(processor.find(request(name)) for name in names))
        bodies = [bytes(response.body) for response in responses]
        return [msgspec.json.decode(body, type=HistoryResponse) for body in bodies]

    found = asyncio.run(main())
    assert [len(response.messages) for response in found] == [0, 0, 1]
    assert searched[: 3 * PIECES] == [name for name in names for _ in range(PIECES)]


def test_a_request_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def find(self: HistoryProcessor, request: Request) -> Response:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return Response()

        monkeypatch.setattr(HistoryProcessor, "find", find)
        async with (
            Broker(small(tmp_path)) as broker,
            Client(broker=broker.address, timeout_s=WAIT_S) as client,
        ):
            call = asyncio.create_task(client.call(broker.address, RequestCode.FIND_MESSAGE))
            async with asyncio.timeout(WAIT_S):
                await begun.wait()
                (await client.connect(broker.address)).abort()
                await ended.wait()
            with pytest.raises(Unreachable):
                await call

    asyncio.run(main())


def test_long_reads_change_nothing() -> None:
    assert not any(ROWS[code].changes_resources for code in LONG_READS)
