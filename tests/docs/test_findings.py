"""docs/reference/findings.md lists the tests of each finding, or the reason why it remains."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.test_house_rules import nodes_of

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "reference" / "findings.md"
ROW = re.compile(r"^\| (3[SDCPU]\d+|[A-EP][\w:-]+) \| (.+) \| (.+) \|$", re.M)
FILE = re.compile(r"`([\w/]+\.py)`")
MARK = re.compile(r"pytest\.mark\.finding\('([\w:-]+)'\)")
COUNTS: dict[str, int] = {"A": 20, "B": 29, "C": 5, "D": 6, "E": 14}
COUNTS |= {"3S": 8, "3D": 14, "3C": 9, "3P": 7, "3U": 7}


@cache
def marked() -> dict[str, set[str]]:
    """Return the test files marked with each finding."""
    found: dict[str, set[str]] = {}
    for path in marked_files():
        for node in nodes_of(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr == "finding" and ast.unparse(node.func) == "pytest.mark.finding":
                number = ast.literal_eval(node.args[0])
                found.setdefault(number, set()).add(str(path.relative_to(TOP)))
    return found


def marked_files() -> list[Path]:
    """Return the test files with the mark of a finding."""
    tests = (TOP / "tests").rglob("test_*.py")
    return [path for path in tests if "mark.finding" in path.read_text()]


def in_make_test() -> set[str]:
    """Return the findings with a test that is not extended."""
    found = set()
    for path in marked_files():
        tree = ast.parse(path.read_text())
        shared = " ".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                marks = " ".join([shared, *map(ast.unparse, node.decorator_list)])
                if "pytest.mark.extended" not in marks:
                    found |= set(MARK.findall(marks))
    return found


def rows() -> dict[str, str]:
    """Return the last column of the page by the number of the finding, which has one row."""
    found = [(number, shown) for number, _, shown in ROW.findall(PAGE.read_text())]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_the_page_lists_the_marked_files() -> None:
    named = {number: set(FILE.findall(shown)) for number, shown in rows().items()}
    assert {number: files for number, files in named.items() if files} == marked()


def test_each_finding_has_a_test_in_make_test() -> None:
    assert marked().keys() - in_make_test() == set()


def test_a_finding_without_a_test_has_a_reason() -> None:
    for number, shown in rows().items():
        assert FILE.search(shown) or re.search(r"remains: \S+|see (?:3[SDCPU]|[A-E])\d+", shown), (
            number
        )


def test_no_finding_is_omitted() -> None:
    wanted = {f"{part}{n}" for part, count in COUNTS.items() for n in range(1, count + 1)}
    assert wanted <= rows().keys()
