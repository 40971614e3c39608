"""Files that are replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duemq_common.directories import replace_file


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refused_write_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "state"
    replace_file(path, b"former")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match=r"No space left on device: '.*/state'"):
            replace_file(path, b"new")
    assert path.read_bytes() == b"former"
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
