"""When a state cannot be continued, or may not count what an audit could not check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_reconciliation.audit.level_times import read_delays
from spark_reconciliation.incremental import incremental_audit
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.scan import planned_store
from spark_reconciliation.scan.files import Root
from spark_reconciliation.scan.planning import LogPlan
from tests.spark_reconciliation.incremental.conftest import Audit, full_audit
from tests.spark_reconciliation.incremental.test_incremental_audit import CONFIG, grown
from tests.support.audited_rig import LOG_FILE_BYTES, AuditedRig
from tests.support.plain_store import PlainStore

MARK, CHECKPOINT = "config/duemq.mark", "checkpoint"
NO_UNIT = (0, 0, 0)


@pytest.fixture
def rig(tmp_path: Path) -> AuditedRig:
    return grown(AuditedRig(tmp_path / "store"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def drop_last_unit(root: Path) -> None:
    """Remove the unit of the last delivery in a queue."""
    store = PlainStore(root)
    store.put_unit("T", 0, len(store.units("T", 0)) - 1, NO_UNIT)


def test_queues_that_were_not_complete(
    rig: AuditedRig, state: Path, audit: Audit, session: LocalSession
) -> None:
    rig.rig.close()
    drop_last_unit(rig.root)
    files = {name: (rig.root / name).read_bytes() for name in (MARK, CHECKPOINT)}
    for name in files:
        (rig.root / name).unlink()
    audit(rig.root, state)
    assert not audit(rig.root, state).full_because
    assert "unreachable" not in full_audit(session, rig.root, CONFIG).verdicts
    for name, data in files.items():
        (rig.root / name).write_bytes(data)
    reason = "the units of queues were not complete in the last audit"
    assert audit(rig.root, state).full_because == reason
    assert full_audit(session, rig.root, CONFIG).verdicts["unreachable"] == 1


@pytest.mark.extended
def test_units_that_were_not_complete(
    rig: AuditedRig, state: Path, audit: Audit, session: LocalSession
) -> None:
    """Deliveries after the position to which queues are complete are examined again."""
    former = (rig.root / MARK).read_bytes()
    rig.advance(40)
    rig.restart(0)
    rig.rig.close()
    drop_last_unit(rig.root)
    present = (rig.root / MARK).read_bytes()
    (rig.root / MARK).write_bytes(former)
    audit(rig.root, state)
    assert "unreachable" not in full_audit(session, rig.root, CONFIG).verdicts
    (rig.root / MARK).write_bytes(present)
    assert not audit(rig.root, state).full_because
    assert full_audit(session, rig.root, CONFIG).verdicts["unreachable"] == 1


@pytest.mark.extended
def test_levels_with_other_delays(
    rig: AuditedRig, state: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.rig.close()
    audit(rig.root, state)

    def other_delays(root: Root, plan: LogPlan) -> Mapping[int, tuple[int, ...]]:
        return dict.fromkeys(read_delays(root, plan), (7,))

    monkeypatch.setattr(planned_store, "read_delays", other_delays)
    reason = "levels have other delays than in the last audit"
    assert audit(rig.root, state).full_because == reason


@pytest.mark.extended
def test_a_queue_that_was_written_again(rig: AuditedRig, state: Path, audit: Audit) -> None:
    rig.rig.close()
    audit(rig.root, state)
    store = PlainStore(rig.root)
    units = store.units("T", 0)
    store.put_unit("T", 0, 0, units[len(units) - 1])
    store.put_unit("T", 0, len(units) - 1, units[0])
    assert audit(rig.root, state).full_because == incremental_audit.NAMES_CLOSED


@pytest.mark.extended
def test_a_log_without_records_of_the_last_audit(
    rig: AuditedRig, state: Path, audit: Audit
) -> None:
    audit(rig.root, state)
    end = rig.rig.store.max_offset
    while rig.rig.store.max_offset < end + 2 * LOG_FILE_BYTES:
        rig.send(2)
    rig.restart(0)
    rig.rig.close()
    for path in (rig.root / "commitlog").iterdir():
        if int(path.name) <= end:
            path.unlink()
    assert audit(rig.root, state).full_because == "the log has no record of the last audit"
