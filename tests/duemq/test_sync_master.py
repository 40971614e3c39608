"""SYNC_MASTER: what is answered, delivered and read while replicas acknowledge, and while not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from duemq.broker.broker import Broker
from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode, ResponseCode
from duemq_common.request import Response
from tests.duemq.replication.test_ha_client import until
from tests.duemq.test_sync_flush import commit, configure, holds, offset_of, send_back
from tests.support.ha_peer import Peer, following
from tests.support.running_broker import BrokerClient, running, small

NO_REPLICA, TIMEOUT = ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT
SYNC = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "60000", "messageDelayLevel": "1s 5s"}
SHORT = "slaveTimeout=100"  # while a replica does not acknowledge
QUEUE = {"topic": "T", "queueId": 0}
FLUSH = pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])


async def connected(broker: Broker, count: int = 1) -> None:
    """Return when so many replicas have acknowledged all of the log."""
    assert broker.parts.ha_server is not None
    server, end = broker.parts.ha_server, broker.store.max_offset
    await until(lambda: [each.acknowledged for each in server.connections] == [end or 1] * count)


async def withhold(client: BrokerClient, peer: Peer) -> None:
    """Stop the acknowledgements of a replica; messages wait only briefly for them."""
    await configure(client, SHORT)
    peer.acknowledges.clear()


async def resume(client: BrokerClient, peer: Peer) -> None:
    """Continue the acknowledgements; messages wait long for them, perhaps on a busy machine."""
    await configure(client, f"slaveTimeout={SYNC['slaveTimeout']}")
    peer.acknowledges.set()


async def readable(client: BrokerClient) -> int:
    """Return the number of messages in queue 0 that consumers may read."""
    response = await client.call(RequestCode.GET_MAX_OFFSET, QUEUE)
    return int((response.fields or {})["offset"])


async def decide(client: BrokerClient, code: int, unique: str) -> Response:
    command = {"topic": "T", "ids": [unique]}
    if code == RequestCode.MOVE_PENDING:
        command["delay_ms"] = 7_000_000  # type: ignore[assignment]
    return await client.call(code, body=json.dumps(command).encode())


@FLUSH
def test_a_send_is_answered_and_read_when_a_replica_has_it(tmp_path: Path, flush: str) -> None:
    async def scene() -> None:
        properties = small(tmp_path, **SYNC, flushDiskType=flush)
        async with running(properties) as (broker, client), following(broker.ha_port) as peer:
            assert (await client.send("T", b"first", UNIQ_KEY="a")).code in (0, NO_REPLICA)
            await connected(broker)
            held = asyncio.create_task(client.pull("T", 1))
            await holds(broker, 1)
            await withhold(client, peer)
            assert (await client.send("T", b"second", UNIQ_KEY="b")).code == TIMEOUT
            assert (await client.send("T", b"no wait", WAIT="false")).code == 0
            assert await readable(client) == 1
            assert not held.done()
            await resume(client, peer)
            assert b"second" in bytes((await held).body)
            await connected(broker)
            assert await readable(client) == 3
            assert (await client.send("T", b"third")).code == 0

    asyncio.run(scene())


def test_without_a_replica_messages_are_stored_answered_11_and_not_read(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, **SYNC)) as (broker, client):
            assert (await client.send("T", b"x")).code == NO_REPLICA
            assert (await client.send("T", b"x", WAIT="false")).code == 0
            assert await readable(client) == 0
            async with following(broker.ha_port):
                await connected(broker)
                assert await readable(client) == 2
            await until(lambda: not broker.parts.ha_server.connections)
            assert (await client.send("T", b"x")).code == NO_REPLICA
            assert await readable(client) == 2

    asyncio.run(scene())


def test_an_operator_may_continue_without_replicas(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, **SYNC)) as (_, client):
            assert (await client.send("T", b"x")).code == NO_REPLICA
            response = await client.call(
                RequestCode.UPDATE_BROKER_CONFIG, body=b"enableAutoInSyncReplicas=true"
            )
            assert response.code == 0
            assert (await client.send("T", b"x")).code == 0
            assert await readable(client) == 2

    asyncio.run(scene())


def test_below_the_minimum_nothing_is_stored(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path, **SYNC, minInSyncReplicas="2")) as (broker, client):
            refused = await client.send("T", b"x")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "in-sync replicas not enough: 1" in (refused.remark or "")
            assert broker.store.max_offset == 0
            shown = broker.parts.replication()
            assert shown["state"] == "refuses messages"
            assert "minInSyncReplicas is 2" in str(shown["refusal"])
            async with following(broker.ha_port):
                await until(lambda: broker.store.writable)
                assert (await client.send("T", b"x")).code == 0
                assert broker.parts.replication()["state"] == "serves"

    asyncio.run(scene())


def test_as_many_replicas_as_configured_must_acknowledge(tmp_path: Path) -> None:
    async def scene() -> None:
        properties = small(tmp_path, **SYNC, inSyncReplicas="3")
        async with running(properties) as (broker, client), following(broker.ha_port):
            await connected(broker)
            assert (await client.send("T", b"x")).code == NO_REPLICA
            async with following(broker.ha_port) as second:
                await connected(broker, 2)
                assert (await client.send("T", b"x")).code == 0
                await withhold(client, second)
                assert (await client.send("T", b"x")).code == TIMEOUT

    asyncio.run(scene())


async def pending(client: BrokerClient, peer: Peer) -> list[Response]:
    """Store messages that every kind of request below is about."""
    sent = [
        await client.send("T", b"x", UNIQ_KEY="X"),
        await client.send("T", b"t", TRAN_MSG="true", PGROUP="p", UNIQ_KEY="TX"),
        await client.send("T", b"level", DELAY="2", UNIQ_KEY="L1"),
        await client.send("T", b"level", DELAY="2", UNIQ_KEY="L2"),
        await client.send("T", b"timer", TIMER_DELAY_MS="3600000", UNIQ_KEY="T1"),
        await client.send("T", b"timer", TIMER_DELAY_MS="3600000", UNIQ_KEY="T2"),
        await client.send("T", b"timer", TIMER_DELAY_MS="3600000", UNIQ_KEY="T3"),
        await client.send("T", b"timer", TIMER_DELAY_MS="3600000", UNIQ_KEY="T4"),
    ]
    assert [each.code for each in sent] == [0] * len(sent)
    assert (await send_back(client, offset_of(sent[0]))).code == 0  # its topics are there now
    return sent


def test_every_change_of_a_client_waits_for_replicas(tmp_path: Path) -> None:
    async def scene() -> None:
        properties, clock = small(tmp_path, **SYNC, recallMessageEnable="true"), FakeClock()
        async with (
            running(properties, clock=clock) as (broker, client),
            following(broker.ha_port) as peer,
        ):
            assert (await client.send("T", b"x")).code in (0, NO_REPLICA)
            await connected(broker)
            sent = await pending(client, peer)
            await withhold(client, peer)
            responses = [
                await send_back(client, offset_of(sent[0])),
                await commit(client, sent[1]),
                await decide(client, RequestCode.CANCEL_PENDING, "L1"),
                await decide(client, RequestCode.MOVE_PENDING, "L2"),
                await decide(client, RequestCode.CANCEL_PENDING, "T1"),
                await decide(client, RequestCode.MOVE_PENDING, "T2"),
                await decide(client, RequestCode.FIRE_PENDING, "T3"),
                await client.call(
                    RequestCode.RECALL_MESSAGE,
                    {"topic": "T", "recallHandle": (sent[7].fields or {})["recallHandle"]},
                ),
            ]
            assert [each.code for each in responses] == [TIMEOUT] * len(responses)
            await resume(client, peer)
            await connected(broker)
            assert (await decide(client, RequestCode.CANCEL_PENDING, "T2")).code == 0

    asyncio.run(scene())


@pytest.mark.parametrize("mode", ["true", "false"])
def test_deliveries_are_read_when_a_replica_has_them(tmp_path: Path, mode: str) -> None:
    async def scene() -> None:
        clock = FakeClock()
        keys = {**SYNC, "enableScheduleAsyncDeliver": mode}
        async with (
            running(small(tmp_path, **keys), clock=clock) as (broker, client),
            following(broker.ha_port) as peer,
        ):
            await client.send("T", b"x")
            await connected(broker)
            for number in range(3):
                await client.send("T", b"level %d" % number, DELAY="1")
                await client.send("T", b"timer %d" % number, TIMER_DELAY_MS="2000")
            await connected(broker)
            peer.acknowledges.clear()
            end = broker.store.max_offset
            clock.advance(1_000)
            await until(lambda: broker.store.max_offset > end)
            end = broker.store.max_offset
            clock.advance(1_100)
            await until(lambda: broker.store.max_offset > end)
            assert await readable(client) == 1
            peer.acknowledges.set()
            await until(lambda: broker.store.queue_bounds("T", 0)[1] == 7)
            await connected(broker)
            assert await readable(client) == 7
            body = bytes((await client.pull("T", 1)).body)
            assert (
                sorted(
                    body.count(b"%s %d" % (k, n)) for k in (b"level", b"timer") for n in range(3)
                )
                == [1] * 6
            )

    asyncio.run(scene())


def test_in_async_master_a_slow_replica_delays_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(small(tmp_path)) as (broker, client), following(broker.ha_port) as peer:
            peer.acknowledges.clear()
            assert (await client.send("T", b"x")).code == 0
            assert await readable(client) == 1

    asyncio.run(scene())
