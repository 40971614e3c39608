"""`duemq reconcile run --state`: runs from cron, as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_reconciliation.state_folder import locked
from tests.support.audited_rig import AuditedRig
from tests.support.commands import duemq, environment
from tests.support.forked_programs import AUDITS, run_forked
from tests.support.migration_rig import kill_opened

KILLED = """
import os, signal, sys

name, replace, fsync = sys.argv.pop(1), os.replace, os.fsync

def replaced(source, target):
    if str(target).endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

def synced(descriptor):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.replace, os.fsync = replaced, synced
from duemq.cli import main
main()
"""


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    made = AuditedRig(tmp_path / "store")
    for number in range(8):
        made.send(number)
    made.advance(20)
    made.restart(0)
    made.rig.close()
    yield made
    kill_opened()


def words(store: Path, *more: str) -> list[str]:
    return ["reconcile", "run", str(store), "--ledger", "none", *more]


def result(store: Path, *more: str, code: int = 0) -> dict[str, Any]:
    """Return the result of a run, without its id."""
    ran = duemq(*words(store, "--json", *more))
    assert ran.returncode == code, ran.stdout + ran.stderr
    printed: dict[str, Any] = json.loads(ran.stdout)
    del printed["audit_id"]
    return printed


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def grow(rig: AuditedRig) -> None:
    """Send and deliver messages, one of them a second time."""
    rig.open()
    for number in range(6):
        rig.send(number + 3)
    rig.advance(9)
    rig.repeat(0)
    rig.restart(0)
    rig.rig.close()


def test_runs_with_state(rig: AuditedRig, tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state"))
    first = duemq(*words(rig.root, *state))
    assert first.returncode == 0, first.stdout + first.stderr
    assert f"Full audit: there is no state in {tmp_path / 'state'}." in first.stdout
    again = duemq(*words(rig.root, *state))
    assert "Incremental audit: 0 new bytes of the log, and 0 earlier records." in again.stdout
    grow(rig)
    second = result(rig.root, *state, code=1)
    use, expected = second.pop("state"), result(rig.root, code=1)
    assert expected.pop("state") is None
    assert second == expected
    assert second["verdicts"]["duplicated"] == 1
    assert (use["full_because"], use["start"] > 0) == ("", True)
    third = duemq(*words(rig.root, *state))
    assert third.returncode == 1, "the finding is reported by each run"
    assert "duplicated: delivered more than once (1)" in third.stdout
    assert "Incremental audit: 0 new bytes of the log, and 3 earlier records." in third.stdout


@pytest.mark.extended
@pytest.mark.parametrize("name", ["state.json", "pending", "delivered", "records"])
def test_a_damaged_state(rig: AuditedRig, tmp_path: Path, name: str) -> None:
    state = ("--state", str(tmp_path / "state"))
    result(rig.root, *state)
    grow(rig)
    [file] = (path for path in (tmp_path / "state").iterdir() if path.name.startswith(name))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    damaged = result(rig.root, *state, code=1)
    use, expected = damaged.pop("state"), result(rig.root, code=1)
    assert "damaged" in use["full_because"]
    assert file.name in use["full_because"]
    del expected["state"]
    assert damaged == expected
    assert result(rig.root, *state, code=1)["state"]["full_because"] == ""


def test_the_state_of_another_store(rig: AuditedRig, tmp_path: Path) -> None:
    state = tmp_path / "state"
    result(rig.root, "--state", str(state))
    before = files_of(state)
    other = AuditedRig(tmp_path / "other")
    other.send(9)
    other.restart(0)
    other.rig.close()
    ran = duemq(*words(other.root, "--state", str(state)))
    assert ran.returncode == 2
    assert f"is the state of {rig.root}: name another directory for {other.root}" in ran.stderr
    assert files_of(state) == before


@pytest.mark.extended
@pytest.mark.parametrize("name", ["delivered-2.parquet", "state.json.tmp", "state.json"])
def test_a_killed_run_changes_nothing(rig: AuditedRig, tmp_path: Path, name: str) -> None:
    state = tmp_path / "state"
    result(rig.root, "--state", str(state))
    before = files_of(state)
    grow(rig)
    run = words(rig.root, "--state", str(state))
    killed = run_forked(AUDITS, KILLED, name, *run, environment=environment())
    assert (killed.returncode, killed.stdout) == (-9, ""), killed.stderr
    assert {name: data for name, data in files_of(state).items() if name in before} == before
    later = result(rig.root, "--state", str(state), code=1)
    use, expected = later.pop("state"), result(rig.root, code=1)
    del expected["state"]
    assert later == expected
    assert use["full_because"] == ""
    assert len(files_of(state)) == len(before), "the files of the killed run are removed"


def test_one_run_at_a_time(rig: AuditedRig, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with locked(state, ""):
        ran = duemq(*words(rig.root, "--state", str(state)))
    assert ran.returncode == 2
    assert f"another audit uses {state}" in ran.stderr


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--report", "r.html"), "--state is for counts and findings: omit --report, --out"),
        (("--out", "rows"), "--state is for counts and findings: omit --report, --out"),
        (("--sent", "sent.csv"), "--state is for counts and findings: omit --report, --out"),
        (("--engine", "spark"), "--state works without Spark: omit --engine spark"),
        (("--conf", "spark.a=1"), "--state works without Spark: omit --engine spark"),
        (("OTHER",), "--state takes one store, not 2"),
    ],
)
def test_options_that_a_state_excludes(
    rig: AuditedRig, tmp_path: Path, more: tuple[str, ...], text: str
) -> None:
    state = tmp_path / "state"
    given = (word.replace("OTHER", str(rig.root)) for word in more)
    ran = duemq(*words(rig.root, *given, "--state", str(state)))
    assert ran.returncode == 2
    assert text in ran.stderr
    assert not state.exists()


def test_a_store_in_an_object_store(tmp_path: Path) -> None:
    where = ("s3://bucket/store", "--ledger", "none", "--state", str(tmp_path / "state"))
    ran = duemq("reconcile", "run", *where)
    assert ran.returncode == 2
    assert "--state needs a store on a disk of this machine" in ran.stderr
