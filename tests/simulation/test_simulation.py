"""Seeded simulation of a whole broker: random steps and crashes, compared with a naive model.

No message is delivered early, acknowledged messages are delivered once, levels are delivered in
order, and counts are exact. To repeat a failed seed, set SIMULATION_FIRST=<seed> and
SIMULATION_SEEDS=1; SIMULATION_SEEDS=1000 runs more seeds. With SIMULATION_PAGES=1 a power cut loses
any unsynced pages, not only the end of the log; a consume queue can then have an empty unit in a
file other than its last.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from message_store.verify import StoreFinding
from tests.simulation.rig import Gate, Rig
from tests.simulation.steps import CHANGING, Simulation
from tests.support.loopback_broker import faults_of

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "5"))
FIRST = int(os.environ.get("SIMULATION_FIRST", "1"))
LOSE_PAGES = bool(os.environ.get("SIMULATION_PAGES"))
STEPS = 60


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_simulation(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    properties = {
        "flushDiskType": chance.choice(["SYNC_FLUSH", "ASYNC_FLUSH"]),
        "enableScheduleAsyncDeliver": chance.choice(["true", "false"]),
        "messageDelayLevel": "1s 5s 10s 30s",
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "1000",
        "scheduleDeliverBatchRecords": chance.choice(["3", "50", "2048"]),
        "scheduleAsyncDeliverMaxPendingLimit": chance.choice(["4", "2000"]),
        "timerFlushIntervalMs": "1000000000",
        "timerRollWindowSlot": chance.choice(["3", "60"]),
        "timerPrecisionMs": chance.choice(["100", "1000"]),
        "timerDeliverBatchRecords": chance.choice(["1", "50"]),
        "mappedFileSizeTimerLog": "2600",
        "syncFlushTimeout": "600000",
        "transactionTimeOut": "100000000",
        "transactionCheckInterval": "100000000",
        "flushConsumerOffsetInterval": "1000000",
        "flushDelayOffsetInterval": "1000000",
    }
    rig = Rig(tmp_path, Gate(monkeypatch), chance, properties)
    rig.lose_pages = LOSE_PAGES
    simulation = Simulation(rig, chance)
    try:
        asyncio.run(simulation.run(STEPS))
    except BaseException as error:
        error.add_note(f"seed {seed}, the last steps: {', '.join(simulation.done[-12:])}")
        raise
    assert [fault for fault in faults_of(rig.root) if not is_known(fault)] == []


def is_known(fault: StoreFinding) -> bool:
    """Return whether a finding follows from a deleted topic or a clock step back."""
    return CHANGING in fault.file or fault.kind == "item-time"
