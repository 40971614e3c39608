"""Audits and exports that are killed, whose disk is full, or whose store changes meanwhile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest

from duemq_common.clock import FakeClock
from message_store.log.batch import PutBatch
from spark_reconciliation.audit.table_reader import TableReader
from spark_reconciliation.jobs.run import AuditRequest, run_audit, write_whole
from tests.spark_reconciliation.conftest import IN_TEST_ALL, session_of_each
from tests.support.commands import duemq, environment
from tests.support.forked_programs import AUDITS, run_forked
from tests.support.migration_rig import MigrationRig
from tests.support.planted_faults import plant
from tests.support.requirements import Missing, need_commands, skip_without
from tests.support.stores import add_message

MESSAGES = 30
engine = session_of_each(IN_TEST_ALL, "local")
KILLED = """
import os, signal, sys
from pyarrow import parquet

place = sys.argv.pop(1)
write_to_dataset, replace = parquet.write_to_dataset, os.replace

def written(*args, **more):
    write_to_dataset(*args, **more)
    if place == "rows":
        os.kill(os.getpid(), signal.SIGKILL)

def replaced(source, target):
    if str(target).endswith(place):  # kernels are stored with os.replace, too: name_rows.nbi
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

parquet.write_to_dataset, os.replace = written, replaced
from duemq.cli import main
main()
"""
ON_SMALL_DISK = """
import atexit, ctypes, subprocess, sys
from pathlib import Path
from duemq.cli import main
from spark_reconciliation.local import streams

disk, size, spilled, *sys.argv[1:] = sys.argv[1:]
ctypes.CDLL(None).unshare(0x20000)  # CLONE_NEWNS
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
streams.SPILL_BYTES = int(spilled) if spilled else streams.SPILL_BYTES
try:
    main()
finally:
    atexit._run_exitfuncs()
    print(*(f"left {path}\\n" for path in Path(disk).rglob("*") if path.is_file()), sep="", end="")
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("planted") / "store", plain=3_000).root


@pytest.mark.sampled
@pytest.mark.parametrize("place", ["rows", "report.html"])
def test_a_killed_audit_leaves_no_result(store: Path, tmp_path: Path, place: str) -> None:
    out, report, ledger = tmp_path / "out", tmp_path / "report.html", tmp_path / "ledger"
    words = ["reconcile", "run", str(store), "--report", str(report)]
    words += ["--ledger", f"sqlite:///{ledger}", "--out", str(out)]
    killed = run_forked(AUDITS, KILLED, place, *words, environment=environment())
    assert killed.returncode == -9, killed.stderr
    assert killed.stdout == ""
    assert not report.exists()
    assert out.exists() == (place == "report.html"), "the rows are written before the report"
    if out.exists():
        assert ds.dataset(out, format="parquet", partitioning="hive").files
        assert (out / "_SUCCESS").exists()
    history = duemq("reconcile", "history", "--ledger", f"sqlite:///{ledger}", "--json")
    assert history.returncode != 0 or json.loads(history.stdout) == []


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "kilobytes", "left"),
    [
        (("reconcile", "run", "STORE", "--ledger", "none", "--out", "DISK/out"), 60, 0),
        (("reconcile", "run", "STORE", "--ledger", "none", "--report", "DISK/r.html"), 12, 0),
        (("reconcile", "export", "STORE", "--to", "DISK/tables"), 60, 1),
        (("reconcile", "repair", "STORE", "--to", "DISK/lost.jsonl"), 4, 0),
        (("reconcile", "run", "STORE", "--ledger", "none", "--state", "DISK/state"), 12, 1),
    ],
    ids=["out", "report", "export", "repair", "state"],
)
def test_a_full_disk_at_the_output(
    store: Path, tmp_path: Path, words: tuple[str, ...], kilobytes: int, left: int
) -> None:
    """Args: left: number of files that remain: the lock of an export, and of a state."""
    given = (word.replace("STORE", str(store)).replace("DISK", str(tmp_path)) for word in words)
    done = on_small_disk(tmp_path, kilobytes, *given)
    assert done.returncode == 2, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert "No space left on device" in line
    assert str(tmp_path) in line
    assert len(done.stdout.splitlines()) == left, done.stdout


