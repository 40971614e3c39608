"""SYNC_FLUSH on a disk that takes its time: what is answered, and what consumers are given."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq_common import json_dialect
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from message_store.log.commit_log import LogFile
from tests.support.replica_rig import until
from tests.support.running_broker import BrokerClient, running, small

TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
COMMIT = 8
SHORT = "syncFlushTimeout=200"  # while the disk does not sync
LONG = "syncFlushTimeout=60000"  # while it does, perhaps on a busy machine
GATE_S_MAX = 60  # so that a failed test ends


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While the event is not set, nothing of the log is synced."""
    gate, sync = threading.Event(), LogFile.sync
    gate.set()

    def gated(file: LogFile) -> None:
        gate.wait(GATE_S_MAX)
        sync(file)

    monkeypatch.setattr(LogFile, "sync", gated)
    return gate


def offset_of(sent: Response) -> int:
    assert sent.fields is not None
    return int(sent.fields["msgId"][-16:], 16)


async def holds(broker: Broker, count: int) -> None:
    """Let the broker work until it holds so many pulls."""
    await until(lambda: len(broker.parts.long_polls) >= count)


async def configure(client: BrokerClient, line: str) -> None:
    """Change a key of the running broker."""
    response = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=line.encode())
    assert response.code == 0, response.remark


async def send_back(client: BrokerClient, offset: int) -> Response:
    fields = {"offset": offset, "group": "g", "delayLevel": 3, "originTopic": "T"}
    return await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def commit(client: BrokerClient, half: Response) -> Response:
    assert half.fields is not None
    fields = {
        "producerGroup": "p",
        "commitLogOffset": offset_of(half),
        "commitOrRollback": COMMIT,
        "tranStateTableOffset": half.fields["queueOffset"],
        "fromTransactionCheck": "false",
        "msgId": "TX",
        "transactionId": "TX",
    }
    return await client.call(RequestCode.END_TRANSACTION, fields)


async def consumed(client: BrokerClient) -> int | None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "setZeroIfNotFound": "false"}
    response = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return None if response.fields is None else int(response.fields.get("offset", -1))


async def consume(client: BrokerClient, offset: int) -> None:
    beyond = await client.pull("T", 99)  # makes the group
    assert beyond.code == ResponseCode.PULL_OFFSET_MOVED
    fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
    assert (await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0


@pytest.mark.finding("A12")
def test_no_success_is_answered_for_what_is_not_on_the_disk(
    tmp_path: Path, disk: threading.Event
) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, flushDiskType="SYNC_FLUSH")) as (_, client):
            await configure(client, LONG)
            sent = await client.send("T", b"x")
            half = await client.send("T", b"t", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="TX")
            assert (await send_back(client, offset_of(sent))).code == 0  # its topics are there now
            await configure(client, SHORT)
            disk.clear()
            assert (await client.send("T", b"y")).code == TIMEOUT
            assert (await send_back(client, offset_of(sent))).code == TIMEOUT
            assert (await commit(client, half)).code == TIMEOUT
            assert (await commit(client, half)).code == TIMEOUT  # ended before, still not synced
            disk.set()
            await configure(client, LONG)
            again = await commit(client, half)
            assert (again.code, "finished already" in (again.remark or "")) == (0, True)

    asyncio.run(scene())


@pytest.mark.finding("E3")
def test_consumers_are_given_what_is_on_the_disk_as_soon_as_it_is(
    tmp_path: Path, disk: threading.Event
) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, flushDiskType="SYNC_FLUSH")) as (broker, client):
            await configure(client, LONG)
            assert (await client.send("T", b"first")).code == 0
            held_before = asyncio.create_task(client.pull("T", 1))
            await holds(broker, 1)
            await configure(client, SHORT)
            disk.clear()
            assert (await client.send("T", b"second")).code == TIMEOUT
            held_after = asyncio.create_task(client.pull("T", 1, group="h"))
            await holds(broker, 2)
            place = {"topic": "T", "queueId": 0}
            reported = [
                await client.call(RequestCode.GET_MAX_OFFSET, place),
                await client.call(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place | {"timestamp": 10**15}
                ),
            ]
            assert [(response.fields or {})["offset"] for response in reported] == ["1", "1"]
            stats = await client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            assert b'"maxOffset":1,' in bytes(stats.body)
            assert not held_before.done() | held_after.done()
            disk.set()
            for response in (await held_before, await held_after):
                assert (response.code, b"second" in bytes(response.body)) == (0, True)
                assert (response.fields or {})["maxOffset"] == "2"

    asyncio.run(scene())


@pytest.mark.finding("E3")
def test_with_async_flush_nobody_waits_for_the_disk(tmp_path: Path, disk: threading.Event) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, flushDiskType="ASYNC_FLUSH")) as (broker, client):
            assert (await client.send("T", b"first")).code == 0
            held = asyncio.create_task(client.pull("T", 1))
            await holds(broker, 1)
            disk.clear()
            assert (await client.send("T", b"second")).code == 0
            assert (await held).code == 0
            assert broker.store.durable_offset < broker.store.max_offset
            disk.set()

    asyncio.run(scene())


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.finding("P:consumer-offsets-pass-the-durable-log")
def test_the_file_of_offsets_waits_for_the_log(
    tmp_path: Path, disk: threading.Event, flush: str
) -> None:
    path = tmp_path / "store/config/consumerOffset.json"

    async def scene() -> None:
        async with running(small(tmp_path, flushDiskType=flush)) as (broker, client):
            offsets = broker.parts.offsets
            await configure(client, SHORT)
            disk.clear()
            await client.send("T", b"x")
            await consume(client, 1)
            await offsets.save()  # the disk does not follow in time: nothing is written
            assert not path.exists() or '"T@g"' not in path.read_text()
            disk.set()
            await configure(client, LONG)
            await offsets.save()
            assert json_dialect.loads(path.read_text())["offsetTable"]["T@g"] == {0: 1}

    asyncio.run(scene())


@pytest.mark.finding("P:consumer-offsets-pass-the-durable-log")
def test_an_offset_after_its_queues_end_is_set_to_the_end_at_a_start(tmp_path: Path) -> None:
    """Else messages stored later, with the offsets between, would never be given."""

    async def before() -> None:
        async with running(small(tmp_path)) as (_, client):
            assert (await client.send("T", b"x")).code == 0
            await consume(client, 7)

    async def after() -> None:
        async with running(small(tmp_path)) as (_, client):
            assert await consumed(client) == 1

    asyncio.run(before())
    path = tmp_path / "store/config/consumerOffset.json"
    assert "7" in json.dumps(json_dialect.loads(path.read_text())["offsetTable"])
    asyncio.run(after())
