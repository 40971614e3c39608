"""Random commands of an operator during migrations: each message is delivered once, at its time.

Start, pause, resume, rollback and throttle, decisions about single messages, clock steps, and kills
of the broker between them. The model is a list of messages.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from duemq_common.codes import RequestCode
from tests.migration.bench import LEVELS, PLUGINS, Bench
from tests.support.extended import one_in
from tests.support.killed_copy import copy_as_killed
from tests.support.running_broker import running, small

STEPS, STARTS = 25, 3
DELAYS_MS = (1_000, 5_000, 10_000, 60_000, 120_000)
LAST_MS = 130_000


@dataclass
class Sent:
    """A message that was acknowledged, with its current due time."""

    due_ms: int
    is_cancelled: bool = False


class Model:
    """Random steps on a broker, and the deliveries that it must have after each."""

    def __init__(self, clock: FakeClock, seed: int) -> None:
        self.clock, self.chance = clock, random.Random(seed)
        self.sent: dict[bytes, Sent] = {}
        self.accepted: Counter[str] = Counter()

    async def step(self, bench: Bench) -> None:
        steps = [self.send, self.send, self.advance, self.advance, self.command, self.command]
        await self.chance.choice([*steps, self.throttle, self.decide, self.persist])(bench)
        await self.settle(bench)
        self.check(bench)

    async def send(self, bench: Bench) -> None:
        level = self.chance.choice([0, 3, 4, 4, 5, 5])
        for _ in range(self.chance.randint(1, 12)):
            body = b"m%d" % len(self.sent)
            delay_ms = DELAYS_MS[level - 1] if level else self.chance.choice([900, 20_000])
            properties = {"DELAY": str(level)} if level else {"TIMER_DELAY_MS": str(delay_ms)}
            response = await bench.client.send("T", body, UNIQ_KEY=body.decode(), **properties)
            assert response.code == 0, response.remark
            self.sent[body] = Sent(self.clock.now_ms() + delay_ms)

    async def advance(self, bench: Bench) -> None:
        step_ms = self.chance.choice([10, 200, 1_000, 20_000])
        for _ in range(self.chance.randint(1, 6)):
            self.clock.advance(step_ms)
            await self.settle(bench)

    async def command(self, bench: Bench) -> None:
        action = self.chance.choice(["start", "start", "pause", "resume", "rollback", "verify"])
        levels = self.chance.choice([[], [3], [4], [5], [4, 5]])
        body = json.dumps({"action": action, "levels": levels, "operator": "o"}).encode()
        task = asyncio.create_task(bench.client.call(RequestCode.MIGRATE, body=body))
        while not task.done():
            self.clock.advance(10)
            await self.settle(bench)
        response = task.result()
        self.accepted[action] += response.code == 0
        if action == "verify" and response.code == 0:
            assert json.loads(bytes(response.body))["right"], response.body

    async def throttle(self, bench: Bench) -> None:
        rate = self.chance.choice([0, 1, 50])
        bench.service.reconfigure(
            type(bench.service.config)(rate_per_s=rate, target_p99_ms=0, factor=0)
        )

    async def decide(self, bench: Bench) -> None:
        pending = [body for body, each in self.sent.items() if self.is_pending(each)]
        if not pending:
            return
        body = self.chance.choice(pending)
        action = self.chance.choice(["cancel", "move", "fire"])
        request = {"ids": [body.decode()], "topic": "T"}
        now_ms, sent = self.clock.now_ms(), self.sent[body]
        if action == "move":
            due_ms = now_ms + self.chance.choice([1, 3_000, 70_000])
            response = await bench.client.call(
                RequestCode.MOVE_PENDING, body=json.dumps(request | {"deliver_ms": due_ms}).encode()
            )
            sent.due_ms = due_ms
        elif action == "cancel":
            data = json.dumps(request).encode()
            response = await bench.client.call(RequestCode.CANCEL_PENDING, body=data)
            sent.is_cancelled = True
        else:
            data = json.dumps(request).encode()
            response = await bench.client.call(RequestCode.FIRE_PENDING, body=data)
            sent.due_ms = now_ms
        [result] = json.loads(bytes(response.body))["results"]
        assert (result["verdict"], result["messages"]) == ("done", 1), (action, body, result)

    def is_pending(self, sent: Sent) -> bool:
        return not sent.is_cancelled and sent.due_ms > self.clock.now_ms()

    async def persist(self, bench: Bench) -> None:
        await bench.service.write()
        bench.broker.parts.persist()

    async def settle(self, bench: Bench) -> None:
        plugins = bench.broker.plugins.plugins
        timers = plugins["timer_store"].parts.timers  # type: ignore[attr-defined]
        levels = plugins["schedule_service"].parts.service  # type: ignore[attr-defined]
        for _ in range(20):
            await asyncio.sleep(0)
            while not (timers.is_idle and levels.is_idle):  # noqa: ASYNC110
                await asyncio.sleep(0)

    def check(self, bench: Bench) -> None:
        deliveries = bench.delivered()
        counts = Counter(body for body, _ in deliveries)
        now_ms = self.clock.now_ms()
        expected = {
            body: 1
            for body, each in self.sent.items()
            if not each.is_cancelled and each.due_ms <= now_ms
        }
        assert counts == expected
        assert all(store_ms >= self.sent[body].due_ms for body, store_ms in deliveries)


@pytest.mark.parametrize("seed", one_in(30, range(30)))
def test_commands_during_migrations(tmp_path: Path, seed: int) -> None:
    model = Model(FakeClock(), seed)

    async def run(root: Path, *, is_last: bool) -> None:
        settings = small(root, messageDelayLevel=LEVELS, migrationRate="50")
        async with running(settings, clock=model.clock, plugins=PLUGINS) as (broker, client):
            bench = Bench(broker, client, model.clock)
            await model.settle(bench)
            model.check(bench)
            for _ in range(STEPS):
                await model.step(bench)
            if is_last:
                for _ in range(LAST_MS // 1_000):
                    model.clock.advance(1_000)
                    await model.settle(bench)
                model.check(bench)
                assert await bench.pending() == (0, 0)
            killed = root.with_name(f"{root.name}+")
            copy_as_killed(root, killed)

    root = tmp_path / "broker"
    for number in range(STARTS):
        asyncio.run(run(root, is_last=number == STARTS - 1))
        root = root.with_name(f"{root.name}+")
        model.clock.advance(model.chance.choice([1, 2_000, 30_000]))
    assert model.accepted["start"]