@pytest.mark.extended
def test_a_full_disk_for_temporary_files(tmp_path: Path) -> None:
    disk, broker = tmp_path / "disk", BusyBroker(tmp_path / "store")
    disk.mkdir()
    for _ in range(40):
        broker.step()
    broker.rig.close()
    words = ("reconcile", "run", str(broker.rig.root), "--ledger", "none")
    done = on_small_disk(disk, 20, *words, spilled="0", TMPDIR=str(disk))
    assert done.returncode == 2, done.stdout + done.stderr
    [line] = done.stderr.splitlines()
    assert "No space left on device" in line
    assert "TMPDIR" in line
    assert done.stdout == ""


def on_small_disk(
    disk: Path, kilobytes: int, *words: str, spilled: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that sees a small disk at a directory; print the files that it leaves.

    Args:
        spilled: Bytes above which streams are in temporary files; empty: the default.
    """
    with skip_without():
        need_commands("unshare", "mount")
        if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
            raise Missing("mount namespaces")
    given = (str(disk), f"{kilobytes}k", spilled, *words)
    return run_forked(AUDITS, ON_SMALL_DISK, *given, environment=environment(**more))


def test_a_file_that_exists_is_replaced_at_once(tmp_path: Path) -> None:
    file, link = tmp_path / "a.html", tmp_path / "link"
    file.write_text("former")
    link.symlink_to(file)
    write_whole(link, "new")
    assert (file.read_text(), link.is_symlink()) == ("new", True)
    write_whole(Path("/dev/null"), "text")
    assert not Path("/dev/null").is_file()


# -- stores that change ---------------------------------------------------------------------------


class BusyBroker:
    """Broker that sends, delivers and cancels messages at each step.

    Attributes:
        sent: Number of scheduled messages so far.
    """

    def __init__(self, root: Path) -> None:
        self.rig = MigrationRig(root, FakeClock()).open()
        self.random = Random(11)
        self.sent = 0

    def step(self) -> None:
        rig, batch = self.rig, PutBatch(MESSAGES)
        for number in range(MESSAGES):
            due_ms = rig.clock.now_ms() + self.random.randrange(200, 20_000)
            delay = {"TIMER_DELIVER_MS": str(due_ms)} if number % 3 else {"DELAY": "4"}
            names = {"UNIQ_KEY": f"u{self.sent + number}", "WAIT": "true"}
            add_message(rig.store, batch, "TU"[number % 2], number % 4, properties=names | delay)
        rig.put(batch)
        self.sent += MESSAGES
        rig.work()
        timers = batch.filled["phys_offset"][1:3]
        rig.pending_timers.cancel(timers.astype(np.int64))
        rig.advance(self.random.randrange(500, 4_000))
        if self.random.random() < 0.5:
            assert rig.persist_timers()
            assert rig.persist_levels()


def test_a_store_that_changes_during_the_audit(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker works before and after the parts of each table are planned."""
    broker = BusyBroker(tmp_path / "store")
    for _ in range(20):
        broker.step()
    before, plan, calls = broker.sent, TableReader.partitions, list[str]()

    def partitions(self: TableReader) -> Any:
        broker.step()
        parts = plan(self)
        broker.step()
        calls.append("")
        return parts

    monkeypatch.setattr(TableReader, "partitions", partitions)
    summary = run_audit(engine, AuditRequest(stores=(str(tmp_path / "store"),)), FakeClock())
    broker.rig.close()
    assert len(calls) > 1
    assert summary.clean, summary
    assert before <= summary.messages < broker.sent
    assert {"ok", "pending", "cancelled"} <= set(summary.verdicts)
