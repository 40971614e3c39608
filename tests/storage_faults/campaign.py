"""Campaign that runs the workload once for each call site and error, in separate processes.

    python -m tests.storage_faults.campaign               a sample, chosen by --seed
    python -m tests.storage_faults.campaign --all         all call sites with all errors
    python -m tests.storage_faults.campaign --only SITE   one call site, as log/commit_log.py:68

The program prints one JSON line for each run. The first line lists the call sites that the workload
reaches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from duemq.registry import table_file
from tests.storage_faults.call_sites import Site
from tests.storage_faults.injector import FAULTS, Fault, Injector
from tests.storage_faults.workload import AGED, ANSWER_S, STRICT, Endings, Report, Workload

RUN_S_MAX = 300  # on a busy machine
FIRST_RUN_S_MAX = 400  # the first run may compile the kernels


def run_here(
    home: Path, injector: Injector, endings: Endings, *, answer_s: float = ANSWER_S
) -> Report:
    """Run the workload in this process."""
    # Tables have changes.
    table_file.WHOLE_BYTES_MAX = table_file.CHANGES_BYTES_MIN = 256  # type: ignore[misc]
    injector.install()
    with asyncio.Runner() as runner:
        return runner.run(Workload(home, injector, endings, answer_s=answer_s).run())


def run_apart(fault: Fault | None, endings: Endings) -> dict[str, Any]:
    """Run the workload in a child process; return its report as plain data."""
    home = Path(tempfile.mkdtemp(prefix="storage-fault-"))

    def work() -> dict[str, Any]:
        logging.disable(logging.CRITICAL)
        injector = Injector(fault)
        # Without a fault, each request has its response, however busy the machine is.
        answer_s = ANSWER_S if fault else FIRST_RUN_S_MAX
        report = run_here(home, injector, endings, answer_s=answer_s).as_dict()
        counts = [[s.file, s.line, s.call, count] for s, count in injector.counts.items()]
        return report | {"counts": counts}

    try:
        return in_child(work, RUN_S_MAX if fault else FIRST_RUN_S_MAX)
    except ChildFailed as error:
        return {"problems": [str(error)], "outcome": error.outcome, "fired": 1}
    finally:
        shutil.rmtree(home, ignore_errors=True)


class ChildFailed(RuntimeError):
    """Child process without a result."""

    def __init__(self, outcome: str, text: str) -> None:
        self.outcome = outcome
        super().__init__(text)


def in_child(work: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Run `work` in a child process and return its result, which must be plain data.

    Raises:
        ChildFailed: The child failed, or did not end in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="child-"))
    result, error = folder / "result.json", folder / "error"
    child = os.fork()
    if child == 0:
        _run_child(work, result, error)
    try:
        if not _ended(child, seconds):
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise ChildFailed("hangs", f"no end within {seconds:g} s")
        if error.exists():
            raise ChildFailed("broken run", error.read_text())
        if not result.exists():
            raise ChildFailed("died", "the process ended")
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_child(work: Callable[[], dict[str, Any]], result: Path, error: Path) -> NoReturn:
    write = Path.write_text  # the workload replaces `open`
    try:
        found = json.dumps(work())
        write(result, found)
    except BaseException as failure:
        write(error, repr(failure))
    finally:
        os._exit(0)


def _ended(child: int, seconds: float) -> bool:
    handle = os.pidfd_open(child)
    try:
        waits = select.poll()  # `select` does not support descriptors above 1023
        waits.register(handle, select.POLLIN)
        ready = waits.poll(seconds * 1_000)
    finally:
        os.close(handle)
    if ready:
        os.waitpid(child, 0)
    return bool(ready)


def reached_sites(endings: Endings) -> dict[Site, int]:
    """Return the number of calls at each call site, without a fault.

    Raises:
        RuntimeError: The workload fails without a fault.
    """
    report = run_apart(None, endings)
    if report["problems"]:
        raise RuntimeError(f"the workload fails without a fault: {report['problems']}")
    return {Site(file, line, line, call): count for file, line, call, count in report["counts"]}


def reached_by_endings() -> dict[Endings, dict[Site, int]]:
    """Return the call sites by kind of run; sites reached by both belong to the strict run."""
    strict, aged = reached_sites(STRICT), reached_sites(AGED)
    return {STRICT: strict, AGED: {site: n for site, n in aged.items() if site not in strict}}


def faults_for(reached: dict[Site, int]) -> Iterator[Fault]:
    """Yield all faults: at the first and three other calls, and permanent from the middle."""
    for site, count in sorted(reached.items()):
        for error in FAULTS.get(site.call, ()):
            for number in sorted({1, count // 4 + 1, count // 2 + 1, 3 * count // 4 + 1}):
                if number <= count:
                    yield Fault(site, error, number)
            if count > 1:
                yield Fault(site, error, count // 2 + 1, lasting=True)


def main(words: list[str]) -> int:
    """Run the campaign; return 1 if a run has problems."""
    parser = argparse.ArgumentParser(prog="storage_faults", description=(__doc__ or ""))
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--count", type=int, default=40, help="faults of a part")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    by_endings = reached_by_endings()
    reached = sorted((str(s), n) for sites in by_endings.values() for s, n in sites.items())
    _write({"reached": reached})
    faults = [
        (fault, endings) for endings, sites in by_endings.items() for fault in faults_for(sites)
    ]
    faults = [(fault, endings) for fault, endings in faults if options.only in str(fault.site)]
    if not options.all and not options.only:
        faults = random.Random(options.seed).sample(faults, min(options.count, len(faults)))
    failed = 0
    for fault, endings in faults:
        report = run_apart(fault, endings)
        report.pop("counts", None)
        failed += bool(report["problems"])
        _write({"fault": str(fault), "endings": endings} | report)
    return 1 if failed else 0


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
