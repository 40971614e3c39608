"""Delays of a level's messages: from its tables, or from what many messages have in common."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from message_store.layout import CQ_UNIT
from spark_reconciliation.audit.level_times import delays_of, read_delays
from spark_reconciliation.scan.planned_store import plan_store
from tests.migration.steps.test_drain import fill
from tests.support.golden_stores import STORES, GoldenStore, golden_store
from tests.support.migration_rig import MigrationRig
from tests.support.read_tables import read_rows

pytestmark = pytest.mark.finding("C3")
TABLE = (1_000, 5_000, 10_000)


@pytest.mark.parametrize(
    ("sampled", "certain", "found"),
    [
        ({1: [1_000] * 9, 2: []}, False, {1: (1_000,), 2: (5_000,)}),
        ({1: [1_000] * 9 + [77_000]}, False, {1: (1_000,)}),  # a single message shows no delay
        ({1: [1_000] * 40, 2: [7_000] * 40}, False, {1: (1_000,), 2: (5_000, 7_000)}),  # changed
        ({1: [3_000] * 9, 2: [4_000]}, False, {1: (3_000,), 2: (4_000,)}),  # another table
        ({1: [3_000, 4_000]}, False, {1: ()}),  # unknown
        ({9: [10_000]}, True, {9: (10_000,)}),  # levels above the last one mean the last
        ({1: [1_000, 2_000], 3: [1]}, True, {1: (1_000,), 3: (10_000,)}),
    ],
)
def test_delays(
    sampled: dict[int, list[int]], certain: bool, found: dict[int, tuple[int, ...]]
) -> None:
    assert delays_of(sampled, [TABLE], certain=certain) == found


@pytest.mark.parametrize("store", STORES, ids=str)
def test_levels_of_golden_stores(store: GoldenStore) -> None:
    root = golden_store(store.name)
    planned = plan_store(0, str(root))
    assert planned.progress.delays
    assert not any(row["other_time"] for row in read_rows(root, "messages", "other_time"))


@pytest.mark.parametrize("kept", [True, False])
def test_a_changed_time_is_reported(tmp_path: Path, kept: bool) -> None:
    rig = MigrationRig(tmp_path).open()
    fill(rig, 60, (3, 4, 5))
    rig.close()
    if kept:
        table = {"adopted": {}, "history": [{"fromOffset": 0, "levels": "1s 5s 10s 1m 2m"}]}
        (tmp_path / "config/delayLevels.json").write_text(json.dumps(table))
    path = next((tmp_path / "consumequeue/SCHEDULE_TOPIC_XXXX/3").iterdir())
    units = np.memmap(path, CQ_UNIT, "r+")
    units["tags_code"][7] += 60_000
    del units
    wrong = [
        r
        for r in read_rows(tmp_path, "messages", "queue_id", "queue_offset", "other_time")
        if r["other_time"]
    ]
    assert [(row["queue_id"], row["queue_offset"]) for row in wrong] == [(3, 7)]
    planned = plan_store(0, str(tmp_path))
    assert 60_000 in read_delays(planned.root, planned.plan)[4]
