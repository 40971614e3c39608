"""docs/where-to-change.md and the path of a message refer to existing files."""

from __future__ import annotations

import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
FILE = re.compile(r"`([\w/]+\.py)`")
CHANGES_MIN, HOPS_MAX = 20, 25


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


def test_files_on_the_path_of_a_message_exist() -> None:
    page = (TOP / "docs" / "ARCHITECTURE.md").read_text()
    path = page.partition("## Path of a message")[2].partition("\n## ")[0]
    assert [name for name in FILE.findall(path) if not (TOP / name).is_file()] == []
    before, _, rest = path.partition("A level message, until")
    level, _, rest = rest.partition("A timer, until")
    timer, _, after = rest.partition("The consumer:")
    for part in (level, timer):
        assert 10 < len({*FILE.findall(before + part + after)}) <= HOPS_MAX
