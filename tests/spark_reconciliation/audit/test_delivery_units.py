"""Deliveries without a unit in their queue are reported, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from message_store.queues.topic_erasure import erase
from spark_reconciliation.audit.delivery_units import DeliveryUnits, read_queue_coverage
from spark_reconciliation.audit.unit_times import QueueFiles
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import OFFSET_MAX
from spark_reconciliation.scan.store_state import QueueCoverage
from tests.support.golden_stores import (
    ROCKSDB_VERSION,
    STORES,
    GoldenStore,
    copy_golden_store,
    golden_store,
)
from tests.support.read_tables import read_rows
from tests.support.stores import open_store, put_one
from tests.support.timer_rig import TimerRig
from tests.support.topic_removal import remove_topic

pytestmark = pytest.mark.finding("C2")
COUNT = 30


def filled(root: Path) -> TimerRig:
    rig = TimerRig(root).open()
    for n in range(COUNT):
        rig.put(rig.clock.now_ms() + 100 * (n + 1), "TU"[n % 2], n % 4)
    rig.put(rig.clock.now_ms() + 1_000_000)
    rig.advance(10_000)
    return rig


@pytest.fixture
def store(tmp_path: Path) -> Path:
    filled(tmp_path).close()
    return tmp_path


def unreachable(root: Path) -> dict[str, int]:
    """Return the number of records without a unit, by topic."""
    found: dict[str, int] = {}
    for row in read_rows(root, "messages", "topic", "queued"):
        if row["queued"] is False:
            found[row["topic"]] = found.get(row["topic"], 0) + 1
    return found


def zeros(folder: Path) -> None:
    for path in folder.rglob("0*0"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))


def topics(root: Path, *names: str) -> None:
    (root / "config").mkdir(exist_ok=True)
    table: dict[str, Any] = {"topicConfigTable": {name: {} for name in names}}
    (root / "config/topics.json").write_text(json.dumps(table))


@pytest.mark.parametrize("store", STORES, ids=str)
def test_golden_stores_are_reachable(store: GoldenStore) -> None:
    root = golden_store(store.name)
    assert unreachable(root) == {}
    survey = {row["queued"] for row in read_rows(root, "messages", "queued")}
    assert True in survey or store.name.endswith("running"), "all of that was within seconds"


def test_our_store_is_reachable(store: Path) -> None:
    assert unreachable(store) == {}
    assert [row["queued"] for row in read_rows(store, "messages", "queued")].count(
        True
    ) == 2 * COUNT + 1


@pytest.mark.parametrize("damage", [shutil.rmtree, zeros])
@pytest.mark.parametrize("named", [True, False])
def test_missing_queues(store: Path, damage: Callable[[Path], Any], named: bool) -> None:
    if named:
        topics(store, "T", "U")
    damage(store / "consumequeue/T")
    assert unreachable(store) == {"T": COUNT // 2}


def test_a_unit_of_another_record(store: Path) -> None:
    path = next((store / "consumequeue/U/1").iterdir())
    data = bytearray(path.read_bytes())
    data[20:28] = data[0:8]
    path.write_bytes(data)
    assert unreachable(store) == {"U": 1}


def test_the_queue_of_pending_messages(store: Path) -> None:
    zeros(store / "consumequeue/rmq_sys_wheel_timer")
    assert unreachable(store) == {"rmq_sys_wheel_timer": COUNT + 1}


def test_a_deleted_topic_has_no_queues(store: Path) -> None:
    topics(store, "U")
    shutil.rmtree(store / "consumequeue/T")
    assert unreachable(store) == {}


def test_a_queue_that_was_rebuilt(store: Path) -> None:
    """Its first unit refers to a later record; earlier ones have no unit."""
    shutil.rmtree(store / "consumequeue/T/2")
    rig = TimerRig(store)
    rig.clock.advance(20_000)
    rig.open()
    rig.close()
    assert unreachable(store) == {}, "a start has written the units again"


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    """It has no unit yet, as if its queues had been lost."""
    rig = filled(tmp_path)
    remove_topic(rig.store, "T")
    rig.close()
    topics(tmp_path, "T", "U")
    assert unreachable(tmp_path) == {}
    (tmp_path / "config/deletedTopics.json").write_text('{"deletedTopics": {"U": 1}}')
    assert unreachable(tmp_path) == {"T": COUNT // 2}


def test_queues_in_batches_are_unchanged(store: Path) -> None:
    shutil.rmtree(store / "consumequeue/T")
    (store / "batchconsumequeue/T").mkdir(parents=True)
    assert unreachable(store) == {}


def test_units_not_yet_needed(tmp_path: Path) -> None:
    rig = filled(tmp_path)
    rig.kill()
    zeros(tmp_path / "consumequeue/T")
    assert unreachable(tmp_path) == {}, "the mark does not show that they were on the disk"


def test_end_of_apaches_queues(tmp_path: Path) -> None:
    assert read_queue_coverage(Root(str(tmp_path))) == QueueCoverage()
    root = tmp_path / "store"
    shutil.copytree(golden_store("apache-5.3.3-killed"), root)
    stopped = read_queue_coverage(Root(str(root)))
    assert (stopped.end, stopped.until_ms > 1_700_000_000_000) == (0, True)
    (root / "abort").unlink()
    assert read_queue_coverage(Root(str(root))) == QueueCoverage(OFFSET_MAX)
    (root / "consumequeue/CURRENT").write_text("MANIFEST")
    assert read_queue_coverage(Root(str(root))) == QueueCoverage(OFFSET_MAX), "a stray file"


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["rocksdb", "rocksdb-separate", "combined", "combined-separate"])
def test_queues_in_rocksdb(tmp_path: Path, name: str) -> None:
    root = copy_golden_store(f"apache-{ROCKSDB_VERSION}-{name}", tmp_path)
    (root / "abort").unlink()
    assert unreachable(root) == {}
    has_files = name.startswith("combined")
    assert (read_queue_coverage(Root(str(root))) == QueueCoverage(OFFSET_MAX)) == has_files
    zeros(root / "consumequeue")
    assert (unreachable(root) != {}) == has_files


def test_a_queue_that_begins_again_excuses_only_records_before_its_first_unit(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path) as store:
        before = [put_one(store, "T") for _ in range(3)]
        erase(store.queues, store.progress.detach_topic("T"))
        after = [put_one(store, "T") for _ in range(2)]
    numbers, offsets, sizes = (
        np.array([int(row[name]) for row in (*before, *after)])
        for name in ("queue_offset", "phys_offset", "record_size")
    )
    assert numbers.tolist() == [0, 1, 2, 0, 1]
    files, codes = QueueFiles(Root(str(tmp_path))), np.zeros(5, "i8")
    units = DeliveryUnits(files, QueueCoverage(OFFSET_MAX))
    assert units.of_queue("T", 0, numbers, (offsets, sizes, codes)).tolist() == [True] * 5
    last = offsets[4:], sizes[4:], codes[4:]
    assert units.of_queue("T", 0, numbers[4:] + 1, last).tolist() == [False]
    for at in range(3):
        changed = [column + (at == n) for n, column in enumerate(last)]
        assert units.of_queue("T", 0, numbers[4:], tuple(changed)).tolist() == [False]
