"""Tests that run a line of the product, and the run of some tests in order.

This module is also a plugin of pytest, for two jobs: to record the lines of each test, and to run
selected tests.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from message_store.kernels import kernel_sources, sources_of
from tests.support.packages import IN_A_FOLDER, TOP, module_of, unit_tests_of

FAST: Final = "not (extended or interop or crash or spark)"
NOT_FAST: Final = ("tests/fuzz", "tests/simulation")
FILE_S: Final = 20
ALL_S: Final = 150
END_S: Final = 30  # a test that takes so much longer than ten times its duration has no end
COMPILATION_S: Final = 300  # of the kernels that a changed file is compiled into
JOB: Final = "TESTS_OF_LINES"  # variable: job and file of a pytest process
RECORD: Final = "record"
RUN: Final = "run"
NO_TESTS: Final = 5  # exit code of pytest
NOT_PRODUCT: Final = ("tests", "benchmarks")


class Sources:
    """Names in the sources of the product and of the tests."""

    def __init__(self) -> None:
        names = subprocess.run(
            ["git", "ls-files", "*.py"], cwd=TOP, capture_output=True, text=True, check=True
        )
        self._texts = {name: (TOP / name).read_text() for name in names.stdout.split()}
        self._kernels = {
            file: list(self._kernels_in(text))
            for file, text in self._texts.items()
            if "@kernel" in text and not file.startswith("tests/")
        }

    def kernels_at(self, file: str, line: int) -> set[str]:
        """Return the kernel at a line and all kernels that call it, directly or not."""
        kernels, new = set[str](), self._at(file, line)
        while new:
            kernels |= new
            uses = (use for kernel in new for use in self._lines(kernel, self._kernels))
            new = {caller for use in uses for caller in self._at(*use)} - kernels
        return kernels

    def lines_that_name(self, kernel: str) -> list[tuple[str, int]]:
        """Return the lines of the product that name a kernel."""
        product = [file for file in self._texts if not file.startswith(NOT_PRODUCT)]
        return list(self._lines(kernel, product))

    def tests_that_name(self, kernel: str) -> set[str]:
        """Return the test files that name a kernel."""
        tests = [file for file in self._texts if file.startswith("tests/")]
        return {file for file, _ in self._lines(kernel, tests)}

    def _lines(self, name: str, files: Iterable[str]) -> Iterator[tuple[str, int]]:
        pattern = re.compile(rf"\b{name}\b")
        for file in files:
            for number, line in enumerate(self._texts[file].splitlines(), 1):
                if pattern.search(line):
                    yield file, number

    def _at(self, file: str, line: int) -> set[str]:
        kernels = self._kernels.get(file, ())
        return {name for name, begin, end in kernels if begin <= line <= end}

    @staticmethod
    def _kernels_in(text: str) -> Iterator[tuple[str, int, int]]:
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(decorator).startswith("kernel") for decorator in node.decorator_list
            ):
                yield node.name, node.lineno, node.end_lineno or node.lineno


class Recorder:
    """Plugin of a worker that records the lines of the product that each test runs."""

    def __init__(self, lines: str) -> None:
        import coverage  # only this run needs it

        outside = [str(TOP / folder / "*") for folder in (*NOT_PRODUCT, ".venv")]
        self._coverage = coverage.Coverage(
            data_file=lines, source=[str(TOP)], omit=outside, config_file=False
        )
        self._coverage.set_option("run:relative_files", True)
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        self._coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


class Durations:
    """Plugin that writes the duration of each test that passes to a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._seconds = file, defaultdict[str, float](float)
        self._failed = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {test: s for test, s in self._seconds.items() if test not in self._failed}
        self._file.write_text(json.dumps(passed))


