"""Rules of the code base that are checked automatically."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
WAIT_FOR_PROCESSES = ("tests/interop/", "tests/crash/", "tests/support/wait_until.py")
PACKAGES = (
    "message_store",
    "delivery",
    "schedule_service",
    "timer_store",
    "migration",
    "reconciliation",
    "duemq",
)
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
CLOCK_READERS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
CLOCK_READERS |= {"clock_gettime", "clock_gettime_ns"}
DATETIME_READERS = {"now", "utcnow", "today"}
BIG_ENDIAN = re.compile(r"^[>!][a-zA-Z0-9?]")


def product_files() -> list[Path]:
    return sorted(p for name in PACKAGES for p in (TOP / name).rglob("*.py"))


def all_files() -> list[Path]:
    extra = [p for name in ("tests", "benchmarks") for p in (TOP / name).rglob("*.py")]
    return product_files() + sorted(extra)


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def calls(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield (object, function, line) of every call such as `time.time()` or `print()`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name):
            yield "", function.id, node.lineno
        elif isinstance(function, ast.Attribute):
            owner = function.value
            yield (owner.id if isinstance(owner, ast.Name) else "?"), function.attr, node.lineno


@pytest.mark.parametrize("path", product_files(), ids=name_of)
def test_only_the_clock_reads_time(path: Path) -> None:
    if name_of(path) == "message_store/clock.py":
        return
    found = [
        line
        for owner, function, line in calls(tree_of(path))
        if (owner == "time" and function in CLOCK_READERS)
        or (owner in ("datetime", "date") and function in DATETIME_READERS)
    ]
    assert not found, f"{name_of(path)} reads the time in lines {found}"


@pytest.mark.parametrize("path", product_files(), ids=name_of)
def test_only_the_command_line_prints(path: Path) -> None:
    if name_of(path).startswith("duemq/cli/"):
        return
    found = [
        line for owner, function, line in calls(tree_of(path)) if (owner, function) == ("", "print")
    ]
    assert not found, f"{name_of(path)} prints in lines {found}"


@pytest.mark.parametrize("path", product_files(), ids=name_of)
def test_byte_order_occurs_in_layouts_only(path: Path) -> None:
    if "layout" in path.stem or "layout" in path.parent.name:
        return
    found = [
        node.lineno
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and BIG_ENDIAN.match(node.value)
        and len(node.value) <= 12
    ]
    assert not found, f"{name_of(path)} has byte-order formats in lines {found}"


@pytest.mark.parametrize("path", all_files(), ids=name_of)
def test_a_file_has_at_most_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", all_files(), ids=name_of)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{node.name} (line {node.lineno}): {lines} lines"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := code_lines(node)) > FUNCTION_LINES_MAX
    ]
    assert not long, f"{name_of(path)}: {long}"


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", all_files(), ids=name_of)
def test_tests_do_not_sleep(path: Path) -> None:
    name = name_of(path)
    if not name.startswith("tests/") or name.startswith(WAIT_FOR_PROCESSES):
        return
    found = [
        line
        for owner, function, line in calls(tree_of(path))
        if owner == "time" and function == "sleep"
    ]
    assert not found, f"{name} sleeps in lines {found}"
