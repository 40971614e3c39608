"""Rules of the code base that are checked automatically.

Each file is parsed once, also for `test_tidy` and `test_import_arrows`; a test fails with all files
that break its rule.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
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
    "recurring_schedules",
    "migration",
    "spark_reconciliation",
    "duemq",
)
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
CLOCK_READERS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
CLOCK_READERS |= {"clock_gettime", "clock_gettime_ns"}
DATETIME_READERS = {"now", "utcnow", "today"}
HIDE_ERRORS = {"exists", "is_dir", "is_file"}  # of paths, since Python 3.14
PUBLIC_UNDERSCORES = {"_asdict", "_exit", "_fields", "_make", "_replace"}  # of named tuples, os
BIG_ENDIAN = re.compile(r"^[>!][a-zA-Z0-9?]")


@cache
def product_files() -> list[Path]:
    return sorted(p for name in PACKAGES for p in (TOP / name).rglob("*.py"))


@cache
def product_names() -> frozenset[str]:
    return frozenset(map(name_of, product_files()))


@cache
def all_files() -> list[Path]:
    extra = [p for name in ("tests", "benchmarks") for p in (TOP / name).rglob("*.py")]
    return product_files() + sorted(extra)


def name_of(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree in any order; `ast.walk` takes twice the time."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if value.__class__ is list:
                stack += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                stack.append(value)


def of_call(node: ast.Call) -> Iterator[tuple[str, object]]:
    """Yield the fact of a call such as `time.time()` or `print()`."""
    function = node.func
    if isinstance(function, ast.Name) and function.id == "print":
        yield "print", node.lineno
    if isinstance(function, ast.Attribute) and function.attr in HIDE_ERRORS:
        yield "hidden errors", node.lineno
    if "Thread" in (getattr(function, "id", ""), getattr(function, "attr", "")):
        is_daemon = "daemon=True" in map(ast.unparse, node.keywords)
        yield "daemon threads" if is_daemon else "other threads", node.lineno
    if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
        return
    owner, name = function.value.id, function.attr
    if owner == "time" and name in CLOCK_READERS:
        yield "clock", node.lineno
    if owner in ("datetime", "date") and name in DATETIME_READERS:
        yield "clock", node.lineno
    if (owner, name) == ("time", "sleep"):
        yield "sleep", node.lineno


def of_attribute(node: ast.Attribute) -> Iterator[tuple[str, object]]:
    """Yield whether `thing._name` is private of something else than self, or a store's log."""
    owner = node.value
    if isinstance(node.ctx, ast.Store):
        yield "variables", node.attr
    own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
    private = node.attr.startswith("_") and not node.attr.startswith("__")
    if private and not own and node.attr not in PUBLIC_UNDERSCORES:
        yield "private names", node.lineno
    if node.attr == "log":
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name in ("store", "_store"):
            yield "log of a store", node.lineno


def of_constant(node: ast.Constant) -> Iterator[tuple[str, object]]:
    """Yield the line of a format with a byte order."""
    value = node.value
    if isinstance(value, str) and len(value) <= 12 and BIG_ENDIAN.match(value):
        yield "byte order", node.lineno


def of_name(node: ast.Name) -> Iterator[tuple[str, object]]:
    """Yield the name of a variable that is assigned, and the line of an `Any`."""
    if isinstance(node.ctx, ast.Store):
        yield "variables", node.id
    if node.id == "Any":
        yield "any", node.lineno


def of_argument(node: ast.arg) -> Iterator[tuple[str, object]]:
    """Yield the name of a parameter."""
    yield "variables", node.arg


def of_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, object]]:
    """Yield the length of a function, and the number of arguments of a kernel."""
    yield "functions", (node.name, node.lineno, code_lines(node))
    if any(isinstance(mark, ast.Name) and mark.id == "kernel" for mark in node.decorator_list):
        yield "kernels", (node.name, node.lineno, len(node.args.args))


def of_import(node: ast.Import) -> Iterator[tuple[str, object]]:
    """Yield the modules of `import module`."""
    for alias in node.names:
        yield "imports", {alias.name}
        yield "imported modules", (alias.name, node.lineno)


def of_import_from(node: ast.ImportFrom) -> Iterator[tuple[str, object]]:
    """Yield the modules that `from module import name` may name, and the module itself."""
    if node.level:
        yield "relative imports", node.lineno
    if node.module:
        yield "imports", {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        yield "imported modules", (node.module, node.lineno)


def of_starred(node: ast.Starred) -> Iterator[tuple[str, object]]:
    """Yield the line of a starred tuple of several items."""
    if isinstance(node.value, ast.Tuple) and node.value.elts:
        yield "starred tuples", node.lineno


def of_class(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    """Yield the name of a class."""
    yield "classes", node.name


FACTS_OF: dict[type[ast.AST], Callable[[Any], Iterator[tuple[str, object]]]] = {
    ast.Call: of_call,
    ast.Attribute: of_attribute,
    ast.Constant: of_constant,
    ast.Name: of_name,
    ast.arg: of_argument,
    ast.FunctionDef: of_function,
    ast.AsyncFunctionDef: of_function,
    ast.Import: of_import,
    ast.ImportFrom: of_import_from,
    ast.Starred: of_starred,
    ast.ClassDef: of_class,
}


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
        name, text = name_of(path), path.read_text()
        found["lines"][name] = [len(text.splitlines())]
        for node in nodes_of(ast.parse(text)):
            find = FACTS_OF.get(type(node))
            if find is not None:
                for kind, fact in find(node):
                    found[kind][name].append(fact)
    return found


def of_product(kind: str) -> dict[str, list[Any]]:
    """Return the facts of a kind in files of the product."""
    names = product_names()
    return {name: places for name, places in facts()[kind].items() if name in names}


def test_all_files_are_checked() -> None:
    assert len(facts()["lines"]) == len(all_files()) > 1_000
    assert facts()["clock"]["duemq_common/clock.py"]
    assert all(facts()[kind] for kind in ("print", "sleep", "byte order", "functions"))


def test_only_the_clock_reads_time() -> None:
    assert of_product("clock").keys() == {"duemq_common/clock.py"}, of_product("clock")


def test_no_error_of_a_disk_looks_like_an_absent_file() -> None:
    assert of_product("hidden errors") == {}


def test_a_thread_does_not_delay_the_end_of_a_process() -> None:
    """After an error that prevents the stop of a store, too."""
    assert len(of_product("daemon threads")) > 5
    assert of_product("other threads") == {}


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
