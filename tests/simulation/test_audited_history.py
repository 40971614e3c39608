"""Audits of random histories of a whole broker, compared with what each history has recorded.

A history has sends, transactions, pops, retries, decisions, schedules, migrations, compactions,
retention, clock steps, restarts and kills. `--seed` and AUDIT_HISTORIES choose others and more.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from delayed_delivery.plugin import ENTRY_POINT_GROUP
from duemq.broker.plugins import InstalledPlugin
from spark_reconciliation.engine import use_engine_of
from spark_reconciliation.local.frame import LocalSession
from tests.simulation.audited_history import LEVELS, AuditedHistory
from tests.simulation.group_migration import MIGRATION, replaced
from tests.simulation.rig import LEVELS as LEVEL_SERVICE
from tests.simulation.rig import TIMERS, Gate, Rig

HISTORIES = int(os.environ.get("AUDIT_HISTORIES", "2"))
STEPS = 60
SCHEDULES = InstalledPlugin(
    "recurring_schedules",
    EntryPoint(
        "recurring_schedules", "recurring_schedules.plugin:create_plugin", ENTRY_POINT_GROUP
    ),
)


@pytest.fixture(scope="module")
def session() -> Iterator[LocalSession]:
    made = LocalSession(cores=1)
    with use_engine_of(made):
        yield made
    made.stop()


@pytest.mark.parametrize("number", range(HISTORIES))
def test_audits_agree_with_the_history(
    number: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: LocalSession
) -> None:
    chance = random.Random(seed + number)
    replaced(monkeypatch)
    properties = {
        "brokerName": "test",
        "messageDelayLevel": LEVELS[0],
        "timerWheelEnable": "true",
        "fileReservedTime": "0",
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "mappedFileSizeCommitLog": "32768",
        "mappedFileSizeConsumeQueue": "1000",
        "mappedFileSizeTimerLog": "2600",
        "scheduleDeliverBatchRecords": chance.choice(["3", "2048"]),
        "timerDeliverBatchRecords": chance.choice(["1", "50"]),
        "timerRollWindowSlot": chance.choice(["3", "60"]),
        "timerFlushIntervalMs": "1000000000",
        "transactionTimeOut": "100000000",
        "transactionCheckInterval": "100000000",
        "flushConsumerOffsetInterval": "1000000",
        "flushDelayOffsetInterval": "1000000",
        "cleanResourceInterval": "1000000000",
    }
    rig = Rig(tmp_path, Gate(monkeypatch), chance, properties)
    rig.plugins = (LEVEL_SERVICE, TIMERS, SCHEDULES, MIGRATION)
    history = AuditedHistory(rig, chance, session, tmp_path)
    try:
        asyncio.run(history.run(STEPS))
    except BaseException as error:
        error.add_note(f"--seed={seed + number}; the last steps: {', '.join(history.done[-12:])}")
        raise
