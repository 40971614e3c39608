"""Units of timers in incremental audits: compared once, and again after another checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from spark_reconciliation.incremental.audit_state import read_state
from spark_reconciliation.incremental.incremental_audit import audit_with_state
from spark_reconciliation.local.frame import LocalSession
from tests.spark_reconciliation.incremental.conftest import Audit, full_audit
from tests.spark_reconciliation.incremental.test_incremental_audit import CONFIG
from tests.support.audited_rig import AuditedRig
from timer_store.layout import TIMER_CHECK, TIMER_CHECK_BYTES, TIMER_UNIT, UNIT_BYTES

CHECK = "config/timercheck"


@pytest.fixture
def rig(tmp_path: Path) -> AuditedRig:
    """Return a closed store with delivered and pending timers."""
    made = AuditedRig(tmp_path / "store")
    for number in range(8):
        made.send(2 * number)
    made.restart(0)
    (tmp_path / "timercheck").write_bytes((made.root / CHECK).read_bytes())
    made.advance(14)
    made.restart(0)
    made.rig.close()
    return made


def check(root: Path) -> npt.NDArray[np.void]:
    """Return the checkpoint, to read and write."""
    return np.memmap(root / CHECK, TIMER_CHECK, "r+", shape=1)


def units(root: Path) -> list[npt.NDArray[np.void]]:
    """Return the units before the position of the checkpoint, to read and write."""
    written, files = int(check(root)["log_pos"][0]), sorted((root / "timerlog").iterdir())
    return [
        np.memmap(path, TIMER_UNIT, "r+", shape=max(min(left // UNIT_BYTES, room), 0))
        for path in files
        if (left := written - int(path.name)) >= UNIT_BYTES
        for room in [path.stat().st_size // UNIT_BYTES]
    ]


def spoil(root: Path, *, pending: bool) -> None:
    """Change the size of the record in the first unit of a slot that is, or is not, delivered."""
    read_ms = int(check(root)["read_ms"][0])
    for rows in units(root):
        is_pending = rows["write_ms"] + rows["delay_ms"] >= read_ms
        is_chosen = (is_pending == pending) & (rows["size"] == UNIT_BYTES) & (rows["due_ms"] > 0)
        if is_chosen.any():
            rows[int(np.argmax(is_chosen))]["record_size"] += 1
            rows.flush()  # type: ignore[attr-defined]
            return
    raise AssertionError("there is no such unit")


def faults(session: LocalSession, root: Path) -> list[object]:
    return [row["damage"] for row in full_audit(session, root, CONFIG).unread]


@pytest.mark.extended
def test_a_wrong_unit_is_reported_by_each_audit(
    rig: AuditedRig, tmp_path: Path, audit: Audit, session: LocalSession
) -> None:
    spoil(rig.root, pending=True)
    for reason in (f"there is no state in {tmp_path / 'state'}", "", ""):
        assert audit(rig.root, tmp_path / "state").full_because == reason
    assert faults(session, rig.root) == ["pointer"]


def test_units_that_an_audit_has_compared_are_not_read_again(
    rig: AuditedRig, tmp_path: Path, audit: Audit
) -> None:
    audit(rig.root, tmp_path / "state")
    assert read_state(tmp_path / "state").timer_pos == int(check(rig.root)["log_pos"][0]) > 0


@pytest.mark.extended
def test_a_timer_log_that_was_written_again(
    rig: AuditedRig, tmp_path: Path, audit: Audit, session: LocalSession
) -> None:
    audit(rig.root, tmp_path / "state")
    check(rig.root)["log_pos"] -= UNIT_BYTES
    spoil(rig.root, pending=True)
    assert not audit(rig.root, tmp_path / "state").full_because
    assert "pointer" in faults(session, rig.root)


def test_timers_that_are_pending_again(
    rig: AuditedRig, tmp_path: Path, audit: Audit, session: LocalSession
) -> None:
    """The checkpoint of an earlier time was restored."""
    spoil(rig.root, pending=False)
    audit(rig.root, tmp_path / "state")
    assert faults(session, rig.root) == []
    check(rig.root)["read_ms"] = np.fromfile(tmp_path / "timercheck", TIMER_CHECK, 1)["read_ms"]
    assert not audit(rig.root, tmp_path / "state").full_because
    assert "pointer" in faults(session, rig.root)


@pytest.mark.extended
def test_a_removed_record_of_a_delivered_timer_in_a_pending_slot(
    rig: AuditedRig, tmp_path: Path, audit: Audit, session: LocalSession
) -> None:
    """The timers were delivered since the checkpoint, and retention has removed their records."""
    (rig.root / CHECK).write_bytes((tmp_path / "timercheck").read_bytes())
    assert (rig.root / CHECK).stat().st_size == TIMER_CHECK_BYTES
    audit(rig.root, tmp_path / "state")
    sorted((rig.root / "commitlog").iterdir())[0].unlink()
    assert not audit(rig.root, tmp_path / "state").full_because
    assert full_audit(session, rig.root, CONFIG).verdicts["removed"]


def break_unit(root: Path, number: int) -> None:
    """Make the unit with this number among all, from the end if below 0, malformed."""
    rows = [one[index : index + 1] for one in units(root) for index in range(one.size)]
    rows = [one for one in rows if one["size"][0] == UNIT_BYTES]
    rows[number]["magic"] = 0


@pytest.mark.extended
def test_new_units_that_are_malformed(
    rig: AuditedRig, tmp_path: Path, audit: Audit, session: LocalSession
) -> None:
    audit(rig.root, tmp_path / "state")
    rig.open()
    rig.send(20)
    rig.send(20)
    rig.restart(0)
    rig.rig.close()
    break_unit(rig.root, -2)
    assert not audit(rig.root, tmp_path / "state").full_because
    assert faults(session, rig.root)[0] == "gap"
    assert not audit(rig.root, tmp_path / "state").full_because, "it is reported again"


def test_units_that_an_audit_has_examined_are_not_examined_again(
    rig: AuditedRig, tmp_path: Path, session: LocalSession
) -> None:
    """The limit that the documentation states."""
    state = tmp_path / "state"
    audit_with_state(session, str(rig.root), CONFIG, state)
    break_unit(rig.root, 0)
    assert audit_with_state(session, str(rig.root), CONFIG, state).complete
    assert faults(session, rig.root) == ["gap"]
