"""A log without its first file: messages pending there are lost, the others were removed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from delayed_delivery.pending import Verdict
from duemq_common.topics import SCHEDULE_TOPIC
from message_store.log.batch import PutBatch
from spark_reconciliation.audit.removed_records import removed_segments, removed_units
from spark_reconciliation.audit.summary import summarize
from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.options import parse_options
from spark_reconciliation.scan.planning import plan_log
from spark_reconciliation.scan.roles import Role
from spark_reconciliation.scan.store_state import OwnedRange, Progress
from spark_reconciliation.spark.read import audit_stores, count_stores
from tests.support.migration_rig import MigrationRig
from tests.support.read_tables import read_rows
from tests.support.stores import add_message

pytestmark = pytest.mark.finding("C1")
EACH = 8
SECOND_MS, HOUR_MS = 1_000, 3_600_000
LOST = ("timer-far", "level-far", "drained")
REMOVED = ("timer-near", "level-near", "timer-later", "timer-cancelled", "level-cancelled")
WAITS = {  # properties by kind
    "timer-near": ("TIMER_DELIVER_MS", 2 * SECOND_MS),
    "level-near": ("DELAY", 1),
    "timer-later": ("TIMER_DELIVER_MS", 30 * SECOND_MS),
    "level-far": ("DELAY", 2),
    "timer-far": ("TIMER_DELIVER_MS", HOUR_MS),
    "level-cancelled": ("DELAY", 2),
    "timer-cancelled": ("TIMER_DELIVER_MS", HOUR_MS),
    "drained": ("DELAY", 3),
}


def put(rig: MigrationRig, count: int, body: bytes = b"body", **properties: str) -> list[int]:
    batch = PutBatch(count)
    for n in range(count):
        own = properties | {"UNIQ_KEY": f"{properties}-{n}"} if properties else {}
        add_message(rig.store, batch, "T", 0, body, properties=own)
    rig.put(batch)
    found: list[int] = batch.filled["phys_offset"].tolist()
    return found


def filled(root: Path) -> dict[str, list[int]]:
    """Write messages into the first file and settle some in the next; return their offsets."""
    rig = MigrationRig(root, levels="1s 1h 2h").open()
    places: dict[str, list[int]] = {}
    for kind, (name, value) in WAITS.items():
        value += rig.clock.now_ms() if name != "DELAY" else 0
        places[kind] = put(rig, EACH, **{name: str(value), "KEYS": kind})
    rig.work()
    while rig.drain.step(3, EACH, migration="run-1").processed:
        rig.work()
    rig.advance(5 * SECOND_MS)
    put(rig, 50, b"x" * 1_500)
    rig.work()
    rig.advance(60 * SECOND_MS)
    for waiting, kind in (
        (rig.pending_timers, "timer-cancelled"),
        (rig.pending_levels, "level-cancelled"),
    ):
        done = waiting.cancel(np.array(places[kind]))
        assert (done.verdicts == Verdict.DONE).all(), done.remarks
    rig.work()
    rig.close()
    return places


@pytest.fixture(scope="module")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    root = tmp_path_factory.mktemp("gone")
    places = filled(root)
    first = min((root / "commitlog").iterdir())
    assert max(at for some in places.values() for at in some) < first.stat().st_size
    first.unlink()
    return root, places


def of_kinds(places: dict[str, list[int]], kinds: tuple[str, ...]) -> list[int]:
    return sorted(at for kind in kinds for at in places[kind])


def rows_of(root: Path, role: int) -> list[int]:
    rows = read_rows(root, "messages", "phys_offset", roles=str(role))
    return sorted({row["phys_offset"] for row in rows})


def test_units_of_removed_records(truncated: tuple[Path, dict[str, list[int]]]) -> None:
    root, places = truncated
    pending = set(rows_of(root, Role.REMOVED_PENDING))
    survey = read_rows(root, "findings", "offset", "kind")
    pending |= {row["offset"] for row in survey if row["kind"] == "gone"}
    assert sorted(pending) == of_kinds(places, LOST)
    settled = set(rows_of(root, Role.REMOVED_SETTLED)) - pending
    assert sorted(settled) == of_kinds(places, REMOVED)


def test_units_in_the_timers_checkpoint_are_examined_in_the_timer_log(
    truncated: tuple[Path, dict[str, list[int]]],
) -> None:
    """Their units in the level's queue do not show whether they were pending."""
    root = Root(str(truncated[0]))
    plan = plan_log(root)
    segments = [s for s in removed_segments(root, plan) if s.topic == SCHEDULE_TOPIC]

    def pending(*, in_checkpoint: bool) -> int:
        mine = (OwnedRange(0, 1 << 40, in_checkpoint),)
        owned = {segment.queue_id: mine for segment in segments}
        progress = Progress(log_min=plan.min, owned=owned, read_ms=0)
        found = (removed_units(segment, progress) for segment in segments)
        return sum(part.size for parts in found for part, _ in parts)

    assert pending(in_checkpoint=False) > 0
    assert pending(in_checkpoint=True) == 0


def test_a_whole_log_has_none(tmp_path: Path) -> None:
    filled(tmp_path)
    assert rows_of(tmp_path, Role.REMOVED_PENDING) == rows_of(tmp_path, Role.REMOVED_SETTLED) == []
    reader = TableReader(parse_options({"path": str(tmp_path), "roles": str(Role.GAP)}), ["note"])
    assert [row for part in reader.partitions() for row in reader.read(part)] == []


@pytest.mark.extended
@pytest.mark.spark
def test_pending_messages_are_lost_and_others_removed(
    spark: Any, truncated: tuple[Path, dict[str, list[int]]]
) -> None:
    root, places = truncated
    verdicts, unread = audit_stores(spark, [str(root)])
    rows = verdicts.collect()
    found = {row["root"]: row["verdict"] for row in rows}
    assert len(found) == len(rows)
    expected = dict.fromkeys(of_kinds(places, LOST), "lost")
    expected |= dict.fromkeys(of_kinds(places, REMOVED), "removed")
    assert found == expected
    whole = summarize(verdicts, unread)
    assert not whole.clean
    brief, unread_briefly = count_stores(spark, [str(root)])
    short = summarize(brief.rest, unread_briefly, kept=brief.kept)
    assert short.verdicts == whole.verdicts == dict(Counter(expected.values()))
    assert [(row["root"], row["why"]) for row in short.offenders] == [
        (row["root"], row["why"]) for row in whole.offenders
    ]
