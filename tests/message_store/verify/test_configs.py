"""Checks of small files: the lock of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_store.verify import configs
from tests.support.stores import open_store


def test_a_lock_with_the_same_inode_number_on_another_volume_is_not_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two new volumes, the lock files often have the same inode number."""
    root = tmp_path / "store"
    with open_store(root):
        pass
    own = configs.file_system_of(root)
    if not own:
        pytest.skip("this machine does not show its mounts")
    monkeypatch.setattr(configs, "LOCKS_PATH", tmp_path / "locks")
    for device, is_in_use in ((own, True), ("ab:cd", False)):
        inode = (root / "lock").stat().st_ino
        line = f"1: POSIX  ADVISORY  WRITE 12 {device}:{inode} 0 EOF\n"
        (tmp_path / "locks").write_text(line)
        assert configs.is_in_use(root) is is_in_use
