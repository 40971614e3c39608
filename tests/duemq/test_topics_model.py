"""Random histories of topics that are deleted and created again while messages are pending.

A message is visible once, in the topic that exists when it is due; otherwise it is in quarantine.
A group pops each message of a topic once, also after kills, and also if the topic has the name of a
deleted one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from duemq_common.topics import QUARANTINE_TOPIC
from message_store.log.record import decode_record
from tests.support.extended import one_in
from tests.support.killed_copy import copy_as_killed
from tests.support.pop_client import PopClient, rest
from tests.support.running_broker import BrokerClient, running, small
from tests.support.stores import records_of

TOPICS, QUEUES = ("T", "U"), 2
STEPS, STARTS = 20, 3
INVISIBLE_MS = 36_000_000
LEVEL_MS = {1: 1_000, 2: 5_000}


@dataclass
class TopicModel:
    """Messages of an existing topic that are visible, and those that the group has popped."""

    visible: set[bytes] = field(default_factory=set)
    popped: set[bytes] = field(default_factory=set)


class Model:
    """Random steps on a broker, and what it must have after each."""

    def __init__(self, clock: FakeClock, seed: int) -> None:
        self.clock, self.chance = clock, random.Random(seed)
        self.topics = {name: TopicModel() for name in TOPICS}
        self.pending: dict[bytes, tuple[str, int]] = {}  # topic and due time
        self.quarantined: set[bytes] = set()
        self.number = 0

    async def step(self, broker: Any, remote: BrokerClient) -> None:
        actions = [self.send, self.send, self.send, self.advance, self.pop, self.delete]
        actions += [self.create, self.create, self.persist, self.recreate, self.recreate]
        await self.chance.choice(actions)(broker, remote)
        self.deliver()
        await self.settle(broker)
        self.check(broker)

    async def send(self, broker: Any, remote: BrokerClient) -> None:
        name = self.chance.choice(TOPICS)
        if name not in self.topics:
            return
        for _ in range(self.chance.randint(1, 3)):
            body = b"%d" % self.number
            self.number += 1
            kind, properties = self.chance.choice(["now", "level", "timer"]), {}
            if kind == "level":
                level = self.chance.choice(list(LEVEL_MS))
                properties, delay_ms = {"DELAY": str(level)}, LEVEL_MS[level]
            elif kind == "timer":
                delay_ms = self.chance.choice([900, 4_000, 20_000])
                properties = {"TIMER_DELAY_MS": str(delay_ms)}
            assert (await remote.send(name, body, **properties)).code == 0
            if kind == "now":
                self.topics[name].visible.add(body)
            else:
                self.pending[body] = name, self.clock.now_ms() + delay_ms

    async def advance(self, broker: Any, remote: BrokerClient) -> None:
        for _ in range(self.chance.randint(1, 8)):
            self.clock.advance(1_000)
            self.deliver()
            await self.settle(broker)

    def deliver(self) -> None:
        now_ms = self.clock.now_ms()
        for body, (name, due_ms) in list(self.pending.items()):
            if due_ms <= now_ms:
                del self.pending[body]
                topic = self.topics.get(name)
                (self.quarantined if topic is None else topic.visible).add(body)

    @staticmethod
    async def settle(broker: Any) -> None:
        await rest(broker)
        levels = broker.plugins.plugins["schedule_service"].parts.service
        while not levels.is_idle:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def pop(self, broker: Any, remote: BrokerClient) -> None:
        name = self.chance.choice(TOPICS)
        if name in self.topics:
            await self.pop_from(name, remote)

    async def pop_from(self, name: str, remote: BrokerClient) -> None:
        topic = self.topics[name]
        client = PopClient(remote, self.clock)
        for each in await client.pop(name, invisibleTime=INVISIBLE_MS):
            assert each.body in topic.visible - topic.popped
            topic.popped.add(each.body)
            if self.chance.random() < 0.5:
                assert (await client.ack(each)).code == 0

    async def delete(self, broker: Any, remote: BrokerClient) -> None:
        await self.delete_one(self.chance.choice(TOPICS), remote)

    async def delete_one(self, name: str, remote: BrokerClient) -> None:
        deleted = await remote.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        assert deleted.code == 0
        self.topics.pop(name, None)

    async def create(self, broker: Any, remote: BrokerClient) -> None:
        await self.create_one(self.chance.choice(TOPICS), broker)

    async def create_one(self, name: str, broker: Any) -> None:
        await broker.parts.topics.ensure(name, queues=QUEUES)
        self.topics.setdefault(name, TopicModel())

    async def recreate(self, broker: Any, remote: BrokerClient) -> None:
        """Pop from all topics, write the tables, and put messages into topics of the same names."""
        for name in list(self.topics):
            await self.pop_from(name, remote)
        broker.parts.persist()
        for name in list(self.topics):
            await self.delete_one(name, remote)
            await self.create_one(name, broker)
        await self.send(broker, remote)

    async def persist(self, broker: Any, remote: BrokerClient) -> None:
        broker.parts.persist()

    def check(self, broker: Any) -> None:
        for name in TOPICS:
            records = [
                each for queue in range(QUEUES) for each in records_of(broker.store, name, queue)
            ]
            topic = self.topics.get(name, TopicModel())
            assert Counter(each.body for each in records) == Counter(topic.visible)
        records = records_of(broker.store, QUARANTINE_TOPIC, 0)
        sources = [decode_record(memoryview(each.body), 0) for each in records]
        assert Counter(each.body for each in sources) == Counter(self.quarantined)

    async def drain(self, broker: Any, remote: BrokerClient) -> None:
        """Check that the group gets all messages that it has not popped."""
        for name, topic in self.topics.items():
            client = PopClient(remote, self.clock)
            while popped := await client.pop(name, invisibleTime=INVISIBLE_MS):
                bodies = [each.body for each in popped]
                assert len(set(bodies)) == len(bodies)
                assert set(bodies) <= topic.visible - topic.popped
                topic.popped.update(bodies)
            assert topic.popped == topic.visible


@pytest.mark.parametrize("seed", one_in(30, range(30)))
def test_topics_are_deleted_and_created_again(tmp_path: Path, seed: int) -> None:
    model = Model(FakeClock(), seed)

    async def run(root: Path, *, is_last: bool) -> None:
        async with running(small(root), clock=model.clock) as (broker, remote):
            for name in model.topics:
                await broker.parts.topics.ensure(name, queues=QUEUES)
            await model.settle(broker)
            model.check(broker)
            for _ in range(STEPS):
                await model.step(broker, remote)
            if is_last or model.chance.random() < 0.3:
                await model.drain(broker, remote)
            copy = root.with_name(f"{root.name}+")  # as a killed process leaves it
            copy_as_killed(root, copy)

    root = tmp_path / "broker"
    for number in range(STARTS):
        asyncio.run(run(root, is_last=number == STARTS - 1))
        root = root.with_name(f"{root.name}+")
        model.clock.advance(model.chance.choice([1, 2_000]))
        model.deliver()
    assert model.number > 3
