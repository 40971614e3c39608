"""docs/where-to-change.md refers to existing files."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
FILE = re.compile(r"`([\w./]+\.py)`")
CHANGES_MIN = 20


def rows() -> list[tuple[str, str, str]]:
    """Return (change, file, test) of each row of the page."""
    found = ROW.findall((TOP / "docs" / "where-to-change.md").read_text())
    return [row for row in found if FILE.search(row[1])]


def test_files_and_tests_of_each_change_exist() -> None:
    assert len(rows()) >= CHANGES_MIN
    for change, file, test in rows():
        named = [*FILE.findall(file), *FILE.findall(test)]
        assert len(named) >= 2, change
        assert [name for name in named if not (TOP / name).is_file()] == [], change
