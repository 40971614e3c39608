"""Open pops: compared with a model of random pops, acknowledgements and changes; bounds."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from duemq.client import Admin
from duemq.pop import open_pops
from duemq_common.clock import FakeClock
from duemq_common.topics import TIMER_TOPIC
from message_store.layout import Rows
from tests.support.pop_client import PopClient, Popped
from tests.support.running_broker import running, small

MESSAGES, STEPS, INVISIBLE_MS = 12, 60, 600_000


class ModelGroup:
    """Group whose open pops are known.

    Attributes:
        until_ms: End of the invisible time by the body of an open message.
    """

    def __init__(self, client: PopClient, clock: FakeClock) -> None:
        self.client, self._clock = client, clock
        self.until_ms: dict[bytes, int] = {}
        self._open: list[Popped] = []

    async def act(self, chance: random.Random) -> None:
        """Pop, acknowledge some messages in one turn, or change an invisible time."""
        kind, now_ms = chance.randrange(3), self._clock.now_ms()
        if kind == 0 or not self._open:
            count = chance.randint(1, 4)
            popped = await self.client.pop("T", maxMsgNums=count, invisibleTime=INVISIBLE_MS)
            self._open += popped
            self.until_ms |= {each.body: now_ms + INVISIBLE_MS for each in popped}
        elif kind == 1:
            chosen = chance.sample(self._open, chance.randint(1, min(3, len(self._open))))
            await asyncio.gather(*(self.client.ack(each) for each in chosen))
            for each in chosen:
                del self.until_ms[each.body]
            self._open = [each for each in self._open if each not in chosen]
        else:
            message = self._open.pop(chance.randrange(len(self._open)))  # its handle is used up
            response = await self.client.change(message, 2 * INVISIBLE_MS)
            assert response.code == 0, response.remark
            self.until_ms[message.body] = now_ms + 2 * INVISIBLE_MS


@pytest.mark.sampled
@pytest.mark.parametrize(("seed", "piece_units"), [(0, 2_048), (1, 1), (2, 3), (3, 5)])
def test_open_pops_are_those_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, piece_units: int
) -> None:
    monkeypatch.setattr(open_pops, "PIECE_UNITS", piece_units)

    async def work() -> None:
        chance, clock = random.Random(seed), FakeClock()
        async with (
            running(small(tmp_path), clock=clock) as (broker, remote),
            Admin(broker=broker.address) as admin,
        ):
            gather, gathered = broker.store.gather, list[int]()

            def counted(topic: str, queue_id: int, offset: int, units: Rows) -> bytes:
                gathered.append(int(units.size) if topic == TIMER_TOPIC else 0)
                return gather(topic, queue_id, offset, units)

            monkeypatch.setattr(broker.store, "gather", counted)
            groups = [ModelGroup(PopClient(remote, clock, name), clock) for name in ("g", "h")]
            for number in range(MESSAGES):
                await remote.send("T", b"%d" % number, UNIQ_KEY=f"u{number}")
            for _ in range(STEPS):
                await chance.choice(groups).act(chance)
                clock.advance(chance.randint(0, 100))
            for number in range(MESSAGES):
                [message] = (await admin.message_history(f"u{number}")).messages
                pops = {(pop.group, pop.invisible_until_ms) for pop in message.pops}
                assert pops == {
                    (group.client.group, group.until_ms[b"%d" % number])
                    for group in groups
                    if b"%d" % number in group.until_ms
                }
            assert 0 < max(gathered) <= piece_units

    asyncio.run(work())


def test_pops_before_the_newest_timers_are_omitted_and_the_answer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        clock = FakeClock()
        async with (
            running(small(tmp_path), clock=clock) as (broker, remote),
            Admin(broker=broker.address) as admin,
        ):
            await remote.send("T", b"x", UNIQ_KEY="u")
            await PopClient(remote, clock).pop("T", invisibleTime=INVISIBLE_MS)
            answer = await admin.message_history("u")
            assert (len(answer.messages[0].pops), answer.pops_omitted) == (1, False)
            monkeypatch.setattr(open_pops, "TIMERS_MAX", 4)
            for number in range(4):
                await remote.send("U", b"y", UNIQ_KEY=f"{number}", TIMER_DELAY_MS="3600000")
            answer = await admin.message_history("u")
            assert (len(answer.messages[0].pops), answer.pops_omitted) == (0, True)

    asyncio.run(work())
