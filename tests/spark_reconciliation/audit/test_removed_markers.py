"""Apache's cancelled timers whose records were removed together with those of their markers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_reconciliation.scan.roles import Role
from tests.support.fault_classes import APACHE
from tests.support.golden_stores import golden_store
from tests.support.plain_store import TIMERS, PlainStore, Scene, copy_sparse
from tests.support.read_tables import read_rows

pytestmark = pytest.mark.finding("3P6")


@pytest.fixture
def truncated(tmp_path: Path) -> tuple[Path, set[int], set[int]]:
    """Return a store without its first log file; pending and cancelled timers of that file."""
    store = PlainStore(copy_sparse(golden_store(APACHE), tmp_path / "store"))
    scene = Scene.of_store(store.root)
    records = [record for record in store.records() if record.topic == TIMERS]
    markers = [record for record in records if "TIMER_DEL_UNIQKEY" in record.properties]
    slots = {record.properties["TIMER_OUT_MS"] for record in markers}
    size = store.log.files()[0].stat().st_size
    timers = [r for r in records if r not in markers and r.log_offset < size]
    cancelled = {r.log_offset for r in timers if r.properties["TIMER_OUT_MS"] in slots}
    waiting = {record.log_offset for record in scene.waiting[TIMERS]} - cancelled
    store.log.files()[0].unlink()
    return store.root, waiting, cancelled


def test_slots_of_removed_timers_and_markers(truncated: tuple[Path, set[int], set[int]]) -> None:
    root, waiting, cancelled = truncated
    roles = f"{Role.REMOVED_PENDING},{Role.MARKER},{Role.GAP}"
    rows = read_rows(root, "messages", "role", "phys_offset", "out_ms", roles=roles)
    removed = {
        row["phys_offset"]: row["out_ms"]
        for row in rows
        if row["role"] == Role.REMOVED_PENDING and row["out_ms"] is not None
    }
    assert removed.keys() >= waiting | cancelled
    slots = [row["out_ms"] for row in rows if row["role"] == Role.MARKER]
    assert {removed[at] for at in cancelled} == set(slots)
    assert not {removed[at] for at in waiting} & set(slots)


@pytest.mark.extended
@pytest.mark.spark
def test_cancelled_timers_are_removed_and_pending_ones_lost(
    spark: Any, truncated: tuple[Path, set[int], set[int]]
) -> None:
    from spark_reconciliation.spark.read import audit_stores

    root, waiting, cancelled = truncated
    verdicts, _ = audit_stores(spark, [str(root)], ids=False)
    found = {row["root"]: row["verdict"] for row in verdicts.collect()}
    assert {at: found[at] for at in cancelled} == dict.fromkeys(cancelled, "removed")
    assert {at: found[at] for at in waiting} == dict.fromkeys(waiting, "lost")
