"""Folders of temporary files: removed at the end, and after a kill by the next start."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spark_reconciliation.local import temporary_folder
from spark_reconciliation.local.frame import LocalSession
from spark_reconciliation.local.temporary_folder import PREFIX, TemporaryFolder

KILLED = """
import os, signal
from spark_reconciliation.local.temporary_folder import TemporaryFolder

folder = TemporaryFolder()
(folder.path / "duckdb_temp_storage.tmp").write_bytes(b"rows")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_session_removes_its_folder(parent: Path) -> None:
    session = LocalSession(cores=1)
    [folder] = parent.iterdir()
    setting = session.relation("SELECT current_setting('temp_directory')").fetchall()
    assert setting == [(str(folder),)]
    (folder / "rows").touch()
    session.stop()
    assert not list(parent.iterdir())


def test_the_folder_of_a_killed_process_is_removed_by_the_next_start(parent: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -9
    [left] = parent.iterdir()
    assert list(left.iterdir())
    folder = TemporaryFolder()
    assert list(parent.iterdir()) == [folder.path]
    folder.remove()


def test_folders_of_running_sessions_remain(parent: Path) -> None:
    first, second = TemporaryFolder(), TemporaryFolder()
    assert {first.path, second.path} == set(parent.iterdir())
    first.remove()
    second.remove()
    assert not list(parent.iterdir())


def test_other_files_remain(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "file").touch()
    (parent / f"{PREFIX}link").symlink_to(other)
    (parent / f"{PREFIX}file").touch()
    (parent / "a folder").mkdir()
    TemporaryFolder().remove()
    assert len(list(parent.iterdir())) == 3
    assert (other / "file").exists()


@pytest.mark.parametrize("step", ["open", "lock"])
def test_a_folder_that_is_removed_before_it_is_locked(
    parent: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made, lock, calls = tempfile.mkdtemp, fcntl.flock, list[str]()

    def making(prefix: str) -> str:
        path = made(prefix=prefix)
        calls.append(path)
        if step == "open" and len(calls) == 1:
            temporary_folder.remove_abandoned(parent)
        return path

    def locking(descriptor: int, operation: int) -> None:
        if step == "lock" and len(calls) == 1 and operation == fcntl.LOCK_EX:
            temporary_folder.remove_abandoned(parent)
        lock(descriptor, operation)

    monkeypatch.setattr(temporary_folder, "mkdtemp", making)
    monkeypatch.setattr(fcntl, "flock", locking)
    folder = TemporaryFolder()
    assert [str(path) for path in parent.iterdir()] == [str(folder.path)] == calls[1:]
    folder.remove()


def test_a_directory_that_cannot_be_written_is_named(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nothing-is-written-here")
    with pytest.raises(OSError, match=r"in /proc/nothing-is-written-here.*: set TMPDIR to"):
        TemporaryFolder()
