"""The file that exists while a store is open, by which a start detects a kill."""

from __future__ import annotations

import shutil
from pathlib import Path

from message_store.recovery.abort_file import AbortFile
from tests.support.stores import crash, open_store


def test_it_exists_while_a_store_is_open_and_after_a_kill(tmp_path: Path) -> None:
    file = AbortFile(tmp_path)
    assert not file.exists
    with open_store(tmp_path):
        assert file.exists
        assert int(file.path.read_text().split()[0]) > 1
    assert not file.exists
    store = open_store(tmp_path)
    store.__enter__()
    crash(store)
    assert file.exists
    file.remove()
    file.remove()
    assert not file.exists


def test_a_copy_is_recognized(tmp_path: Path) -> None:
    file = AbortFile(tmp_path)
    file.write()
    assert not file.is_copied
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy2(file.path, other)
    assert AbortFile(other).is_copied
    (other / "abort").write_text("4711")  # Apache's
    assert not AbortFile(other).is_copied
    assert not AbortFile(tmp_path / "absent").is_copied
