"""Random changes of one line: does a test fail?

    python -m pip install coverage
    python -m tests.support.mutants [--count 200] [--seed N] [--package timer_store ...]\
        [--lines FILE]

Each mutant is one change inside a function: another comparison, `and` for `or`, `+` for `-`,
another number, a negated condition, or a call, an assignment to an attribute, a `break` or a
`continue` left out. All run in a copy of the tree.

First, the tests of `make test-fast` run once; the lines that each test runs, and its duration, are
written to FILE, which other runs of the same sources use again. The tests of a mutant are those
that run its line. A compiled kernel has no such lines: its tests are those that run a line that
names it, and all tests in files that name it. They run in one process up to the first failure: the
file that mirrors the changed one, then those of its package, then all others, of each group the
shortest files first; `tests_of_lines.py` has the bounds of time.

A mutant that passes is alive: a test is missing, or the change has no effect. The last line counts
both, by package. Two runs with different seeds may share FILE.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support.packages import TOP
from tests.support.tests_of_lines import TestsOfLines, first_failure, record

PACKAGES: Final = (
    "schedule_service",
    "timer_store",
    "recurring_schedules",
    "message_store",
    "delayed_delivery",
    "migration",
    "duemq/pop",
    "duemq/replication",
)
COMPARISONS: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
OPERATORS: Final = {
    "+": "-",
    "-": "+",
    "*": "+",
    "//": "*",
    "%": "*",
    "&": "|",
    "|": "&",
    "<<": ">>",
    ">>": "<<",
}
BOOLEANS: Final = {"and": "or", "or": "and"}


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """Replacement of a part of one line.

    Attributes:
        file: Path below the top directory.
        line: Number of the line, from 1.
        begin: First byte of the part in the line; `end` is the byte after it.
        text: Replacement.
    """

    package: str
    file: str
    line: int
    begin: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the source with the replacement."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.begin] + self.text.encode() + line[self.end :]
        return b"".join(lines)

    def described(self, source: bytes) -> str:
        """Return place, old line and new line."""
        old, new = (text.splitlines()[self.line - 1] for text in (source, self.applied(source)))
        return f"{self.file}:{self.line}: `{old.strip().decode()}` -> `{new.strip().decode()}`"


class Changes(ast.NodeVisitor):
    """Visitor that collects the possible changes in the functions of a module.

    Attributes:
        changes: (line, first byte, byte after the last one, replacement) of each change.
    """

    def __init__(self, source: bytes) -> None:
        self._lines = source.splitlines()
        self.changes: list[tuple[int, int, int, str]] = []

    def visit_Module(self, node: ast.Module) -> None:
        for function in ast.walk(node):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for statement in function.body:
                    self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Leave out a function in a function, which `visit_Module` visits."""

    visit_AsyncFunctionDef = visit_ClassDef = visit_Assert = visit_Raise = visit_FunctionDef  # type: ignore[assignment]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not ast.unparse(node.value.func).startswith(
            ("log.", "logger.")
        ):
            self._replace(node, "pass")
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
            self._replace(node, "pass")
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "pass")

    def visit_If(self, node: ast.If) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            self._between(left, right, COMPARISONS)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, BOOLEANS)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.left, (ast.Constant, ast.JoinedStr)) or not isinstance(
            node.op, ast.Mod
        ):
            self._between(node.left, node.right, OPERATORS)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave out texts: positions in them differ between versions of Python."""

    def _replace(self, node: ast.stmt | ast.expr, text: str) -> None:
        if node.lineno == node.end_lineno and node.end_col_offset is not None:
            self.changes.append((node.lineno, node.col_offset, node.end_col_offset, text))

    def _negate(self, test: ast.expr) -> None:
        if test.lineno == test.end_lineno and not isinstance(test, (ast.Compare, ast.BoolOp)):
            part = self._lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            self._replace(test, f"(not ({part}))")

    def _between(self, left: ast.expr, right: ast.expr, others: dict[str, str]) -> None:
        """Replace the operator between two operands in one line."""
        begin, end = left.end_col_offset, right.col_offset
        if left.end_lineno != right.lineno or begin is None:
            return
        text = self._lines[right.lineno - 1][begin:end].decode()
        operator = text.strip("() ")
        if operator in others:
            new = text.replace(operator, others[operator], 1)
            self.changes.append((right.lineno, begin, end, new))


def mutants_of(package: str) -> list[Mutant]:
    """Return all mutants of a package, in order."""
    mutants = []
    for path in sorted((TOP / package).rglob("*.py")):
        changes = Changes(path.read_bytes())
        changes.visit(ast.parse(path.read_bytes()))
        mutants += [Mutant(package, str(path.relative_to(TOP)), *each) for each in changes.changes]
    return mutants


def killed_by(mutant: Mutant, tests: dict[str, float], tree: Path, lines: Path) -> str:
    """Return the test that kills a mutant; empty: it is alive."""
    target, source = tree / mutant.file, (TOP / mutant.file).read_bytes()
    target.write_bytes(mutant.applied(source))
    try:
        return first_failure(tree, mutant.file, lines, tests)
    finally:
        target.write_bytes(source)


def copy_tree(tree: Path) -> None:
    """Copy all files that git knows into an empty directory."""
    names = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True)
    for name in names.stdout.splitlines():
        if (TOP / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(TOP / name, tree / name)


def main() -> None:
    """Try mutants and print the result of each."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=datetime.now(UTC).toordinal())
    parser.add_argument("--package", nargs="*", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--lines", type=Path, default=None, help="database of a former run")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    every = {package: mutants_of(package) for package in options.package}
    for mutants in every.values():
        chance.shuffle(mutants)
    results: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        lines = (options.lines or tree / ".lines").absolute()
        if not lines.exists():
            record(tree, lines)
        tests_of_lines = TestsOfLines(lines)
        for number in range(options.count):
            mutant = every[options.package[number % len(options.package)]].pop()
            tests = tests_of_lines.of(mutant.file, mutant.line)
            test = killed_by(mutant, tests, tree, lines)
            results[f"{mutant.package} {'killed' if test else 'alive'}"] += 1
            text = mutant.described((TOP / mutant.file).read_bytes())
            end = f"killed: {test}" if test else f"ALIVE after {len(tests)} tests"
            sys.stdout.write(f"{text}\n    {end}\n")
            sys.stdout.flush()
    sys.stdout.write(f"seed {options.seed}: {dict(sorted(results.items()))}\n")


if __name__ == "__main__":
    main()
