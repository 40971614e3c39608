"""Files of a queue or a log, when they are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duemq_common.errors import CorruptStore
from message_store.log.file_sequence import check_next

FILE_BYTES = 1_000


def check(path: Path, before: int | None, *, is_last: bool = False) -> int:
    return check_next(path, before, FILE_BYTES, is_last=is_last, key="sizeKey", source="the log")


def write(path: Path, size: int, data: bytes = b"") -> Path:
    path.write_bytes(data)
    os.truncate(path, size)
    return path


@pytest.mark.parametrize("before", [None, 1_000])
def test_a_file_in_its_place_has_its_position(tmp_path: Path, before: int | None) -> None:
    assert check(write(tmp_path / f"{2_000:020d}", FILE_BYTES), before) == 2_000


def test_a_truncated_last_file_is_extended(tmp_path: Path) -> None:
    path = write(tmp_path / f"{2_000:020d}", 40)
    assert check(path, 1_000, is_last=True) == 2_000
    assert path.stat().st_size == FILE_BYTES


@pytest.mark.parametrize(
    ("name", "size", "before", "text"),
    [
        ("x", FILE_BYTES, None, "its name is not a position of 20 digits"),
        ("2000", FILE_BYTES, None, "its name is not a position of 20 digits"),
        ("٠" * 20, FILE_BYTES, None, "its name is not a position of 20 digits"),
        (f"{2_000:020d}", 999, 1_000, "it has 999 bytes, sizeKey is 1000"),
        (f"{2_000:020d}", FILE_BYTES, 0, "the file that starts at 1000 is missing before it"),
        (f"{2_001:020d}", FILE_BYTES, None, "the file that starts at 2001 is missing before it"),
    ],
)
def test_other_files_stop_the_start(
    tmp_path: Path, name: str, size: int, before: int | None, text: str
) -> None:
    with pytest.raises(CorruptStore, match=text):
        check(write(tmp_path / name, size), before)
