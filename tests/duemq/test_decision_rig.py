"""Random decisions: no verdict is false.

--decisions N   how many (600; `make soak` uses 100,000)
--seed N        the run to repeat
"""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from duemq_common.clock import FakeClock
from message_store.index.index_file import IndexFile
from tests.duemq.decision_rig import DUE_MS, TOPIC, DecisionRig
from tests.support.loopback_broker import records_of
from tests.support.replica_rig import until
from tests.support.running_broker import running, small

ROUND = 200  # decisions of one broker
KEYS = {
    "messageDelayLevel": "1s 1h",
    "maxIndexNum": "300",
    "maxHashSlotNum": "100",
    "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeCommitLog": "1048576",
}


async def one_round(root: Path, chance: random.Random, room: list[bool]) -> DecisionRig:
    """Let one broker decide; `room`: whether its index finds room on the disk."""
    clock = FakeClock()
    async with running(small(root, **KEYS), clock=clock) as (broker, client):
        rig = DecisionRig(broker, client, clock, chance)
        await rig.put()
        while rig.decisions < ROUND:
            draw = chance.random()
            if draw < 0.45:
                await rig.put()
            elif draw < 0.5:
                await rig.put_batch()
            elif draw < 0.95:
                await rig.decide()
            else:
                room[0] = not room[0]
        room[0] = True
        clock.advance(2 * DUE_MS)
        wanted = sum(message.state != "cancelled" for message in rig.messages)
        await until(lambda: broker.store.queue_bounds(TOPIC, 0)[1] >= wanted)
        await rig.end([record.body for record in records_of(broker, TOPIC, 0)])
    return rig


@pytest.mark.finding("E2")
def test_no_verdict_is_false(
    tmp_path: Path, decisions: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, made, room = random.Random(seed), 0, [True]
    allocate = IndexFile._allocate

    def allocate_if_room(file: IndexFile, count: int) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(file, count)

    monkeypatch.setattr(IndexFile, "_allocate", allocate_if_room)
    while made < decisions:
        rig = asyncio.run(one_round(tmp_path / str(made), chance, room))
        assert not rig.false, "\n".join([f"seed {seed}, after {made}", *rig.false[:20]])
        made += rig.decisions
