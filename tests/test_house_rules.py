"""Rules of the code base that are checked automatically.

Each file is parsed once, also for `test_tidy`; a test fails with all files that break its rule.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
WAIT_FOR_PROCESSES = ("tests/interop/", "tests/crash/", "tests/support/wait_until.py")
PACKAGES = (
    "duemq_common",
    "message_store",
    "delayed_delivery",
    "schedule_service",
    "timer_store",
    "migration",
    "spark_reconciliation",
    "duemq",
)
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
CLOCK_READERS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
CLOCK_READERS |= {"clock_gettime", "clock_gettime_ns"}
DATETIME_READERS = {"now", "utcnow", "today"}
PUBLIC_UNDERSCORES = {"_asdict", "_exit", "_fields", "_make", "_replace"}  # of named tuples, os
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


def is_private_of_another(node: ast.AST) -> bool:
    """Return whether a node reads or sets `thing._name` of something else than self."""
    if not isinstance(node, ast.Attribute) or node.attr in PUBLIC_UNDERSCORES:
        return False
    own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return node.attr.startswith("_") and not node.attr.startswith("__") and not own


def is_byte_order(node: ast.AST) -> bool:
    """Return whether a node is a format with a byte order."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and BIG_ENDIAN.match(node.value) is not None
        and len(node.value) <= 12
    )


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


@cache
def facts() -> dict[str, dict[str, list[Any]]]:
    """Return what the rules restrict: kind of fact -> file -> places of it."""
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for path in all_files():
        name, tree = name_of(path), tree_of(path)
        found["lines"][name] = [len(path.read_text().splitlines())]
        for owner, function, line in calls(tree):
            if (owner == "time" and function in CLOCK_READERS) or (
                owner in ("datetime", "date") and function in DATETIME_READERS
            ):
                found["clock"][name].append(line)
            if (owner, function) == ("", "print"):
                found["print"][name].append(line)
            if (owner, function) == ("time", "sleep"):
                found["sleep"][name].append(line)
        for node in ast.walk(tree):
            for kind, fact in facts_of(node):
                found[kind][name].append(fact)
    return found


def facts_of(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the kind and the value of each fact of a node."""
    if is_byte_order(node):
        yield "byte order", getattr(node, "lineno", 0)
    if is_private_of_another(node):
        yield "private names", getattr(node, "lineno", 0)
    if isinstance(node, ast.Name) and node.id == "Any":
        yield "any", node.lineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield "functions", (node.name, node.lineno, code_lines(node))
        if any(isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list):
            yield "kernels", (node.name, node.lineno, len(node.args.args))
    if isinstance(node, ast.ImportFrom) and node.module:
        yield "imports", {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    if isinstance(node, ast.Import):
        yield from (("imports", {alias.name}) for alias in node.names)


def of_product(kind: str) -> dict[str, list[Any]]:
    """Return the facts of a kind in files of the product."""
    names = {name_of(path) for path in product_files()}
    return {name: places for name, places in facts()[kind].items() if name in names}


def test_all_files_are_checked() -> None:
    assert len(facts()["lines"]) == len(all_files()) > 1_000
    assert facts()["clock"]["duemq_common/clock.py"]
    assert all(facts()[kind] for kind in ("print", "sleep", "byte order", "functions"))


def test_only_the_clock_reads_time() -> None:
    assert of_product("clock").keys() == {"duemq_common/clock.py"}, of_product("clock")


def test_only_the_command_line_prints() -> None:
    found = of_product("print").items()
    assert [each for each in found if not each[0].startswith("duemq/cli/")] == []


def test_byte_order_occurs_in_layouts_only() -> None:
    found = of_product("byte order").items()
    paths = {name: TOP / name for name, _ in found}
    outside = {
        name
        for name, path in paths.items()
        if "layout" not in path.stem and "layout" not in path.parent.name
    }
    assert [each for each in found if each[0] in outside] == []


def test_a_file_has_at_most_500_lines() -> None:
    found = facts()["lines"].items()
    assert [(name, count) for name, [count] in found if int(str(count)) > FILE_LINES_MAX] == []


def test_functions_are_short() -> None:
    found = facts()["functions"].items()
    long = [
        (name, each)
        for name, functions in found
        for each in functions
        if isinstance(each, tuple) and each[2] > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_tests_do_not_sleep() -> None:
    found = facts()["sleep"].items()
    assert [
        each
        for each in found
        if each[0].startswith("tests/") and not each[0].startswith(WAIT_FOR_PROCESSES)
    ] == []
