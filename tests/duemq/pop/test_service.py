"""POP over a connection: what a client of Apache's sees, at which time."""

from __future__ import annotations

import asyncio

import pytest

from message_store.clock import FakeClock
from tests.support.pop_client import PopClient, advance
from tests.support.running_broker import running, small

RETRY = "%RETRY%g_T"


@pytest.fixture
def world(tmp_path):
    """Run a scene with a broker, its clock and a client of group g."""

    def run(scene, **keys):
        clock = FakeClock()

        async def main():
            async with running(small(tmp_path, **keys), clock=clock) as (broker, asker):
                return await scene(broker, clock, asker, PopClient(asker, clock))

        return asyncio.run(main())

    return run


async def send(asker, *bodies, topic="T", **properties):
    for body in bodies:
        assert (await asker.send(topic, body, **properties)).code == 0


def test_messages_that_are_acknowledged_never_come_back(world):
    async def scene(broker, clock, asker, client):
        await send(asker, b"a", b"b")
        found = await client.pop()
        assert [message.body for message in found] == [b"a", b"b"]
        assert await client.pop() == []
        for message in found:
            assert (await client.ack(message)).code == 0
        await advance(broker, clock, 70_000)
        assert await client.pop() == []
        assert broker.store.queue_bounds(RETRY, 0) == (0, 0)

    world(scene)


def test_others_are_visible_again_at_their_time(world):
    async def scene(broker, clock, asker, client):
        await send(asker, b"a", b"b", b"c")
        popped_ms = clock.now_ms()
        first, second, third = await client.pop(invisibleTime=30_000)
        assert (await client.ack(second)).code == 0
        await advance(broker, clock, 29_990)
        assert await client.pop() == []
        await advance(broker, clock, 100, by_ms=5)
        again = await client.pop()
        assert [message.body for message in again] == [b"a", b"c"]
        assert {message.record.reconsume_times for message in again} == {1}
        assert {message.record.topic for message in again} == {"T"}
        assert {message.record.properties["1ST_POP_TIME"] for message in again} == {str(popped_ms)}
        for message in again:
            assert (await client.ack(message)).code == 0
        await advance(broker, clock, 70_000)
        assert await client.pop() == []

    world(scene)


def test_a_waiting_pop_gets_what_arrives_or_is_visible_again(world):
    async def scene(broker, clock, asker, client):
        await send(asker, b"a")
        await client.pop(invisibleTime=10_000)
        waiting = asyncio.create_task(client.pop(pollTime=30_000))
        await advance(broker, clock, 9_900)
        assert not waiting.done()
        await advance(broker, clock, 200, by_ms=10)
        assert [message.body for message in await waiting] == [b"a"]
        waiting = asyncio.create_task(client.pop(pollTime=30_000))
        await advance(broker, clock, 1_000)
        await send(asker, b"b")
        assert [message.body for message in await waiting] == [b"b"]

    world(scene)
