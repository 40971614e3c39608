"""A log written by Apache 4.9.7, 5.3.3 and our broker in turn: each part has its own verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.clock import FakeClock
from message_store import layout
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.verdicts import COLUMNS
from tests.spark_reconciliation.test_bad_files import places
from tests.support.golden_stores import LOG_FILE_BYTES, end_ms, golden_store
from tests.support.naive_audit import naive_audit
from tests.support.read_tables import read_rows
from tests.support.timer_rig import TimerRig

PARTS = ("apache-4.9.7-clean", "apache-5.3.3-clean")
FIELDS = layout.RECORD_HEAD.fields or {}  # type: ignore[var-annotated]
HOUR_MS = 3_600_000
BLANK = layout.packer(layout.BLANK_RECORD)
I8 = np.dtype(">i8")


def moved(data: bytearray, row: dict[str, Any], by: int, behind: int) -> None:
    """Move a record to a later offset, into a queue that had `behind` messages before it."""
    at = row["file_offset"]
    for name, more in (("phys_offset", by), ("queue_offset", behind)):
        field = np.frombuffer(data, I8, 1, at + FIELDS[name][1])
        field += more


def mixed(root: Path) -> dict[str, int]:
    """Write the logs one after the other; return their start offsets."""
    folder, base, lengths = root / "commitlog", 0, Counter[tuple[str, int]]()
    folder.mkdir(parents=True)
    begins = {}
    for name in PARTS:
        store, begins[name] = golden_store(name), base
        rows = read_rows(store, "messages")
        files = sorted((store / "commitlog").iterdir())
        for path in files:
            data = bytearray(path.read_bytes())
            mine = [row for row in rows if row["file"] == f"commitlog/{path.name}"]
            for row in mine:
                moved(data, row, base, lengths[row["topic"], row["queue_id"]])
            end = mine[-1]["file_offset"] + mine[-1]["record_size"] if mine else 0
            left = len(data) - end
            data[end:] = BLANK.pack(left, layout.MAGIC_BLANK).ljust(left, b"\0")
            (folder / f"{base + int(path.name):020d}").write_bytes(data)
        base += len(files) * LOG_FILE_BYTES
        queued = (row for row in rows if row["sys_flag"] & 0xC in (0, 8))
        lengths.update((row["topic"], row["queue_id"]) for row in queued)
    return begins


def verdicts_of(store: Path) -> dict[int, str]:
    messages = read_rows(store, "messages", *COLUMNS)
    found = naive_audit(
        messages, read_rows(store, "consume_queue"), read_rows(store, "cursors"), AuditConfig()
    )
    return {root: verdict for (_, root), verdict in found.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], int]:
    """Return the store opened by our broker, the offsets of the parts, and that of ours."""
    root = tmp_path_factory.mktemp("mixed") / "store"
    begins = mixed(root)
    ours = LOG_FILE_BYTES * len(list((root / "commitlog").iterdir()))
    rig = TimerRig(root, FakeClock(end_ms("5.3.3")))
    rig.topics += sorted(
        {row["real_topic"] for row in read_rows(root, "messages") if row["real_topic"]}
    )
    rig.open()
    for n in range(4):
        rig.put(rig.clock.now_ms() + 1_000 + n * HOUR_MS, UNIQ_KEY=f"ours-{n}")
    rig.advance(2 * HOUR_MS)
    rig.close()
    return root, begins, ours


def test_each_part_has_its_own_verdicts(
    store: tuple[Path, dict[str, int], int],
) -> None:
    root, begins, ours = store
    found = verdicts_of(root)
    for name in PARTS:
        alone = verdicts_of(golden_store(name))
        ended = {at: verdict for at, verdict in alone.items() if verdict != "pending"}
        assert len(ended) > 10
        assert {at: found[at + begins[name]] for at in ended} == ended
        levels = {row["phys_offset"] for row in read_rows(golden_store(name), "schedule")}
        for at in (
            alone.keys() - ended.keys()
        ):  # our timer store adopted the timers, no service the levels
            assert found[at + begins[name]] in (("lost",) if at in levels else ("ok", "pending"))
    mine = [verdict for at, verdict in found.items() if at >= ours]
    assert Counter(mine) == {"ok": 2, "pending": 2}
    assert places(root) == set()
