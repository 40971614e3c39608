"""Write gate: the reason that it reports is the true one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from message_store.write_gate import WriteGate

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.finding("3D13")
@pytest.mark.parametrize(
    ("inodes", "free", "cause"),
    [
        (1_000, 0, "the file system has no free inodes"),
        (1_000, 5, "the disk is full"),
        (0, 0, "the disk is full"),  # a file system that does not count inodes
    ],
)
def test_a_lack_of_inodes_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int, free: int, cause: str
) -> None:
    notices: list[str] = []
    gate = WriteGate(tmp_path, tmp_path, notices.append)
    status = SimpleNamespace(f_files=inodes, f_favail=free)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: status)
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(used=1, free=1))
        gate.disk_failed(NO_SPACE)
    assert gate.refusal.startswith(cause)
    assert len(notices) == 1
    assert ("% used" in notices[0]) == (cause == "the disk is full")
