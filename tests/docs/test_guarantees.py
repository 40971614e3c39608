"""The table of guarantees in CONTRIBUTING.md names tests that `make test` runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "CONTRIBUTING.md"
ROW = re.compile(r"^\| ([^|]+) \| (`[^|]+`) \|$", re.M)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
GUARANTEES = 10
COUNTS_MIN = {"--kills": 20, "--failovers": 10}  # defaults of options: see tests/conftest.py
EXTENDED = "pytest.mark.extended"
ROWS = dict(ROW.findall(PAGE.read_text()))


def is_extended(node: ast.expr) -> bool:
    """Return whether a decorator marks a test, or each of its parameter sets, as extended."""
    if EXTENDED in ast.unparse(node):
        return True
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.mark.parametrize":
        return False
    sets = node.args[1]
    return isinstance(sets, ast.List | ast.Tuple) and all(
        ast.unparse(each).startswith("extended(") for each in sets.elts
    )


def names_of(source: str) -> set[str]:
    """Return the names of the tests in a file that `make test` runs."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign):
            targets = {ast.unparse(target) for target in node.targets}
            if "pytestmark" in targets and EXTENDED in ast.unparse(node.value):
                return set()
            names |= targets  # state machines: TestX = Machine.TestCase
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names |= set() if any(map(is_extended, node.decorator_list)) else {node.name}
    return {name for name in names if name.lower().startswith("test")}


def test_each_guarantee_has_a_row() -> None:
    numbers = [name.partition(".")[0] for name in ROWS if name[0].isdigit()]
    assert numbers == [str(number) for number in range(1, GUARANTEES + 1)]


@pytest.mark.parametrize("name", ROWS)
def test_the_named_tests_are_in_make_test(name: str) -> None:
    named = TEST.findall(ROWS[name])
    assert named
    missing = [
        (file, test) for file, test in named if test not in names_of((TOP / file).read_text())
    ]
    assert missing == []


@pytest.mark.parametrize("option", COUNTS_MIN)
def test_make_test_has_enough_kills_and_failovers(option: str) -> None:
    source = (TOP / "tests" / "conftest.py").read_text()
    found = re.search(rf'"{option}", type=int, default=(\d+)', source)
    assert found is not None
    assert int(found[1]) >= COUNTS_MIN[option]


def test_extended_tests_are_not_counted() -> None:
    source = """
@pytest.mark.extended
def test_marked(): ...
@pytest.mark.parametrize("seed", [extended(1), extended(2)])
def test_all_sets(): ...
@pytest.mark.parametrize("seed", [extended(1), 2])
def test_one_set(): ...
TestModel = Model.TestCase
"""
    assert names_of(source) == {"test_one_set", "TestModel"}
    assert names_of("pytestmark = [pytest.mark.extended]\ndef test_x(): ...") == set()
