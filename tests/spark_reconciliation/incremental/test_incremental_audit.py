"""What incremental audits find, what they do not read again, and when they are full ones.

`audit` compares each result with that of a full audit.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duemq_common.errors import UsageError
from message_store import layout
from spark_reconciliation.audit.audit_config import AuditConfig
from spark_reconciliation.audit.summary import Summary
from spark_reconciliation.incremental import incremental_audit
from spark_reconciliation.incremental.audit_state import read_state
from spark_reconciliation.incremental.incremental_audit import audit_with_state
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.state_folder import locked
from tests.spark_reconciliation.incremental.conftest import Audit, full_audit
from tests.spark_reconciliation.log_bytes import Log
from tests.support.audited_rig import LOG_FILE_BYTES, AuditedRig
from tests.support.golden_stores import golden_store
from tests.support.plain_store import PlainStore

CONFIG = AuditConfig()


@pytest.fixture
def rig(tmp_path: Path) -> AuditedRig:
    return AuditedRig(tmp_path / "store")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def grown(rig: AuditedRig) -> AuditedRig:
    """Return a store with delivered, pending and cancelled messages, all synced."""
    for number in range(8):
        rig.send(number)
    rig.advance(20)
    for number in range(8):
        rig.send(number + 8)
    rig.cancel(3)
    rig.restart(0)
    return rig


def test_an_unchanged_store_is_counted_without_reading_it(
    rig: AuditedRig, state: Path, audit: Audit
) -> None:
    rig.send(3)
    rig.send(8)
    rig.advance(12)
    rig.restart(0)
    assert audit(rig.root, state).full_because == f"there is no state in {state}"
    use = audit(rig.root, state)
    assert (use.full_because, use.start, use.earlier) == ("", use.end, 0)
    assert audit(rig.root, state) == use


def test_old_records_are_not_read_again(
    rig: AuditedRig, state: Path, audit: Audit, session: LocalSession
) -> None:
    """The limit that the documentation states: damage of messages that were counted."""
    audit(grown(rig).root, state)
    log = Log(rig.root, LOG_FILE_BYTES)
    log.flip(rig.sent[0] + layout.RECORD_HEAD.itemsize)
    log.close()
    summary = audit_with_state(session, str(rig.root), CONFIG, state)
    assert summary.state is not None
    assert not summary.state.full_because
    assert summary.clean
    assert "corrupt" in full_audit(session, rig.root, CONFIG).verdicts


def second_delivery(rig: AuditedRig) -> None:
    rig.repeat(0)


def delivery_lost(rig: AuditedRig) -> None:
    rig.advance(23)
    rig.lose(0)
    rig.persist(1)


def delivery_early(rig: AuditedRig) -> None:
    rig.advance(23)
    for number in range(4):
        rig.hasten(number + 20)


def outage(rig: AuditedRig) -> None:
    rig.rig.close()
    rig.rig.clock.set_ms(rig.rig.clock.now_ms() + 3_600_000)
    rig.open()


def body_changed(rig: AuditedRig) -> None:
    rig.advance(23)
    rig.damage(0)


def removal(rig: AuditedRig) -> None:
    for number in range(12):
        rig.send(number)
    rig.advance(23)
    rig.remove(0)


def moves(rig: AuditedRig) -> None:
    for number in range(4):
        rig.move(number)
    rig.advance(20)


def cancels(rig: AuditedRig) -> None:
    for number in range(6):
        rig.cancel(number)


def fires(rig: AuditedRig) -> None:
    for number in range(6):
        rig.fire(number)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "changes",
    [
        {second_delivery: "duplicated", delivery_early: "early", delivery_lost: "lost"},
        {body_changed: "corrupt", AuditedRig.stray: "unexpected", removal: "removed"},
        {outage: "late"},
        {moves: "moved"},
        {cancels: "cancelled"},
        {fires: "moved"},
    ],
    ids=lambda changes: "-".join(changes.values()),
)
def test_changes_after_the_state(
    rig: AuditedRig, state: Path, audit: Audit, changes: dict[Any, str]
) -> None:
    audit(grown(rig).root, state)
    for change, verdict in changes.items():
        before = audit.verdicts.get(verdict, 0)
        rig.audited()
        change(rig, *([0] if change is AuditedRig.stray else []))
        assert not audit(rig.root, state).full_because
        assert audit.verdicts.get(verdict, 0) > before
    rig.restart(0)
    assert not audit(rig.root, state).full_because, "the findings are in the next state"


def test_a_log_file_of_delivered_messages_is_removed(
    rig: AuditedRig, state: Path, audit: Audit
) -> None:
    for number in range(20):
        rig.send(2 * number)
    rig.advance(200)
    rig.restart(0)
    audit(rig.root, state)
    for _ in range(3):
        rig.remove(0)
        use = audit(rig.root, state)
        assert (use.full_because, use.earlier) == ("", 0)
        assert set(audit.verdicts) <= {"ok", "removed"}
    log_min = rig.rig.store.min_offset
    again = next(sent for sent, pending in rig.origins().items() if pending < log_min <= sent)
    rig.repeat(rig.readable(rig.sent).index(again))
    assert not audit(rig.root, state).full_because
    assert audit.verdicts["duplicated"] == 1, "its first delivery is still in the log"


@pytest.mark.extended
def test_a_clock_that_was_set_back(rig: AuditedRig, state: Path, audit: Audit) -> None:
    audit(grown(rig).root, state)
    rig.rig.clock.set_ms(rig.rig.clock.now_ms() - 5_000)
    for number in range(12):
        rig.send(number)
    rig.restart(0)
    for _ in range(3):
        assert not audit(rig.root, state).full_because
        rig.send(1)
        rig.advance(4)


@pytest.mark.extended
def test_a_clock_that_was_set_back_at_the_end_of_a_log_file(
    rig: AuditedRig, state: Path, audit: Audit, session: LocalSession
) -> None:
    """The record before the step is in a file that was read completely."""
    end = grown(rig).rig.store.max_offset
    rig.rig.close()
    log, left = Log(rig.root, LOG_FILE_BYTES), LOG_FILE_BYTES - end % LOG_FILE_BYTES
    blank = np.array([(left, layout.MAGIC_BLANK)], layout.BLANK_RECORD)
    log.at(end)[: blank.nbytes] = blank.view(np.uint8)
    log.close()
    audit(rig.root, state)
    assert read_state(state).end == end + left
    rig.open()
    rig.rig.clock.set_ms(rig.rig.clock.now_ms() - 5_000)
    for number in range(12):
        rig.send(number)
    rig.restart(0)
    assert not audit(rig.root, state).full_because
    [step] = full_audit(session, rig.root, CONFIG).clock
    assert step["phys_offset"] == end + left


# -- full audits --------------------------------------------------------------------------------


def test_a_restored_backup_is_audited_in_full(
    rig: AuditedRig, state: Path, audit: Audit, tmp_path: Path
) -> None:
    grown(rig)
    rig.rig.close()
    shutil.copytree(rig.root, tmp_path / "backup")
    rig.open()
    rig.send(5)
    rig.restart(0)
    audit(rig.root, state)
    rig.rig.close()
    shutil.rmtree(rig.root)
    shutil.copytree(tmp_path / "backup", rig.root)
    assert audit(rig.root, state).full_because.startswith("the log ends at ")
    assert not audit(rig.root, state).full_because


@pytest.mark.extended
def test_another_last_record(rig: AuditedRig, state: Path, audit: Audit) -> None:
    """The log was truncated, as on a former master, and has grown again."""
    audit(grown(rig).root, state)
    last = read_state(state).last
    assert last is not None
    log = Log(rig.root, LOG_FILE_BYTES)
    log.head(last.offset)["store_ms"] += 1
    log.close()
    reason = "the last record of the last audit is not in the log"
    assert audit(rig.root, state).full_because == reason


def test_a_removed_file_came_back(rig: AuditedRig, state: Path, audit: Audit) -> None:
    for number in range(20):
        rig.send(2 * number)
    rig.advance(200)
    [first, *_] = sorted((rig.root / "commitlog").iterdir())
    data = first.read_bytes()
    rig.remove(0)
    audit(rig.root, state)
    first.write_bytes(data)
    assert audit(rig.root, state).full_because.startswith("the log begins at 0, before ")


@pytest.mark.extended
def test_a_missing_file_of_the_log(rig: AuditedRig, state: Path, audit: Audit) -> None:
    audit(grown(rig).root, state)
    rig.rig.close()
    sorted((rig.root / "commitlog").iterdir())[1].unlink()
    reason = "files of the log were missing or had other sizes"
    assert audit(rig.root, state).full_because == reason
    assert audit(rig.root, state).full_because == f"in the last audit, {reason}"


@pytest.mark.extended
def test_a_unit_that_names_a_counted_record(rig: AuditedRig, state: Path, audit: Audit) -> None:
    audit(grown(rig).root, state)
    rig.rig.close()
    store = PlainStore(rig.root)
    units = store.units("T", 0)
    store.put_unit("T", 0, len(units), units[0])
    assert audit(rig.root, state).full_because == incremental_audit.NAMES_CLOSED
    assert not audit(rig.root, state).full_because, "its message is read again each time"


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("apache-5.3.3-clean", "records of an Apache broker named no origins"),
        ("apache-5.5.1-timeline", "an Apache broker had not stopped cleanly"),
    ],
)
def test_stores_of_apaches_brokers(audit: Audit, state: Path, name: str, reason: str) -> None:
    root = golden_store(name)
    audit(root, state)
    assert audit(root, state).full_because == f"in the last audit, {reason}"
    assert not list(state.glob("*.parquet"))


@pytest.mark.extended
def test_other_settings(rig: AuditedRig, state: Path, audit: Audit) -> None:
    audit(grown(rig).root, state)
    strict = AuditConfig(late_ms=0)
    assert "other values of --late" in audit(rig.root, state, strict).full_because
    assert not audit(rig.root, state, strict).full_because
    later = AuditConfig(late_ms=0, as_of_ms=rig.rig.clock.now_ms() + 50_000)
    assert not audit(rig.root, state, later).full_because, "the time of an audit may be any"
    assert not audit(rig.root, state, strict).full_because


@pytest.mark.extended
def test_a_copy_of_the_store_and_another_one(
    rig: AuditedRig, state: Path, audit: Audit, session: LocalSession, tmp_path: Path
) -> None:
    audit(grown(rig).root, state)
    rig.rig.close()
    shutil.copytree(rig.root, tmp_path / "copy")
    other = AuditedRig(tmp_path / "other")
    other.send(9)
    other.restart(0)
    with pytest.raises(UsageError, match=r"is the state of .*/store: name another directory for"):
        audit_with_state(session, str(other.root), CONFIG, state)
    assert not audit(rig.root, state).full_because, "it is left alone"
    assert audit(tmp_path / "copy", state).full_because == f"the state is of {rig.root}"


def test_one_audit_at_a_time(rig: AuditedRig, state: Path, session: LocalSession) -> None:
    with locked(state, ""), pytest.raises(UsageError, match=f"another audit uses {state}"):
        audit_with_state(session, str(rig.root), CONFIG, state)


def test_a_killed_audit_leaves_the_former_state(
    rig: AuditedRig,
    state: Path,
    audit: Audit,
    session: LocalSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audit(grown(rig).root, state)
    former = read_state(state)

    def killed(*_: object, **__: object) -> Summary:
        raise KeyboardInterrupt

    rig.send(4)
    for name in ("survey_stores", "summarize", "last_mark", "write_state"):
        with monkeypatch.context() as patched:
            patched.setattr(incremental_audit, name, killed)
            with pytest.raises(KeyboardInterrupt):
                audit_with_state(session, str(rig.root), CONFIG, state)
        assert read_state(state) == former
        assert {path.name for path in state.glob("*.parquet")} == set(former.files)
    use = audit(rig.root, state)
    assert (use.full_because, use.start) == ("", former.end)
