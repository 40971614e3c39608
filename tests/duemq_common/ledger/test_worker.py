"""The ledger process: it writes the same as a ledger in this process, and ends with the broker."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duemq_common.ledger.errors import (
    LedgerError,
    LedgerNewer,
    LedgerOfAnotherStore,
    LedgerUnavailable,
)
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.worker import LedgerProcess, LedgerWorker, Worker
from migration.ledger.reader import MigrationLedger
from migration.ledger.records import EventRecord, LedgerSnapshot, MigrationRecord

GONE_MS = 120_000
RUN = MigrationRecord(migration_id="m", started_ms=1)
PARENT = """
import sys
from migration.ledger.records import Snapshot
from duemq_common.ledger.location import LedgerLocation
from duemq_common.ledger.worker import LedgerProcess
worker = LedgerProcess(LedgerLocation(url=sys.argv[1], store_id="s-1", store_path="/"))
worker.open(Snapshot(next_record=0), 1)
print(worker._process.pid, flush=True)
sys.stdin.read()
"""


def place(path: Path, store_id: str = "s-1") -> LedgerLocation:
    return LedgerLocation(url=f"sqlite:///{path}", store_id=store_id, store_path="/", busy_ms=1)


def event(text: str) -> EventRecord:
    return EventRecord(key=text, migration_id="m", at_ms=5, level=3, kind="state", text=text)


def events(path: Path) -> list[str]:
    ledger = MigrationLedger.open_existing(f"sqlite:///{path}")
    try:
        return [found.text for found in ledger.run("m").events]
    finally:
        ledger.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[LedgerProcess]:
    worker = LedgerProcess(place(tmp_path / "l.sqlite"))
    yield worker
    worker.end()


def pid_of(worker: LedgerProcess) -> int:
    assert worker.pid is not None
    return worker.pid


def is_gone(fd: int) -> bool:
    """Return whether a process has ended or ends within a short time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(GONE_MS))


def test_both_write_the_same(tmp_path: Path) -> None:
    found = []
    for kind in (LedgerWorker, LedgerProcess):
        path = tmp_path / f"{kind.__name__}.sqlite"
        worker: Worker = kind(place(path))
        worker.open(LedgerSnapshot(next_record=0), 1)
        worker.write([RUN, event("one")])
        worker.close()
        worker.open(LedgerSnapshot(next_record=0), 2)
        worker.write([event("two"), event("three")])
        worker.end()
        found.append(events(path))
    assert found[0] == found[1]
    assert sorted(found[0]) == ["one", "three", "two"]


def test_the_process_starts_with_the_ledger(process: LedgerProcess) -> None:
    process.close()
    assert process.pid is None
    process.open(LedgerSnapshot(next_record=0), 1)
    first = pid_of(process)
    process.close()
    process.open(LedgerSnapshot(next_record=0), 2)
    assert pid_of(process) == first


def test_another_stores_ledger_is_refused_with_its_own_error(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    for kind in (LedgerWorker, LedgerProcess):
        owner: Worker = kind(place(path))
        owner.open(LedgerSnapshot(next_record=0), 1)
        owner.end()
        other: Worker = kind(place(path, "s-2"))
        with pytest.raises(LedgerOfAnotherStore, match="it belongs to store s-1") as refusal:
            other.open(LedgerSnapshot(next_record=0), 1)
        assert (refusal.value.wanted, refusal.value.found) == ("s-2", "s-1")
        other.end()


@pytest.mark.parametrize(
    "error",
    [
        LedgerError("here", "it is bad", "Look"),
        LedgerUnavailable("here", "it is away", "Wait"),
        LedgerOfAnotherStore("here", wanted="a", found="b", path="/c"),
        LedgerNewer("here", found=["9"], newest="3"),
    ],
)
def test_errors_are_transferred(error: LedgerError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_a_killed_process_is_restarted(process: LedgerProcess, tmp_path: Path) -> None:
    process.open(LedgerSnapshot(next_record=0), 1)
    process.write([RUN, event("before")])
    fd = os.pidfd_open(pid_of(process))
    os.kill(pid_of(process), signal.SIGKILL)
    assert is_gone(fd)
    os.close(fd)
    with pytest.raises(LedgerUnavailable, match=r"has ended.*Another one is started"):
        process.write([event("lost")])
    process.close()
    process.open(LedgerSnapshot(next_record=0), 2)
    process.write([event("after")])
    process.end()
    assert sorted(events(tmp_path / "l.sqlite")) == ["after", "before"]


def test_a_process_that_does_not_respond_is_killed(
    process: LedgerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process.open(LedgerSnapshot(next_record=0), 1)
    monkeypatch.setattr("duemq_common.ledger.worker.RESPONSE_S", 0.2)
    os.kill(pid_of(process), signal.SIGSTOP)
    with pytest.raises(LedgerUnavailable, match="did not respond"):
        process.write([RUN, event("lost")])
    monkeypatch.undo()
    process.open(LedgerSnapshot(next_record=0), 2)
    process.write([RUN, event("after")])
    process.end()
    assert events(tmp_path / "l.sqlite") == ["after"]


def test_a_failed_call_is_reported_and_the_process_continues(
    process: LedgerProcess, tmp_path: Path
) -> None:
    process.open(LedgerSnapshot(next_record=0), 1)
    unpicklable: Any = object()
    for name in ("write", "nothing_that_it_has"):
        with pytest.raises(LedgerError, match=r"(?i)please report this") as refusal:
            process._call(name, [unpicklable])
        assert type(refusal.value) is LedgerError
    process.write([RUN, event("after")])
    process.end()
    assert events(tmp_path / "l.sqlite") == ["after"]


def test_a_process_that_cannot_be_started_is_a_ledger_error(
    process: LedgerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(LedgerUnavailable, match="no process can be started"):
        process.open(LedgerSnapshot(next_record=0), 1)
    process.close()
    monkeypatch.undo()
    process.open(LedgerSnapshot(next_record=0), 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_the_process_group_let_it_finish(
    process: LedgerProcess, number: int, tmp_path: Path
) -> None:
    """A terminal or a service manager signals all processes at once."""
    process.open(LedgerSnapshot(next_record=0), 1)
    os.kill(pid_of(process), number)
    process.write([RUN, event("the last")])
    process.end()
    assert events(tmp_path / "l.sqlite") == ["the last"]


def test_it_ends_with_a_killed_broker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'l.sqlite'}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        fd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert is_gone(fd)
        os.close(fd)
