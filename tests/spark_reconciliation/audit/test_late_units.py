"""Pending timer units whose TIMER_OUT_MS is before the read time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_reconciliation.audit.late_units import find_late_units
from spark_reconciliation.scan.files import Root
from timer_store.layout import TIMER_UNIT, UNIT_BYTES

READ_MS = 1_700_000_000_000
PLACE = 4_096


def store_with(root: Path, *, slot_ms: int, due_ms: int) -> Root:
    unit = np.zeros(1, TIMER_UNIT)
    unit["size"], unit["magic"], unit["prev_pos"] = UNIT_BYTES, 1, -1
    unit["write_ms"], unit["delay_ms"] = slot_ms - 400, 400
    unit["phys_offset"], unit["due_ms"] = PLACE, due_ms
    (root / "timerlog").mkdir()
    (root / "timerlog" / f"{0:020d}").write_bytes(unit.tobytes())
    return Root(str(root))


@pytest.mark.parametrize(
    ("slot_ms", "due_ms", "found"),
    [
        (READ_MS, READ_MS - 5_000, True),  # enqueued after its slot was delivered
        (READ_MS, READ_MS, True),
        (READ_MS, READ_MS + 1, True),  # TIMER_OUT_MS is that of the slot before
        (READ_MS - 1_000, READ_MS - 1_000, False),  # its slot was delivered
        (READ_MS + 60_000, READ_MS + 60_000, False),  # not due before the read time
    ],
)
def test_units_pending_after_their_time(
    tmp_path: Path, slot_ms: int, due_ms: int, found: bool
) -> None:
    root = store_with(tmp_path, slot_ms=slot_ms, due_ms=due_ms)
    assert find_late_units(root, READ_MS).tolist() == ([PLACE] if found else [])
