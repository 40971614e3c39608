"""Rows of JSON Lines, and directories of tables with versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from duemq_common.errors import UsageError
from spark_reconciliation.local.files import JSON_LINES, PARQUET, file_bytes, read_files


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": "A"}\n\n{"id": B}\n', "line 3 is not an object: Expecting value at column 8"),
        ('[\n{"id": "A"}\n]\n', "line 1 is not an object"),
        ('{"id": "A"}\n7\n', "line 2 is not an object$"),
    ],
)
def test_a_line_that_is_not_an_object_is_named(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(UsageError, match=f"t.jsonl is not json: {reason}"):
        read_files(str(tmp_path / "t.jsonl"), JSON_LINES)


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie"])
def test_files_of_former_versions_are_not_rows(log: str, tmp_path: Path) -> None:
    (tmp_path / log).mkdir()
    for name in ("a.parquet", f"{log}/0"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match="is a table of Delta or Hudi"):
        file_bytes(str(tmp_path))
    with pytest.raises(UsageError, match="give a copy of the newest one"):
        read_files(str(tmp_path), PARQUET)
