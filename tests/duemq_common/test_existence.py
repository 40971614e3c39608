"""Existence of files: an error of the disk is not an absent file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from duemq_common.existence import exists, is_directory, is_file


def test_what_is_there(tmp_path: Path) -> None:
    file, loop = tmp_path / "file", tmp_path / "loop"
    file.touch()
    loop.symlink_to(loop)
    absent = [tmp_path / "absent", file / "below", loop, Path("a\0b")]
    assert [exists(path) for path in (tmp_path, file, *absent)] == [True, True] + [False] * 4
    assert [is_directory(path) for path in (tmp_path, file, *absent)] == [True] + [False] * 5
    assert [is_file(path) for path in (tmp_path, file, *absent)] == [False, True] + [False] * 4


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_an_error_is_raised(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def fail(path: Path, *, follow_symlinks: bool = True) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "stat", fail)
    for function in (exists, is_directory, is_file):
        with pytest.raises(OSError, match=os.strerror(error)):
            function(Path("file"))