class Selection:
    """Plugin that runs only the tests of a mutant, in order, and ends a process without an end."""

    def __init__(self, seconds: dict[str, float], end_s: int) -> None:
        self._seconds, self._end_s = seconds, end_s
        self._rank = {test: rank for rank, test in enumerate(seconds)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._rank]
        items.sort(key=lambda item: self._rank[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        signal.alarm(self._end_s + int(10 * self._seconds[item.nodeid]))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin for the job that the variable names: this module is loaded with `-p`."""
    job, file = os.environ[JOB].split(maxsplit=1)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    plugin: object
    if job == RUN:
        plugin = Selection(**json.loads(Path(file).read_text()))
    elif worker is not None:
        plugin = Recorder(f"{file}.{worker}")
    else:
        plugin = Durations(Path(f"{file}.json"))
    config.pluginmanager.register(plugin)


def run_pytest(tree: Path, job: str, kernels: Path, arguments: Iterable[str]) -> tuple[int, str]:
    """Run tests in a tree, with this module as a plugin; return the exit code and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", __name__, "-p", "no:cacheprovider"]
    folders = [tree, *(tree / folder for folder in IN_A_FOLDER.values())]
    variables = {
        JOB: job,
        "COVERAGE_CORE": "ctrace",  # the only one with contexts in all versions of Python
        "DUEMQ_KERNEL_CACHE": str(kernels),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),  # for processes that the tests start
    }
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=tree,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # processes that the tests left
    return process.returncode, output


def record(tree: Path, lines: Path) -> None:
    """Run the fast tests in a tree, and write the lines and the duration of each."""
    import coverage

    arguments = ["-n", "4", "--dist", "loadfile", "--no-loadscope-reorder", "-m", FAST]
    arguments += [f"--ignore={folder}" for folder in NOT_FAST]
    _, output = run_pytest(tree, f"{RECORD} {lines}", kernels_beside(lines), arguments)
    sys.stdout.write(output[-2_000:])
    every = coverage.CoverageData(str(lines))
    for part in sorted(lines.parent.glob(f"{lines.name}.gw*")):
        data = coverage.CoverageData(str(part))
        data.read()
        every.update(data)
        part.unlink()
    every.write()


def kernels_beside(lines: Path) -> Path:
    """Return the folder for the machine code, which contains that of mutants, too."""
    return lines.with_name(f"{lines.name}.kernels")


def first_failure(tree: Path, changed: str, lines: Path, tests: dict[str, float]) -> str:
    """Return the first of some tests that fails in a tree with a changed file; empty: all pass."""
    is_compiled = any(TOP / changed in sources_of(path) for path in kernel_sources())
    end_s = END_S + COMPILATION_S * is_compiled
    file = tree / ".selection"
    file.write_text(json.dumps({"seconds": tests, "end_s": end_s}))
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    code, output = run_pytest(tree, f"{RUN} {file}", kernels_beside(lines), ["-x", "-n0", *files])
    if code in (0, NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.M)
    return failed[1] if failed else f"exit code {code}"


def tests_of(changed: str) -> Path:
    """Return the folder with the tests of the package of a file."""
    return unit_tests_of(module_of(changed).partition(".")[0]).relative_to(TOP)


def mirror_of(changed: str) -> str:
    """Return the test file that mirrors a file of the product."""
    *inside, name = module_of(changed).split(".")[1:]
    return str(tests_of(changed).joinpath(*inside, f"test_{name}.py"))


class TestsOfLines:
    """Tests that run a line, as `record` wrote them."""

    def __init__(self, lines: Path) -> None:
        import coverage

        self._data = coverage.CoverageData(str(lines))
        self._data.read()
        self._sources = Sources()
        self._seconds: dict[str, float] = json.loads(Path(f"{lines}.json").read_text())

    def of(self, file: str, line: int) -> dict[str, float]:
        """Return the tests that run a line, in the order of their run, with their seconds."""
        tests = self._of_line(file, line)
        for kernel in self._sources.kernels_at(file, line):
            for use in self._sources.lines_that_name(kernel):
                tests |= self._of_line(*use)
            tests |= self._of_files(self._sources.tests_that_name(kernel))
        mirror = mirror_of(file)
        tests |= self._of_files({mirror})  # it may run the file in a process of its own
        return self._bounded(file, mirror, tests & self._seconds.keys())

    def _of_line(self, file: str, line: int) -> set[str]:
        return set(self._data.contexts_by_lineno(file).get(line, ())) - {""}

    def _of_files(self, files: set[str]) -> set[str]:
        return {test for test in self._seconds if test.partition("::")[0] in files}

    def _bounded(self, changed: str, mirror: str, tests: set[str]) -> dict[str, float]:
        of_file = defaultdict[str, dict[str, float]](dict)
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            file = test.partition("::")[0]
            shortest = of_file[file]
            if file == mirror or sum(shortest.values()) <= FILE_S:
                shortest[test] = self._seconds[test]
        folder = tests_of(changed)
        order = sorted(
            of_file,
            key=lambda file: (
                file != mirror,
                not file.startswith(f"{folder}/"),
                sum(of_file[file].values()),
            ),
        )
        bounded: dict[str, float] = {}
        for file in order:
            if sum(bounded.values()) <= ALL_S:
                bounded |= of_file[file]
        return bounded
